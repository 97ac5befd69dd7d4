"""Rewards: the scorer where the environment has none, and group statistics that count every rollout once."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from strands_env.core import Observation, StepResult
from strands_env.core.termination import ErrorRecord, Phase, TerminationReason
from strands_env.core.types import as_reward_function, as_reward_result
from strands_env.training.advantages import group_advantages
from strands_env.training.slime import fill as _fill
from strands_env.training.slime.failures import SCORING, FailureStreakError, is_swallowed, raise_in_the_run
from strands_env.training.slime.fill import read_reward, rollout_key
from strands_env.training.slime.prompt import action_of
from strands_env.training.slime.settings import SlimeConfigError, SlimeSettings, load

logger = logging.getLogger(__name__)


def reward_post_process(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Raw and group-normalised rewards. For `--custom-reward-post-process-path`.

    Groups are those of `group_index` (without it, every `n_samples_per_prompt` rollouts in a row), each rollout
    (`rollout_id`, else `index`) counts once, and removed samples do not count and get advantage 0, as does a group with
    fewer than `strands_env_min_usable` usable rollouts. slime's own normalisation treats the whole batch as one group
    as soon as a rollout gives two samples.

    Args:
        args: slime's arguments; `advantage_estimator`, `rewards_normalization` and `grpo_std_normalization` are read.
        samples: slime's samples of a training step, in any order.

    Returns:
        Raw rewards and those to train on, in the order of the samples.
    """
    flat = list(_flatten(samples))
    raw = [read_reward(args, sample) or 0.0 for sample in flat]
    estimator = getattr(args, "advantage_estimator", "grpo")
    normalises = estimator in ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
    if not (normalises and getattr(args, "rewards_normalization", True)):
        return raw, [0.0 if _is_removed(sample) else reward for sample, reward in zip(flat, raw, strict=True)]
    scales = estimator != "reinforce_plus_plus_baseline" and getattr(args, "grpo_std_normalization", True)
    groups = _groups(args, flat)
    keys = [rollout_key(sample, position) for position, sample in enumerate(flat)]
    rewards = [None if _is_removed(sample) else read_reward(args, sample) for sample in flat]
    usable: dict[Any, set[Any]] = defaultdict(set)
    for group, key, reward in zip(groups, keys, rewards, strict=True):
        if reward is not None:
            usable[group].add(key)
    least = _min_usable(args)
    kept = [None if len(usable[group]) < least else reward for group, reward in zip(groups, rewards, strict=True)]
    return raw, group_advantages(kept, group_ids=groups, rollout_ids=keys, scale_by_std=scales)


def check_reward_nonzero_std(args: Any, samples: Sequence[Any], **kwargs: Any) -> Any:
    """Keep a group whose rollouts differ in reward. For `--dynamic-sampling-filter-path`.

    Elements may be samples or lists of samples (fan-out), which count once. Removed samples do not count.
    """
    rewards = []
    for element in samples:
        first = next(iter(_flatten([element])), None)
        if first is None:
            continue
        reward = read_reward(args, first)
        if reward is not None and not _is_removed(first):
            rewards.append(reward)
    if len(rewards) < _min_usable(args):
        return _filter_output(False, "too_few_usable_rollouts" if rewards else "no_usable_rollout")
    keep = bool(rewards) and max(rewards) - min(rewards) > 1e-6
    reason = None if keep else (f"zero_std_{round(rewards[0], 1)}" if rewards else "no_usable_rollout")
    return _filter_output(keep, reason)


def _min_usable(args: Any) -> int:
    """Usable rollouts that a group must have."""
    return SlimeSettings.from_args(args, factory_required=False).min_usable


