"""Caches: the folder on disk, and the values in memory that were used last. All of it can be made again."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable
from pathlib import Path
from typing import Generic, TypeVar

V = TypeVar("V")


def cache_folder() -> Path:
    """The folder for models, images and other things that can be fetched again.

    `$STRANDS_ROLLOUT_CACHE`, else `$XDG_CACHE_HOME/strands-rollout`, else `~/.cache/strands-rollout`.
    """
    if override := os.environ.get("STRANDS_ROLLOUT_CACHE"):
        return Path(override).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "strands-rollout"


class Recent(Generic[V]):
    """The values used last, up to a total size of `capacity`; several threads may share it."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._size = 0
        self._values: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> V | None:
        """The value, or None."""
        with self._lock:
            entry = self._values.get(key)
            if entry is None:
                return None
            self._values.move_to_end(key)
            return entry[0]

    def put(self, key: Hashable, value: V, size: int = 1) -> None:
        """Keep a value; those that were not used for longest make room for it."""
        with self._lock:
            _, replaced = self._values.pop(key, (None, 0))
            self._values[key] = value, size
            self._size += size - replaced
            while self._size > self._capacity and self._values:
                _, (_, dropped) = self._values.popitem(last=False)
                self._size -= dropped

    def drop(self, key: Hashable) -> None:
        """Forget a value."""
        with self._lock:
            _, dropped = self._values.pop(key, (None, 0))
            self._size -= dropped
