"""Results on disk: one durable, checksummed line a sample, tokens beside, and the configuration they belong to."""

from __future__ import annotations

from .reader import (
    Damage,
    Entry,
    RecordFile,
    ResultReader,
    StoredSamples,
    Verification,
    load_run,
    read_results,
    verify_run,
)
from .record import StorePaths
from .writer import ResultLog, ResultWriter, RunConfig

__all__ = [
    "Damage",
    "Entry",
    "RecordFile",
    "ResultLog",
    "ResultReader",
    "ResultWriter",
    "RunConfig",
    "StorePaths",
    "StoredSamples",
    "Verification",
    "load_run",
    "read_results",
    "verify_run",
]