def _groups(args: Any, samples: Sequence[Any]) -> list[Any]:
    """The group of each sample. slime's order is by prompt, and samples of a rollout follow each other."""
    size = getattr(args, "n_samples_per_prompt", None)
    groups: list[Any] = []
    rollouts, last = 0, None
    for position, sample in enumerate(samples):
        group = getattr(sample, "group_index", None)
        if group is None and size:
            key = rollout_key(sample, position)
            rollouts += key != last
            last = key
            group = ("slice", (rollouts - 1) // int(size))
        groups.append(group)
    return groups


def _filter_output(keep: bool, reason: str | None) -> Any:
    try:
        module = importlib.import_module("slime.rollout.filter_hub.base_types")
    except ImportError:
        return keep
    return module.DynamicFilterOutput(keep=keep, reason=reason)


def _is_removed(sample: Any) -> bool:
    return bool(getattr(sample, "remove_sample", False))


def _flatten(samples: Iterable[Any]) -> Iterable[Any]:
    for sample in samples:
        if isinstance(sample, list | tuple):
            yield from _flatten(sample)
        else:
            yield sample


async def reward_func(args: Any, sample: Any, **kwargs: Any) -> Any:
    """The reward of a sample, or of a list of samples. For `--custom-rm-path`.

    `generate` sets the reward of its environment, and then slime does not call this. It scores where the environment
    has no reward function: with `strands_env_reward`, on the agent's final answer and the label alone. Samples of one
    rollout in a list are scored once and share the reward.

    Raises:
        SlimeConfigError: There is neither a reward of the environment nor `strands_env_reward`.
        FailureStreakError: `strands_env_reward` failed too many times in a row in training.
    """
    try:
        return await _rewards(args, sample, **kwargs)
    except (SlimeConfigError, FailureStreakError) as error:
        if not is_swallowed():
            raise
        for one in _flatten([sample]):
            raise_in_the_run(one, error)
        return [0.0] * len(sample) if isinstance(sample, Sequence) else 0.0


async def _rewards(args: Any, sample: Any, **kwargs: Any) -> Any:
    if not isinstance(sample, Sequence):
        return await _reward(args, [sample])
    rollouts: dict[Any, list[Any]] = {}
    places = []
    for position, one in enumerate(sample):
        nested = isinstance(one, Sequence)
        key = ("list", position) if nested else (one.group_index, _fill.rollout_key(one, position))
        rollouts.setdefault(key, []).append(one)
        places.append(key)
    rewards = await asyncio.gather(
        *(
            reward_func(args, members[0], **kwargs) if key[0] == "list" else _reward(args, members)
            for key, members in rollouts.items()
        )
    )
    by_rollout = dict(zip(rollouts, rewards, strict=True))
    return [
        by_rollout[key] if isinstance(one, Sequence) or one.reward is None else one.reward
        for key, one in zip(places, sample, strict=True)
    ]


async def _reward(args: Any, samples: Sequence[Any]) -> Any:
    """The reward of a rollout; an abstention removes its samples."""
    sample = samples[0]
    if sample.reward is not None:
        return sample.reward
    settings = SlimeSettings.from_args(args, factory_required=False)
    if settings.reward is None:
        raise SlimeConfigError(
            "nothing scores this rollout: give the environment a reward_fn, or set strands_env_reward to the import "
            "path of a reward function"
        )
    made = load(settings.reward)
    function = as_reward_function(made() if isinstance(made, type) else made)
    notes = _fill.notes_of(sample)
    answer = notes.get("final_response", sample.response) or ""
    evaluation, call = bool(notes.get("evaluation")), object()
    with SCORING.running(call):
        successes = SCORING.successes
        try:
            result = StepResult(
                observation=Observation(messages=[{"role": "assistant", "content": [{"text": answer}]}]),
                termination_reason=TerminationReason(notes.get("termination_reason", TerminationReason.TASK_COMPLETE)),
            )
            scored = as_reward_result(await function.compute(action=action_of(sample), step_result=result))
            reward, info = scored.reward, scored.info
            SCORING.reset()
        except Exception as error:
            logger.warning(
                "sample=<%s>, error=<%s> | reward failed", getattr(sample, "index", None), error, exc_info=True
            )
            reward, info = None, {}
            if not evaluation:
                record = ErrorRecord.from_exception(error, Phase.REWARD)
                SCORING.add(call, record, settings.max_failures, successes=successes)
    if reward is None:
        for one in samples:
            one.remove_sample = True
        return _fill.unusable_reward(args, sample, "unscored", evaluation=evaluation)
    return _fill.reward_value(args, reward, info, evaluation=evaluation)
