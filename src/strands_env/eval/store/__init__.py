"""Results on disk: one durable line a sample, tokens beside, and the configuration they belong to."""

from __future__ import annotations

from .config import RunConfig, load_run
from .log import ResultLog, StorePaths, read_results
from .writer import ResultWriter

__all__ = ["ResultLog", "ResultWriter", "RunConfig", "StorePaths", "load_run", "read_results"]
