"""SkyRL: the `GeneratorOutput` of a custom generator. Written against skyrl 0.4.0.

```python
rollouts = await collect_rollouts(runs)  # strands_env.training: a rollout that breaks is run again
return generator_output(rollouts, trajectory_ids=input_batch["trajectory_ids"])
```
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from strands_env.core.termination import UNKNOWN
from strands_env.training.export import (
    check_fields,
    image_tensors,
    one_row,
    small_experts,
    status_of,
    token_level_rewards,
)
from strands_env.training.sample import InvalidSampleError, TrainingSample
from strands_sglang.trajectory.images import ProcessorExpander

logger = logging.getLogger(__name__)

_STOP_REASONS = {"completed": "stop", "truncated": "length", "failed": "error"}


def generator_output(
    rollouts: Sequence[Sequence[TrainingSample]],
    *,
    trajectory_ids: Sequence[Any] | None = None,
    group_ids: Sequence[Hashable] | None = None,
    step_wise: bool = False,
    token_rewards: bool = False,
    routed_experts: bool = False,
    expander: ProcessorExpander | None = None,
) -> dict[str, Any]:
    """The result of `GeneratorInterface.generate` for the rollouts of an input batch, in its order.

    SkyRL counts every row in its group's baseline. A rollout that may not be trained, or has no sample, is a row
    without loss whose reward is the mean of the usable rollouts of its group, so that the baseline stays theirs.

    Args:
        trajectory_ids: `trajectory_ids` of the input batch, one per rollout. Needed for `step_wise`.
        group_ids: Group of every rollout. If None, the `instance_id` of the trajectory ids, otherwise the samples'
            `group_id`, which a rollout without samples does not have.
        step_wise: Every path is a row, the paths of a rollout together; otherwise one path represents it.
        token_rewards: Per-token rewards instead of one number per row.
        routed_experts: Add `rollout_expert_indices`, an array per row. A rollout without them is not trained.
        expander: `strands_sglang.trajectory.images.image_expander(model)` of a vision model: adds `pixel_values` and
            `image_grid_thw`, a tensor per row, empty for a row without images. Without it, images are refused.

    Raises:
        InvalidSampleError: A trained token has no log-probability, no rollout has the routed experts asked for, or a
            rollout has images that cannot be given to the trainer.
        ValueError: Options that exclude each other, lists of other lengths, or a rollout whose group nothing says.
    """
    if step_wise and trajectory_ids is None:
        raise ValueError("step_wise needs trajectory_ids")
    for name, ids in (("trajectory", trajectory_ids), ("group", group_ids)):
        if ids is not None and len(ids) != len(rollouts):
            raise ValueError(f"got {len(ids)} {name} ids for {len(rollouts)} rollouts")
    groups = _groups(rollouts, trajectory_ids) if group_ids is None else list(group_ids)
    shape = _experts_shape(rollouts) if routed_experts else None
    rows: list[TrainingSample] = []
    owners: list[int] = []  # the rollout of each row
    for index, samples in enumerate(rollouts):
        # A response may not be empty; the steps of a trajectory must follow each other.
        paths = [sample for sample in samples if sample.response_length] if step_wise else []
        if not paths or (shape is not None and any(path.experts_shape is None for path in paths)):
            paths = [_row(samples, shape)]
        rows += paths
        owners += [index] * len(paths)
    lasts = [index != following for index, following in zip(owners, [*owners[1:], None], strict=True)]
    # SkyRL has no row without a reward: one that is not trained gets its group's mean, which moves no advantage.
    scores: dict[Hashable, list[float]] = defaultdict(list)
    for row, index, is_last in zip(rows, owners, lasts, strict=True):
        if is_last and row.is_scored:  # SkyRL sums the rewards of a row; of a rollout in steps it takes the last row
            scores[groups[index]].append(math.fsum(_rewards(row, 0.0) if token_rewards else [row.reward or 0.0]))
    fillers = [math.fsum(own) / len(own) if (own := scores[groups[index]]) else 0.0 for index in owners]
    rewards: list[Any] = [
        _rewards(row, filler) if token_rewards else float(row.reward or 0.0) if row.is_scored else filler
        for row, filler in zip(rows, fillers, strict=True)
    ]
    output: dict[str, Any] = {
        "prompt_token_ids": [row.token_ids[: row.prompt_length].tolist() for row in rows],
        "response_ids": [row.token_ids[row.prompt_length :].tolist() for row in rows],
        "rewards": rewards,
        "loss_masks": [row.trained_mask(images_follow=expander is not None)[row.prompt_length :] for row in rows],
        "stop_reasons": [_STOP_REASONS[status_of(row.end)] for row in rows],
        "rollout_logprobs": [row.full_logprobs()[row.prompt_length :] for row in rows],
        "rollout_metrics": None,
    }
    if trajectory_ids is not None:
        output["trajectory_ids"] = [trajectory_ids[index] for index in owners]
    if step_wise:
        output["is_last_step"] = lasts
    if routed_experts:
        output["rollout_expert_indices"] = [small_experts(row, np.uint8, np.int16, np.int32) for row in rows]
    if expander is not None and any(row.media for row in rows):
        tensors = [image_tensors(row, expander) if row.media else None for row in rows]
        some = next(each for each in tensors if each is not None)
        empty = {name: tensor[:0] for name, tensor in some.items()}  # SkyRL takes no None among them
        output |= {name: [(each or empty)[name] for each in tensors] for name in empty}
    check_fields("skyrl", "skyrl.train.generators.base", "GeneratorOutput", output)
    return output


def _rewards(row: TrainingSample, filler: float) -> list[float]:
    """A reward per token; of a row that is not trained they sum to its own reward or to the filler."""
    if row.is_usable:
        return token_level_rewards(row)
    return [0.0] * (row.response_length - 1) + [float(row.reward or 0.0) if row.is_scored else filler]


def _row(samples: Sequence[TrainingSample], experts_shape: tuple[int, int] | None) -> TrainingSample:
    try:
        return one_row(samples, experts_shape=experts_shape)
    except InvalidSampleError as error:
        logger.warning("error=<%s> | rollout is not trained", error)
        failed = [replace(sample, end=UNKNOWN, reward=None) for sample in samples]
        return one_row(failed, experts_shape=experts_shape)


def _experts_shape(rollouts: Sequence[Sequence[TrainingSample]]) -> tuple[int, int]:
    for samples in rollouts:
        for sample in samples:
            if sample.routed_experts is not None and sample.experts_shape is not None:
                return sample.experts_shape
    raise InvalidSampleError("no rollout of the batch has routed experts: sample with return_routed_experts=True")


def _groups(rollouts: Sequence[Sequence[TrainingSample]], trajectory_ids: Sequence[Any] | None) -> list[Hashable]:
    """The group of every rollout. If nothing names it, the batch is one group."""
    if trajectory_ids is not None:
        return [getattr(trajectory_id, "instance_id", None) for trajectory_id in trajectory_ids]
    groups: list[Hashable] = [samples[0].group_id if samples else None for samples in rollouts]
    empty = [index for index, samples in enumerate(rollouts) if not samples]
    if empty and any(group is not None for group in groups):
        raise ValueError(f"rollouts {empty!r} have no sample that says their group: give group_ids or trajectory_ids")
    return groups
