"""Results on disk: one durable, checksummed line a sample, tokens beside, and the configuration they belong to."""

from __future__ import annotations

from .config import RunConfig, load_run
from .files import StorePaths
from .log import ResultLog, ResultWriter
from .reader import Damage, Entry, RecordFile, ResultReader, StoredSamples, Verification, read_results, verify_run

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
