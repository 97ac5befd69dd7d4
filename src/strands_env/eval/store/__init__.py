"""Results on disk: one durable line a sample, tokens beside, and the configuration they belong to."""

from __future__ import annotations

from .config import RunConfig, load_run
from .log import ResultLog, StorePaths
from .reader import ResultReader, read_results
from .writer import ResultWriter

__all__ = ["ResultLog", "ResultReader", "ResultWriter", "RunConfig", "StorePaths", "load_run", "read_results"]
