"""Statistics of evaluation: pass@k, intervals, comparisons, breakdowns."""

from __future__ import annotations

from .comparison import Comparison, compare
from .interval import Interval
from .summary import (
    MetricFunction,
    RunSummary,
    compute_pass_at_k,
    compute_pass_hat_k,
    flat_metrics,
    pass_at_k,
    pass_hat_k,
    summarize,
)
from .table import ScoreTable

__all__ = [
    "Comparison",
    "Interval",
    "MetricFn",
    "MetricFunction",
    "RunSummary",
    "ScoreTable",
    "compare",
    "compute_pass_at_k",
    "compute_pass_hat_k",
    "flat_metrics",
    "pass_at_k",
    "pass_at_k_metric",
    "pass_hat_k",
    "summarize",
]

# Names of upstream.
MetricFn = MetricFunction
pass_at_k_metric = compute_pass_at_k
