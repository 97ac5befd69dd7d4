"""Evaluation: run an environment over a data set, keep every sample, and say how sure the numbers are."""

from __future__ import annotations

from strands_env.core.attempts import RetryPolicy
from strands_env.core.rollout import EnvFactory, LocalExecutor
from strands_env.options import EvalOptions, GroupPolicy

from .benchmarks.mathematics import AIMEEvaluator
from .errors import (
    ConfigMismatchError,
    DatasetError,
    EvalError,
    SameFailureError,
    StoreCorruptError,
    StoreError,
    StoreLockedError,
    TooManyFailuresError,
    UnknownBenchmarkError,
)
from .metrics import MetricFn, MetricFunction, RunSummary, ScoreTable, compare, pass_at_k_metric, summarize
from .registry import describe_benchmarks, get_benchmark, list_benchmarks, list_unavailable_benchmarks, register_eval
from .run.benchmark import Benchmark, HubDataset
from .run.evaluator import Evaluator
from .run.progress import Progress, ProgressState
from .run.sampling import Executor
from .sample import EvalSample
from .saved import read_scores
from .store import read_results
from .verify import Verification, verify_run

__all__ = [
    "AIMEEvaluator",
    "Benchmark",
    "ConfigMismatchError",
    "DatasetError",
    "EnvFactory",
    "EvalError",
    "EvalOptions",
    "EvalSample",
    "Evaluator",
    "Executor",
    "GroupPolicy",
    "HubDataset",
    "LocalExecutor",
    "MetricFn",
    "MetricFunction",
    "Progress",
    "ProgressState",
    "RetryPolicy",
    "RunSummary",
    "SameFailureError",
    "ScoreTable",
    "StoreCorruptError",
    "StoreError",
    "StoreLockedError",
    "TooManyFailuresError",
    "UnknownBenchmarkError",
    "Verification",
    "compare",
    "describe_benchmarks",
    "get_benchmark",
    "list_benchmarks",
    "list_unavailable_benchmarks",
    "pass_at_k_metric",
    "read_results",
    "read_scores",
    "register_eval",
    "summarize",
    "verify_run",
]
