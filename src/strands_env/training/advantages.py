"""Group-relative advantages in which every rollout counts once, however many samples it was split into."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence


def group_advantages(
    rewards: Sequence[float | None],
    *,
    group_ids: Sequence[Hashable],
    rollout_ids: Sequence[Hashable],
    scale_by_std: bool = True,
    epsilon: float = 1e-6,
) -> list[float]:
    """Advantage of every sample: its rollout's reward minus the mean over the rollouts of its group.

    GRPO (Shao et al. 2024, equation of section 4.1.1) divides by the group's standard deviation, Dr. GRPO does not.

    Args:
        rewards: Reward of every sample; None or NaN leaves its rollout out of the statistics.
        group_ids: Group of every sample.
        rollout_ids: Rollout of every sample, unique within its group. Samples of a rollout share one reward; where
            they differ, their mean is the rollout's.
        scale_by_std: Divide by the standard deviation of the group (with n - 1, as torch does).
        epsilon: Added to the divisor.

    Returns:
        One advantage per sample; 0.0 for a sample without a reward and for a group of one.

    Raises:
        ValueError: The lengths differ.
    """
    if not len(rewards) == len(group_ids) == len(rollout_ids):
        raise ValueError(f"got {len(rewards)} rewards, {len(group_ids)} group ids and {len(rollout_ids)} rollout ids")
    groups: dict[Hashable, dict[Hashable, list[float]]] = defaultdict(lambda: defaultdict(list))
    for reward, group, rollout in zip(rewards, group_ids, rollout_ids, strict=True):
        if is_reward(reward):
            groups[group][rollout].append(float(reward))  # type: ignore[arg-type]
    statistics: dict[Hashable, tuple[float, float]] = {}
    for group, rollouts in groups.items():
        means = [_mean(values) for values in rollouts.values()]
        mean, others = _mean(means), max(len(means) - 1, 1)
        statistics[group] = mean, math.sqrt(math.fsum((value - mean) ** 2 for value in means) / others)
    advantages = []
    for reward, group in zip(rewards, group_ids, strict=True):
        if not is_reward(reward) or len(groups[group]) < 2:
            advantages.append(0.0)
            continue
        mean, std = statistics[group]
        centred = float(reward) - mean  # type: ignore[arg-type]
        advantages.append(centred / (std + epsilon) if scale_by_std else centred)
    return advantages


def is_reward(value: object) -> bool:
    """True for a number that is not NaN."""
    return isinstance(value, int | float) and math.isfinite(value)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
