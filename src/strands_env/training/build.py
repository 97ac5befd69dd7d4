"""Training samples out of step results and models.

A rollout gives one sample per path of the trajectory forest. A sampled token carries loss in the first path that holds
it and is context in the others. Left out are the paths that are not `trainable`, and completions that a retry threw
away; used paths own what they share with discarded ones, so nothing is lost.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strands_env.core.loop_records import trajectories_of
from strands_env.core.termination import ANSWERED, End
from strands_env.core.types import StepResult, Trajectory
from strands_env.rewards.turns import Placement, rewards_of_paths
from strands_env.training.sample import TrainingSample


def samples_from_step(
    result: StepResult,
    *,
    group_id: str | None = None,
    rollout_id: str | None = None,
    experts_shape: tuple[int, int] | None = None,
    placement: Placement | str | None = Placement.LAST,
    metadata: Mapping[str, Any] | None = None,
) -> list[TrainingSample]:
    """The samples of one episode.

    Args:
        result: Returned by `Environment.step` or `rollout`.
        group_id: Id that all rollouts of the prompt share.
        rollout_id: Id of this rollout; a random one if None.
        experts_shape: `(layers, top_k)` of routed experts.
        placement: The tokens of a turn or span that get its reward; None leaves these rewards out.
        metadata: Added to every sample.

    Returns:
        One sample a path. Empty when nothing was sampled. A rollout that the policy brought to its end before a token
        came (a time-out), or of which no path is trained, is one sample without tokens, which holds its reward.

    Raises:
        TypeError: `result` is not a `StepResult`.
        ValueError: A turn or span with a reward does not exist.
    """
    if not isinstance(result, StepResult):
        raise TypeError(
            f"result must be the StepResult of Environment.step() or rollout(), got {type(result).__name__}: "
            "an EvalSample has it as step_result"
        )
    end = result.end
    # What broke is never scored: a reward that was computed before it broke says nothing of the policy.
    scored = None if end.outcome.is_lost else result.reward
    trajectories = result.recorded_trajectories
    token_rewards: list[NDArray[np.float64] | None] = [None] * len(trajectories)
    if scored is not None and placement is not None:
        token_rewards = rewards_of_paths(scored, result, placement=placement)
    fields: dict[str, Any] = {
        "group_id": group_id,
        "rollout_id": rollout_id or uuid.uuid4().hex,
        "end": end,
        "reward": None if scored is None else scored.reward,
        "metadata": dict(metadata or {}),
    }
    trained = [each for each in zip(trajectories, token_rewards, strict=True) if each[0].trainable]
    # A whole rollout without a trajectory is one of a model without token data.
    if not trained and not end.outcome.is_lost and (end.is_limit or trajectories):
        # Without a sample it would be run again until it is trained, and would be missing in its group.
        nothing = np.zeros(0, dtype=np.int32)
        return [TrainingSample(token_ids=nothing, prompt_length=0, loss_mask=nothing.astype(np.uint8), **fields)]
    return _samples(trained, experts_shape=experts_shape, **fields)


def samples_from_model(
    model: Any,
    *,
    reward: float | None = None,
    end: End = ANSWERED,
    group_id: str | None = None,
    rollout_id: str | None = None,
    experts_shape: tuple[int, int] | None = None,
) -> list[TrainingSample]:
    """The samples of a model's agents since its last `reset`, without an environment.

    Args:
        model: A model with `trajectories` (`SGLangModel`), or with a `token_manager` alone.
        group_id: Id that all rollouts of the prompt share.
        rollout_id: Id of this rollout; a random one if None.
        experts_shape: `(layers, top_k)` of routed experts.

    Raises:
        TypeError: The model has no token data.
    """
    exported = trajectories_of(model)
    if exported is None:
        raise TypeError(f"{type(model).__name__} has no token data: expected trajectories or a token_manager")
    return _samples(
        [(each, None) for each in exported if each.trainable],
        experts_shape=experts_shape,
        reward=reward,
        group_id=group_id,
        rollout_id=rollout_id or uuid.uuid4().hex,
        end=end,
    )


def _samples(paths: Sequence[tuple[Trajectory, NDArray[np.float64] | None]], **fields: Any) -> list[TrainingSample]:
    """A sample a path, with its token rewards. Skips paths without trained tokens, unless every path is one."""
    samples = []
    for trajectory, rewards_of_tokens in paths:
        if trajectory.is_discarded:
            continue
        tokens = trajectory.tokens
        logprobs, mask = tokens.logprobs_array, tokens.loss_mask_array
        elsewhere = tokens.output_mask_array & (1 - mask)
        samples.append(
            TrainingSample(
                token_ids=tokens.token_ids_array,
                prompt_length=tokens.prompt_length,
                loss_mask=mask,
                trained_elsewhere=elsewhere if elsewhere.any() else None,
                # None at all were asked for. Single ones that are missing stay NaN: an error where they are trained.
                logprobs=None if len(logprobs) and np.isnan(logprobs).all() else logprobs,
                weight_versions=tokens.weight_versions,
                routed_experts=trajectory.routed_experts,
                sampling_mask=trajectory.sampling_mask,
                media=tuple(trajectory.media),
                token_rewards=rewards_of_tokens,
                agent_name=trajectory.agent_name or "agent",
                agent_id=trajectory.agent_id,
                role=trajectory.role,
                parent=trajectory.parent,
                finish_reason=trajectory.finish_reason,
                **fields,
            )
        )
    return [sample for sample in samples if sample.trained_tokens] or samples[:1]
