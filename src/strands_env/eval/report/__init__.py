"""HTML files to look at runs: no server, no network, nothing beside them."""

from __future__ import annotations

from .page import ReportResult
from .run_page import write_report
from .training_page import write_training

__all__ = ["ReportResult", "write_report", "write_training"]
