"""Atomic file replacement."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A path beside the target to write to; the file takes the target's name if the block raises nothing."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        yield partial
        if partial.exists():
            os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
