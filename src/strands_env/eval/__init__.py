"""Evaluation: run an environment over a data set, keep every sample, and say how sure the numbers are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strands_sglang.compat import names_on_use

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

# A report needs neither the evaluator nor an HTTP client, and a wrong name given to `eval` not even the SDK.
__getattr__, __dir__ = names_on_use(
    __name__,
    {
        ".errors": __all__,  # but for these:
        ".benchmarks.mathematics": ("AIMEEvaluator",),
        ".run.benchmark": ("Benchmark", "HubDataset"),
        "strands_env.core.rollout": ("EnvFactory", "LocalExecutor"),
        ".options": ("EvalOptions",),
        ".sample": ("EvalSample",),
        ".run.evaluator": ("Evaluator",),
        ".run.sampling": ("Executor",),
        ".metrics": (
            "MetricFn",
            "MetricFunction",
            "RunSummary",
            "ScoreTable",
            "compare",
            "pass_at_k_metric",
            "summarize",
        ),
        ".run.progress": ("Progress", "ProgressState"),
        "strands_env.core.attempts": ("RetryPolicy",),
        ".verify": ("Verification", "verify_run"),
        ".registry": (
            "describe_benchmarks",
            "get_benchmark",
            "list_benchmarks",
            "list_unavailable_benchmarks",
            "register_eval",
        ),
        ".store": ("read_results",),
        ".saved": ("SavedRun", "read_scores"),
    },
)
