"""Atomic file replacement, and the modules that write Parquet."""

from __future__ import annotations

import importlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from strands_sglang.exceptions import install_command


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


def arrow() -> tuple[Any, Any]:
    """The modules `pyarrow` and `pyarrow.parquet`; without them an ImportError that says how to install them."""
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ImportError(f"Parquet files need pyarrow: {install_command('train')}") from error
