"""SkyRL: the `GeneratorOutput` of a custom generator. Written against skyrl 0.3.0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strands_env.training._export import full_logprobs, one_path, token_level_rewards, trained_mask
from strands_env.training.sample import InvalidSampleError, SampleStatus, TrainingSample

VERSION = "0.3.0"

_STOP_REASONS = {SampleStatus.COMPLETED: "stop", SampleStatus.TRUNCATED: "length"}


def generator_output(
    rollouts: Sequence[Sequence[TrainingSample]],
    *,
    trajectory_ids: Sequence[Any] | None = None,
    step_wise: bool = False,
    token_rewards: bool = False,
    routed_experts: bool = False,
    rollout_metrics: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """What `GeneratorInterface.generate` returns for the rollouts of an input batch, in its order.

    Args:
        rollouts: The samples of every rollout.
        trajectory_ids: `trajectory_ids` of the input batch, one a rollout. Needed for `step_wise`.
        step_wise: Every path is a row of its own, the paths of a rollout together; otherwise one path stands for it.
        token_rewards: Per-token rewards instead of one number a row.
        routed_experts: Add `rollout_expert_indices`; not with `step_wise`.
        rollout_metrics: Metrics of the batch.

    Raises:
        InvalidSampleError: A rollout has no sample, or what is asked for is not in it.
        ValueError: Options that exclude each other.
    """
    if step_wise and (trajectory_ids is None or routed_experts):
        raise ValueError("step_wise needs trajectory_ids, and SkyRL takes no routed experts with it")
    if trajectory_ids is not None and len(trajectory_ids) != len(rollouts):
        raise ValueError(f"got {len(trajectory_ids)} trajectory ids for {len(rollouts)} rollouts")
    rows: list[tuple[int, TrainingSample, bool]] = []
    for index, samples in enumerate(rollouts):
        paths = list(samples) if step_wise and samples else [one_path(samples)]
        rows.extend((index, path, number == len(paths) - 1) for number, path in enumerate(paths))
    output: dict[str, Any] = {
        "prompt_token_ids": [sample.token_ids[: sample.prompt_length].tolist() for _, sample, _ in rows],
        "response_ids": [sample.token_ids[sample.prompt_length :].tolist() for _, sample, _ in rows],
        "rewards": [_reward(sample, token_rewards) for _, sample, _ in rows],
        "loss_masks": [trained_mask(sample)[sample.prompt_length :] for _, sample, _ in rows],
        "stop_reasons": [_STOP_REASONS.get(sample.status, "error") for _, sample, _ in rows],
        "rollout_logprobs": [full_logprobs(sample)[sample.prompt_length :] for _, sample, _ in rows],
        "rollout_metrics": rollout_metrics,
    }
    if trajectory_ids is not None:
        output["trajectory_ids"] = [trajectory_ids[index] for index, _, _ in rows]
    if step_wise:
        output["is_last_step"] = [is_last for _, _, is_last in rows]
    if routed_experts:
        output["rollout_expert_indices"] = [_experts(sample) for _, sample, _ in rows]
    return output


def _reward(sample: TrainingSample, per_token: bool) -> float | list[float]:
    if per_token:
        return token_level_rewards(sample)
    return float(sample.reward or 0.0) if sample.is_usable else 0.0


def _experts(sample: TrainingSample) -> list[Any]:
    experts = sample.experts_array()
    if experts is None:
        raise InvalidSampleError("routed experts are asked for and the rollout has none")
    listed: list[Any] = experts.tolist()
    return listed
