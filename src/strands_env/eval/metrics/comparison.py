"""Two runs on the same prompts: the difference with its interval, and a paired test."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from strands_env.eval.metrics.interval import Interval, mean_interval, possible_range
from strands_env.eval.metrics.table import ScoreTable, check_tables

EXACT_LIMIT = 14
"""Up to this many prompts with a difference all sign flips are counted; above, they are sampled."""

_CELLS = 4_000_000  # values drawn at a time, to bound memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two runs on the same prompts. A difference is the second minus the first.

    Attributes:
        difference: Mean difference with its interval.
        p_value: Two-sided p-value of the sign-flip permutation test; NaN without a pair.
        is_exact: All sign flips were counted, not sampled.
        only_first: Scored prompts that only the first run has.
        only_second: Scored prompts that only the second run has.
        lost_first: Share of the first run's samples without a reward: lost to infrastructure or to a failing reward
            function, not scored (an abstention), or missing because the run did not get to its end.
        lost_second: The same of the second.
        changed: Difference by prompt where there is one, the largest first, of equal ones by name.
    """

    first: float
    second: float
    difference: Interval
    p_value: float
    is_exact: bool
    wins: int
    losses: int
    ties: int
    only_first: int
    only_second: int
    lost_first: float = 0.0
    lost_second: float = 0.0
    changed: dict[str, float] = field(default_factory=dict)


def compare(
    first: ScoreTable,
    second: ScoreTable,
    *,
    reward_threshold: float | None = None,
    level: float = 0.95,
) -> Comparison:
    """Compare two runs prompt by prompt.

    Args:
        reward_threshold: Compare pass rates at this reward; None compares mean rewards.

    Raises:
        ValueError: A prompt of the same id is another task in the two runs.
        TypeError: A run is given by its path; `strands_env.eval.read_scores` reads its table.
    """
    check_tables("compare", first, second)
    left, right = _values(first, reward_threshold), _values(second, reward_threshold)
    other = _tasks(second)
    others = [name for name, task in _tasks(first).items() if other.get(name, task) != task]
    if others:
        raise ValueError(
            f"{len(others)} prompts have the same id but another task in the two runs, such as {others[0]!r}: "
            "compare runs on the same data"
        )
    shared = [name for name in left if name in right]
    one = np.array([left[name] for name in shared])
    two = np.array([right[name] for name in shared])
    rewards = np.concatenate([first.rewards, second.rewards]) if reward_threshold is None else np.zeros(0)
    least, greatest = possible_range(rewards[~np.isnan(rewards)])
    width = greatest - least
    differences = np.clip(two - one, -width, width)
    # Means of equal rewards may differ in the last bit.
    differences[np.abs(differences) <= 1e-12 * (np.abs(one) + np.abs(two))] = 0.0
    p_value, is_exact = sign_flip_test(differences)
    changed = sorted(zip(shared, differences.tolist(), strict=True), key=lambda pair: (-abs(pair[1]), pair[0]))
    return Comparison(
        first=float(one.mean()) if shared else math.nan,
        second=float(two.mean()) if shared else math.nan,
        difference=mean_interval(differences, level=level, bounds=(-width, width)),
        p_value=p_value,
        is_exact=is_exact,
        wins=int((differences > 0).sum()),
        losses=int((differences < 0).sum()),
        ties=int((differences == 0).sum()),
        only_first=len(left) - len(shared),
        only_second=len(right) - len(shared),
        lost_first=_lost_share(first),
        lost_second=_lost_share(second),
        changed={name: difference for name, difference in changed if difference},
    )


def sign_flip_test(
    differences: Sequence[float] | NDArray[np.float64], *, resamples: int = 10_000
) -> tuple[float, bool]:
    """Two-sided p-value of paired differences under random signs, `resamples` of them, and whether it is exact.

    Fisher's randomisation test: were the runs equal, each difference would be as likely with the other sign. A sampled
    p-value is `(b + 1) / (m + 1)` (Phipson and Smyth 2010), never 0.
    """
    values = np.asarray(differences, dtype=np.float64)
    if values.size == 0:
        return math.nan, True
    moving = values[values != 0]
    if moving.size == 0:
        return 1.0, True
    # Equal sums may differ in their last bits, which are those of the differences, not of a sum near 0.
    observed = abs(moving.sum()) - 1e-12 * np.abs(moving).sum()
    if moving.size <= EXACT_LIMIT:
        flips = np.array(list(itertools.product((1.0, -1.0), repeat=moving.size)))
        return float((np.abs(flips @ moving) >= observed).mean()), True
    # Too many patterns to count: a seeded sample of them, so that the same runs compare alike each time.
    rng = np.random.default_rng(0)
    beyond = 0
    step = max(1, _CELLS // moving.size)
    for start in range(0, resamples, step):
        signs = rng.integers(0, 2, size=(min(step, resamples - start), moving.size), dtype=np.int8) * 2.0 - 1.0
        beyond += int((np.abs(signs @ moving) >= observed).sum())
    return (beyond + 1) / (resamples + 1), False


def _values(table: ScoreTable, threshold: float | None) -> dict[str, float]:
    scores = table.by_prompt(1.0 if threshold is None else threshold)
    return {
        name: score.mean if threshold is None else score.passed / score.n
        for name, score in zip(table.prompt_ids, scores, strict=True)
        if score.n
    }


def _lost_share(table: ScoreTable) -> float:
    lost, total = table.unscored + table.missing, len(table) + table.missing
    return lost / total if total else 0.0


def _tasks(table: ScoreTable) -> dict[str, str]:
    return {name: task for name, task in zip(table.prompt_ids, table.tasks, strict=True) if task}
