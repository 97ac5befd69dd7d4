"""pass@k and pass^k, everything worth knowing about a run in one value, and the metric functions of the evaluator."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from strands_env.eval.metrics.interval import Interval, mean_interval, reward_interval
from strands_env.eval.metrics.table import PromptScores, ScoreTable, check_tables
from strands_env.eval.sample import EvalSample

Results: TypeAlias = Mapping[str, Sequence[EvalSample]]
MetricFunction: TypeAlias = Callable[[Any], Mapping[str, float]]
"""A metric of the user's: samples by prompt id to `{name: value}`."""


@lru_cache(maxsize=65536)
def _log_none(n: int, c: int, k: int) -> float:
    """Logarithm of `C(n-c, k) / C(n, k)`, the probability that none of c is among k drawn from n.

    The quotient is a product of `1 - k/(n-i)` over the c, or the same with k and c exchanged.
    """
    if not 0 <= c <= n:
        raise ValueError(f"passed samples must be between 0 and n={n!r}, got {c!r}")
    if not 1 <= k <= n:
        raise ValueError(f"k must be between 1 and the number of samples {n!r}, got {k!r}")
    if n - c < k:
        return -math.inf
    few, many = min(c, k), max(c, k)
    return math.fsum(math.log1p(-many / (n - i)) for i in range(few))


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that at least one of k samples passes, drawn without replacement from n of which c passed.

    `1 - C(n-c, k) / C(n, k)`, the unbiased estimator of Chen et al. 2021, "Evaluating Large Language Models Trained on
    Code".
    """
    return -math.expm1(_log_none(n, c, k))


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Probability that all of k samples pass, drawn without replacement from n of which c passed.

    `C(c, k) / C(n, k)`, as in tau-bench (Yao et al. 2024): how reliable an agent is.
    """
    return math.exp(_log_none(n, n - c, k))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A run in numbers. Unscored samples are counted, and never taken for 0.

    Attributes:
        mean_reward: Mean over prompts of the mean reward.
        scored: Samples with a reward.
        unscored: Samples without one.
        aborted: Unscored samples lost to infrastructure, tried again by a resume.
        ungraded: Unscored samples whose reward function failed; `strands-env rescore` scores them.
        pass_at: pass@k by k, all over one set of prompts, those with a scored sample. Of a prompt with fewer than k
            (samples were lost) it is that of the samples there are, at most too low.
        pass_hat: pass^k by k, likewise, at most too high.
        short: Number of such prompts by k.
        terminations: Samples by termination reason.
        errors: Samples by `where: type` of their error; a failed cleanup counts here and takes no reward away.
        tool_errors: Samples by `tool: type` of exceptions that tools raised; the model received error results for them.
        messages: The first message of each kind of error, by the same names.
        totals: Sums of tokens, calls and seconds over all samples.
    """

    prompts: int
    samples: int
    scored: int
    unscored: int
    aborted: int
    mean_reward: Interval
    pass_at: dict[int, Interval]
    pass_hat: dict[int, Interval]
    terminations: dict[str, int]
    errors: dict[str, int]
    totals: dict[str, float]
    tool_errors: dict[str, int] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    reward_threshold: float = field(default=1.0)
    ungraded: int = 0
    short: dict[int, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """JSON values; NaN becomes None."""
        cleaned = without_nan(asdict(self))
        assert isinstance(cleaned, dict)
        return cleaned


def summarize(
    table: ScoreTable,
    *,
    k_values: Iterable[int] | None = None,
    reward_threshold: float | None = None,
    level: float = 0.95,
) -> RunSummary:
    """Summarise a run.

    Args:
        k_values: The k of pass@k and pass^k; by default 1, 2, 4, ..., the largest number of samples of a prompt, and
            the number that the run asked for.
        reward_threshold: A sample passes with at least this reward; the run's own threshold if None.

    Raises:
        TypeError: The run is given by its path; `strands_env.eval.read_scores` reads its table.
    """
    check_tables("summarize", table)
    scores = table.by_prompt(reward_threshold)
    most = max((score.n for score in scores), default=0)
    if k_values is None:
        powers = {2**power for power in range(most.bit_length())}  # the largest is at most `most`
        # The k of the run too: where no prompt kept so many samples, the summary says so.
        k_values = {*powers, most, table.options.n_samples_per_prompt} if most else {1}
    ks = sorted(set(k_values))
    scored = int((~np.isnan(table.rewards)).sum())
    return RunSummary(
        prompts=len(table.prompt_ids),
        samples=len(table),
        scored=scored,
        unscored=len(table) - scored,
        aborted=table.aborted,
        ungraded=table.ungraded,
        mean_reward=reward_interval([score.mean for score in scores], table.rewards, level=level),
        pass_at={k: mean_interval(_estimates(scores, k, pass_at_k), level=level) for k in ks},
        pass_hat={k: mean_interval(_estimates(scores, k, pass_hat_k), level=level) for k in ks},
        terminations=dict(table.reasons.most_common()),
        errors={f"{where}: {kind}": count for (where, kind), count in table.errors.most_common()},
        tool_errors={f"{tool}: {kind}": count for (tool, kind), count in table.tool_errors.most_common()},
        messages={f"{where}: {kind}": message for (where, kind), message in table.messages.items()},
        totals={name: float(value) for name, value in sorted(table.totals.items())},
        reward_threshold=table.options.reward_threshold if reward_threshold is None else reward_threshold,
        short={k: sum(0 < score.n < k for score in scores) for k in ks if k <= most},
    )


def compute_pass_at_k(results: Results, k_values: Iterable[int], reward_threshold: float = 1.0) -> dict[str, float]:
    """`{"pass@k": mean over prompts with a scored sample}`; NaN where none has k. See `RunSummary.pass_at`."""
    summary = summarize(ScoreTable.from_results(results), k_values=k_values, reward_threshold=reward_threshold)
    return {f"pass@{k}": mean.value for k, mean in summary.pass_at.items()}


def compute_pass_hat_k(results: Results, k_values: Iterable[int], reward_threshold: float = 1.0) -> dict[str, float]:
    """`{"pass^k": mean over prompts with a scored sample}`; NaN where none has k. See `RunSummary.pass_hat`."""
    summary = summarize(ScoreTable.from_results(results), k_values=k_values, reward_threshold=reward_threshold)
    return {f"pass^{k}": mean.value for k, mean in summary.pass_hat.items()}


def flat_metrics(table: ScoreTable) -> dict[str, float]:
    """The evaluator's own metrics, as `{name: number}`: pass@k and pass^k for every k, means, counts and tokens."""
    summary = summarize(table, k_values=range(1, table.options.n_samples_per_prompt + 1))
    counts = ("samples", "scored", "unscored", "aborted", "ungraded")
    sums, count = ("input_tokens", "output_tokens", "tool_calls"), summary.samples
    return {
        **{f"pass@{k}": mean.value for k, mean in summary.pass_at.items()},
        **{f"pass^{k}": mean.value for k, mean in summary.pass_hat.items()},
        "mean_reward": summary.mean_reward.value,
        "mean_reward_low": summary.mean_reward.low,
        "mean_reward_high": summary.mean_reward.high,
        "prompts": summary.prompts,
        **{name: getattr(summary, name) for name in counts},
        **{f"{name}_per_sample": summary.totals.get(name, 0.0) / count if count else math.nan for name in sums},
    }


def _estimates(scores: Sequence[PromptScores], k: int, estimate: Callable[[int, int, int], float]) -> list[float]:
    # One set of prompts for every k: otherwise pass@2 could be below pass@1, by prompts that lost a sample.
    scored = [score for score in scores if score.n]
    if not any(score.n >= k for score in scored):
        return []
    return [estimate(score.n, score.passed, min(k, score.n)) for score in scored]


def without_nan(value: Any) -> Any:
    """JSON has neither NaN nor infinity: None in their place, at any depth."""
    if isinstance(value, dict):
        return {str(key): without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
