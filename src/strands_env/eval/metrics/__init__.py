"""Statistics of evaluation: pass@k, intervals, comparisons, breakdowns."""

from __future__ import annotations

from .bootstrap import Comparison, bootstrap_mean, compare, sign_flip_test
from .passk import pass_at_k, pass_hat_k
from .summary import MetricFunction, Results, RunSummary, compute_pass_at_k, compute_pass_hat_k, flat_metrics, summarize
from .table import Interval, Prices, PromptScores, ScoreTable

__all__ = [
    "Comparison",
    "Interval",
    "MetricFunction",
    "Prices",
    "PromptScores",
    "Results",
    "RunSummary",
    "ScoreTable",
    "bootstrap_mean",
    "compare",
    "compute_pass_at_k",
    "compute_pass_hat_k",
    "flat_metrics",
    "pass_at_k",
    "pass_hat_k",
    "sign_flip_test",
    "summarize",
]
