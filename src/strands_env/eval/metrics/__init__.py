"""Statistics of evaluation: pass@k, intervals, comparisons, breakdowns."""

from __future__ import annotations

from strands_sglang.compat import old_names

from .comparison import Comparison, compare, sign_flip_test
from .interval import Interval, interval_of, mean_interval, possible_range
from .passk import pass_at_k, pass_hat_k
from .summary import MetricFunction, Results, RunSummary, compute_pass_at_k, compute_pass_hat_k, flat_metrics, summarize
from .table import Prices, PromptScores, ScoreTable

__all__ = [
    "Comparison",
    "Interval",
    "MetricFunction",
    "Prices",
    "PromptScores",
    "Results",
    "RunSummary",
    "ScoreTable",
    "compare",
    "compute_pass_at_k",
    "compute_pass_hat_k",
    "flat_metrics",
    "interval_of",
    "mean_interval",
    "pass_at_k",
    "pass_hat_k",
    "possible_range",
    "sign_flip_test",
    "summarize",
]

__getattr__ = old_names(__name__)
