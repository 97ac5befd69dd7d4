"""Statistics of evaluation: pass@k, intervals, comparisons, breakdowns."""

from __future__ import annotations

from .comparison import Comparison, compare, sign_flip_test
from .interval import Interval, interval_of, mean_interval, possible_range, reward_interval
from .passk import pass_at_k, pass_hat_k
from .summary import MetricFunction, RunSummary, compute_pass_at_k, compute_pass_hat_k, flat_metrics, summarize
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
    "interval_of",
    "mean_interval",
    "pass_at_k",
    "pass_at_k_metric",
    "pass_hat_k",
    "possible_range",
    "reward_interval",
    "sign_flip_test",
    "summarize",
]

# Names of upstream.
MetricFn = MetricFunction
pass_at_k_metric = compute_pass_at_k
