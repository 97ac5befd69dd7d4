"""Confidence intervals of means over prompts, of bounded values, that hold from ten prompts on.

`tests/unit/strands_env/eval/test_eval_metrics.py` counts how often they hold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

# Prompts with the largest possible variance that are added to the observed ones: a few prompts may show none of the
# variance that there is.
WORST_PROMPTS = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate over `prompts` prompts, with its confidence interval; all NaN when nothing was scored."""

    value: float
    low: float
    high: float
    level: float = 0.95
    prompts: int = 0


def mean_interval(
    values: Sequence[float] | NDArray[np.float64], *, level: float = 0.95, bounds: tuple[float, float] | None = None
) -> Interval:
    """Mean of one value a prompt, with its confidence interval.

    Prompts are the unit: samples of one prompt are not independent, so only their mean is taken.

    Args:
        values: One value for each prompt; NaN for a prompt without one, which is left out.
        bounds: The least and the greatest value that are possible; `possible_range` of the values if None.

    Raises:
        ValueError: `level` is not between 0 and 1, or a value is out of bounds.
    """
    scores = np.asarray(values, dtype=np.float64)
    scores = scores[~np.isnan(scores)]
    if scores.size == 0:
        return Interval(value=math.nan, low=math.nan, high=math.nan, level=level, prompts=0)
    variance = float(scores.var(ddof=1)) if scores.size > 1 else 0.0
    limits = possible_range(scores) if bounds is None else bounds
    if not limits[0] <= float(scores.min()) <= float(scores.max()) <= limits[1]:
        raise ValueError(
            f"values must be between {limits[0]!r} and {limits[1]!r}, got {scores.min()!r} to {scores.max()!r}"
        )
    mean = float(scores.mean())
    low, high = interval_of(mean, variance, int(scores.size), level=level, bounds=limits)
    return Interval(value=mean, low=low, high=high, level=level, prompts=int(scores.size))


def reward_interval(
    means: Sequence[float] | NDArray[np.float64], rewards: NDArray[np.float64], *, level: float = 0.95
) -> Interval:
    """The mean reward with its interval: the one of summaries and of curves.

    Args:
        means: The mean reward of each prompt; NaN for one without.
        rewards: Those of all samples, whose range a prompt's mean may reach too; NaN for an unscored one.
    """
    bounds = possible_range(rewards[~np.isnan(rewards)])
    return mean_interval(np.clip(np.asarray(means, dtype=np.float64), *bounds), level=level, bounds=bounds)


def possible_range(values: NDArray[np.float64]) -> tuple[float, float]:
    """The range rewards are taken to have: 0 to 1, -1 to 1, or as far as they were seen to go beyond."""
    least, greatest = float(values.min(initial=0.0)), float(values.max(initial=1.0))
    return (min(-1.0, least) if least < 0 else 0.0, greatest)


def interval_of(
    mean: float, variance: float, count: int, *, level: float = 0.95, bounds: tuple[float, float] = (0.0, 1.0)
) -> tuple[float, float]:
    """The interval of a mean, within the bounds.

    Clopper and Pearson's (1934), with the effective number of independent yes/no answers: an answer's variance over
    that of the mean (Korn and Graubard 1998), with Student's correction. Values within the bounds vary at most as
    yes/no answers do, so the effective number is at least the number of prompts. For yes/no answers the coverage is at
    least `level`. `variance` is the sample variance of the `count` values.

    Raises:
        ValueError: `level` is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level!r}")
    least, greatest = bounds
    width = greatest - least
    share = min(1.0, max(0.0, (mean - least) / width))
    answers = _answers(share, variance / width**2, count, level)
    passed = share * answers
    tail = (1 - level) / 2
    low = 0.0 if passed < 1e-9 else beta_quantile(tail, passed, answers - passed + 1)
    high = 1.0 if passed > answers - 1e-9 else beta_quantile(1 - tail, passed + 1, answers - passed)
    return least + width * min(low, share), least + width * max(high, share)


def _answers(share: float, variance: float, count: int, level: float) -> float:
    """Effective number of independent yes-or-no answers."""
    largest = share * (1 - share)
    if count < 2 or largest <= 0:
        return float(count)
    guarded = ((count - 1) * variance + WORST_PROMPTS * largest) / (count - 1 + WORST_PROMPTS)
    upper = (1 + level) / 2
    correction = NormalDist().inv_cdf(upper) / student_quantile(upper, count - 1)
    return max(float(count), count * largest / guarded * correction**2)


def beta_cdf(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), x from 0 to 1, by its continued fraction (DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # there the fraction converges fast
        return 1 - beta_cdf(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) * _fraction(x, a, b) / a


def _fraction(x: float, a: float, b: float) -> float:
    """From its end, of so many terms that more change nothing in the first nine digits."""
    value = 1.0
    for m in range(10 + int(3 * math.sqrt(max(a, b))), 0, -1):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        value = 1 + even / (1 + odd / value)
    return 1 / (1 - (a + b) * x / ((a + 1) * value))


@lru_cache(maxsize=4096)
def beta_quantile(probability: float, a: float, b: float) -> float:
    """The x with I_x(a, b) = probability, to 1e-10, by the method of Illinois between 0 and 1."""
    low, high = 0.0, 1.0
    at_low, at_high = -probability, 1 - probability
    for _ in range(200):
        x = (low * at_high - high * at_low) / (at_high - at_low)
        if not low < x < high or high - low > 0.5:
            x = (low + high) / 2
        value = beta_cdf(x, a, b) - probability
        if value == 0 or high - low < 1e-10:
            return x
        if value < 0:
            low, at_low = x, value
            at_high /= 2
        else:
            high, at_high = x, value
            at_low /= 2
    return (low + high) / 2


@lru_cache(maxsize=1024)
def student_quantile(probability: float, degrees: float) -> float:
    """Quantile of Student's distribution, for a probability above a half."""
    if degrees > 1000:
        return NormalDist().inv_cdf(probability)
    x = beta_quantile(2 * (1 - probability), degrees / 2, 0.5)
    return math.sqrt(degrees * (1 / x - 1))
