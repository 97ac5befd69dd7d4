"""A bounded memory of what was used last."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


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
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, value: V, size: int = 1) -> None:
        """Keep a value; those that were not used for longest make room for it."""
        with self._lock:
            _, replaced = self._values.pop(key, (None, 0))
            self._values[key] = value, size
            self._size += size - replaced
            while self._size > self._capacity and self._values:
                _, (_, dropped) = self._values.popitem(last=False)
                self._size -= dropped
