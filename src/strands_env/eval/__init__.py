"""Evaluation: run an environment over a data set, keep every sample, and say how sure the numbers are."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strands_env.core.attempts import RetryPolicy
    from strands_env.core.rollout import EnvFactory, LocalExecutor
    from strands_env.eval.options import EvalOptions

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
    from .registry import (
        describe_benchmarks,
        get_benchmark,
        list_benchmarks,
        list_unavailable_benchmarks,
        register_eval,
    )
    from .run.benchmark import Benchmark, HubDataset
    from .run.evaluator import Evaluator
    from .run.progress import Progress, ProgressState
    from .run.sampling import Executor
    from .sample import EvalSample
    from .saved import SavedRun, read_scores
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
    "HubDataset",
    "LocalExecutor",
    "MetricFn",
    "MetricFunction",
    "Progress",
    "ProgressState",
    "RetryPolicy",
    "RunSummary",
    "SameFailureError",
    "SavedRun",
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

# The module of a name; names that are missing here are in `errors`.
_HOMES = {
    "AIMEEvaluator": ".benchmarks.mathematics",
    **dict.fromkeys(("Benchmark", "HubDataset"), ".run.benchmark"),
    **dict.fromkeys(("EnvFactory", "LocalExecutor"), "strands_env.core.rollout"),
    "EvalOptions": "strands_env.eval.options",
    "EvalSample": ".sample",
    "Evaluator": ".run.evaluator",
    "Executor": ".run.sampling",
    **dict.fromkeys(
        ("MetricFn", "MetricFunction", "RunSummary", "ScoreTable", "compare", "pass_at_k_metric", "summarize"),
        ".metrics",
    ),
    **dict.fromkeys(("Progress", "ProgressState"), ".run.progress"),
    "RetryPolicy": "strands_env.core.attempts",
    **dict.fromkeys(("Verification", "verify_run"), ".verify"),
    **dict.fromkeys(
        ("describe_benchmarks", "get_benchmark", "list_benchmarks", "list_unavailable_benchmarks", "register_eval"),
        ".registry",
    ),
    "read_results": ".store",
    **dict.fromkeys(("SavedRun", "read_scores"), ".saved"),
}


def __getattr__(name: str) -> Any:
    # A report needs neither the evaluator nor an HTTP client, and a wrong name given to `eval` not even the SDK.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(_HOMES.get(name, ".errors"), __name__), name)
    return value
