"""Results on disk: one durable, checksummed line a sample, and the configuration they belong to."""

from __future__ import annotations

from .config import RunConfig, StorePaths, load_run
from .line import Entry
from .results import LazySamples, ResultLog, ResultReader, ResultWriter, in_task_order, read_results

__all__ = [
    "Entry",
    "LazySamples",
    "ResultLog",
    "ResultReader",
    "ResultWriter",
    "RunConfig",
    "StorePaths",
    "in_task_order",
    "load_run",
    "read_results",
]
