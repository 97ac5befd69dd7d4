"""Advantages and weights in which every rollout counts once, however many samples it was split into."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from strands_env.training.export import with_all_sampled_tokens
from strands_env.training.sample import InvalidSampleError, TrainingSample
from strands_sglang.trajectory.tokens import mask_runs


def group_advantages(
    rewards: Sequence[float | None],
    *,
    group_ids: Sequence[Hashable],
    rollout_ids: Sequence[Hashable],
    scale_by_std: bool = True,
    epsilon: float = 1e-6,
    min_rollouts: int = 2,
) -> list[float]:
    """Advantage of every sample: its rollout's reward minus the mean over the rollouts of its group.

    GRPO (Shao et al. 2024, equation of section 4.1.1) divides by the group's standard deviation, Dr. GRPO does not.

    Args:
        rewards: Reward of every sample; a number of Python, numpy or torch; None, NaN or an
            infinity leaves its rollout out of the statistics.
        group_ids: Group of every sample. No id, here or of a rollout, is None or NaN.
        rollout_ids: Rollout of every sample, unique within its group. Samples of a rollout share one reward; where
            they differ, their mean is the rollout's.
        scale_by_std: Divide by the standard deviation of the group (with n - 1, as torch does).
        epsilon: Added to the divisor.
        min_rollouts: Rollouts with a reward that a group must have to be trained; one alone has no statistics.

    Returns:
        One advantage per sample; 0.0 for a sample without a reward and for a group of too few rollouts.

    Raises:
        ValueError: The lengths differ, an id is missing, or a reward is no number, or too large for statistics.
    """
    if not len(rewards) == len(group_ids) == len(rollout_ids):
        raise ValueError(f"got {len(rewards)} rewards, {len(group_ids)} group ids and {len(rollout_ids)} rollout ids")
    values = [finite_number(reward) for reward in rewards]
    # Scalars of torch hash by identity: each would be a group of its own.
    groups_of, rollouts_of = (
        [each.item() if hasattr(each, "item") else each for each in ids] for ids in (group_ids, rollout_ids)
    )
    for name, ids in (("group_ids", groups_of), ("rollout_ids", rollouts_of)):
        # NaN equals nothing, so each would be a group of its own; all without an id would be one rollout.
        if (place := next((at for at, each in enumerate(ids) if each is None or each != each), None)) is not None:
            raise ValueError(f"{name}[{place}] is {ids[place]!r}, which identifies nothing: give every sample an id")
    groups: dict[Hashable, dict[Hashable, list[float]]] = defaultdict(lambda: defaultdict(list))
    for value, group, rollout in zip(values, groups_of, rollouts_of, strict=True):
        if value is not None:
            groups[group][rollout].append(value)
    statistics: dict[Hashable, tuple[float, float]] = {}
    for group, rollouts in groups.items():
        try:
            means = [_mean(each) for each in rollouts.values()]
            mean, others = _mean(means), max(len(means) - 1, 1)
            statistics[group] = mean, math.sqrt(math.fsum((each - mean) ** 2 for each in means) / others)
        except OverflowError as error:
            largest = max((value for each in rollouts.values() for value in each), key=abs)
            raise ValueError(
                f"the rewards of group {group!r} are too large for statistics, such as {largest!r}: scale them"
            ) from error
    advantages = []
    for value, group in zip(values, groups_of, strict=True):
        if value is None or len(groups[group]) < max(min_rollouts, 2):
            advantages.append(0.0)
            continue
        mean, std = statistics[group]
        advantages.append((value - mean) / (std + epsilon) if scale_by_std else value - mean)
    return advantages


def turn_advantages(samples: Sequence[TrainingSample]) -> list[NDArray[np.float64]]:
    """Advantage of every token where turns have rewards: the return from its turn on, less a baseline.

    A turn earns `reward`, its own `token_rewards`, those of later turns, and those of the rollout's other paths. Its
    baseline is the mean return of the other rollouts of the group from the turn of that number on; one that ended
    before has its `reward` left. So it does not depend on where a rollout stops, as that of statistics by turn number
    does, which take the mean of a turn's rewards off each decision to go on (verl's issue 7244). Nothing is divided by
    a standard deviation, which would be a bias again.

    Args:
        samples: Of whole groups, all rows of each rollout, before `masked`. One without a reward counts not at all.

    Returns:
        float64[tokens] for each sample, 0.0 where it trains nothing and in a group of one rollout. The scale is that of
        `group_advantages(..., scale_by_std=False)`, whose values these are where no turn has a reward.

    Raises:
        InvalidSampleError: A sample contradicts itself, or has no group or rollout id.
    """
    groups: dict[Hashable, dict[Hashable, list[TrainingSample]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        if sample.validate().is_scored:
            groups[_identity(sample, "group_id")][_identity(sample, "rollout_id")].append(sample)
    left = {group: {name: _left_to_earn(paths) for name, paths in own.items()} for group, own in groups.items()}
    advantages = [np.zeros(len(sample)) for sample in samples]
    for sample, values in zip(samples, advantages, strict=True):
        if not sample.is_usable or len(rollouts := left[sample.group_id]) < 2:
            continue
        own, count = rollouts[sample.rollout_id], len(rollouts)
        sampled = with_all_sampled_tokens(sample).loss_mask
        had = np.cumsum(np.zeros(len(sample)) if sample.token_rewards is None else sample.token_rewards * sampled)
        for turn, (start, end) in enumerate(mask_runs(sampled)):
            others = [each[min(turn, len(each) - 1)] for each in rollouts.values() if each is not own]
            earned = own[0] - (had[start - 1] if start else 0.0)  # what it had already is no merit of this turn
            values[start:end] = (earned * (count - 1) - math.fsum(others)) / count
        values *= sample.loss_mask
    return advantages


def _left_to_earn(paths: Sequence[TrainingSample]) -> list[float]:
    """Return of a rollout from each turn on, over all its paths; the last entry, from its end on, is its reward."""
    by_turn: dict[int, float] = defaultdict(float)
    for path in paths:
        for turn, (start, end) in enumerate(mask_runs(with_all_sampled_tokens(path).loss_mask)):
            values = 0.0 if path.token_rewards is None else path.token_rewards[start:end] @ path.loss_mask[start:end]
            by_turn[turn] += float(values)  # a path counts what it trains: shared turns once
    left = [math.fsum(path.reward or 0.0 for path in paths) / len(paths)]
    for turn in sorted(by_turn, reverse=True):
        left.insert(0, left[0] + by_turn[turn])
    return left


def weigh_rollouts(samples: Sequence[TrainingSample], *, row_means: bool = False) -> list[TrainingSample]:
    """The samples with the `loss_weight` under which all rollouts weigh alike, regardless of their rows and tokens.

    A loss with these weights is the mean over rollouts of the mean over their trained tokens, as slime's, times the
    number of tokens (or rows) where the trainer does not divide by it: the weights have mean 1 over these.

    Args:
        samples: Of a whole batch. Those that cannot be trained keep their weight and count for nothing.
        row_means: The loss takes the mean of each row's tokens first (`grpo` of TRL, `seq-mean-token-mean` of verl);
            otherwise it is a sum or mean over the tokens of all rows (tinker, prime-rl, `dapo` of TRL).

    Raises:
        InvalidSampleError: A sample that can be trained has no rollout id.
    """
    tokens: Counter[Hashable] = Counter()
    trained = [sample for sample in samples if sample.is_usable]
    for sample in trained:
        tokens[sample.group_id, _identity(sample, "rollout_id")] += sample.trained_tokens
    mean = (len(trained) if row_means else tokens.total()) / max(len(tokens), 1)
    return [
        replace(
            sample,
            loss_weight=mean * (sample.trained_tokens if row_means else 1) / tokens[sample.group_id, sample.rollout_id],
        )
        if sample.is_usable
        else sample
        for sample in samples
    ]


def _identity(sample: TrainingSample, name: str) -> Hashable:
    """A sample's group or rollout id, without which its statistics would be those of all samples without one."""
    found: Hashable = getattr(sample, name)
    if found is None:
        raise InvalidSampleError(f"a sample has {name} None: give every sample its group_id and rollout_id")
    return found


def finite_number(reward: object) -> float | None:
    """A reward as a float, of any library's number; None for one that is missing, NaN or infinite."""
    if reward is None:
        return None
    try:
        if isinstance(reward, str | bytes):
            raise TypeError
        value = float(reward)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: torch, of a tensor of several
        raise ValueError(f"a reward must be one number or None, got {reward!r}") from error
    except OverflowError as error:
        raise ValueError("a reward must be a number within the range of floats (1.8e308), got a larger one") from error
    return value if math.isfinite(value) else None


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
