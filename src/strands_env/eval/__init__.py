"""Evaluation: run an environment over a data set, keep every sample, and say how sure the numbers are."""

from __future__ import annotations

from .errors import (
    ConfigMismatchError,
    DatasetError,
    EvalError,
    StoreCorruptError,
    StoreError,
    StoreLockedError,
    TooManyFailuresError,
    UnknownBenchmarkError,
)
from .evaluator import Evaluator
from .executor import EnvFactory, Executor, LocalExecutor
from .metrics import MetricFunction, Prices, RunSummary, ScoreTable, compare, summarize
from .progress import Progress, ProgressState
from .retry import GroupPolicy, RetryPolicy
from .sample import EvalSample
from .store import read_results

__all__ = [
    "ConfigMismatchError",
    "DatasetError",
    "EnvFactory",
    "EvalError",
    "EvalSample",
    "Evaluator",
    "Executor",
    "GroupPolicy",
    "LocalExecutor",
    "MetricFunction",
    "Prices",
    "Progress",
    "ProgressState",
    "RetryPolicy",
    "RunSummary",
    "ScoreTable",
    "StoreCorruptError",
    "StoreError",
    "StoreLockedError",
    "TooManyFailuresError",
    "UnknownBenchmarkError",
    "compare",
    "read_results",
    "summarize",
]
