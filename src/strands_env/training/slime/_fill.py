"""Training samples into slime's `Sample`."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strands_env.training.sample import InvalidSampleError, KeptSets, SampleStatus, TrainingSample

_STATUS = {
    SampleStatus.COMPLETED: "COMPLETED",
    SampleStatus.TRUNCATED: "TRUNCATED",
    SampleStatus.ABORTED: "ABORTED",
    SampleStatus.FAILED: "FAILED",
}


def set_status(sample: Any, status: SampleStatus) -> None:
    """Set slime's status."""
    sample.status = getattr(type(sample).Status, _STATUS[status])


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The optional data that every sample of a run must have, by its arguments alone.

    Attributes:
        experts_shape: `(layers, top_k)` where the trainer replays routed experts, else None.
        top_p: Whether it replays the survivors of top-p.
    """

    experts_shape: tuple[int, int] | None = None
    top_p: bool = False

    @classmethod
    def of(cls, args: Any, *, evaluation: bool) -> Needs:
        """What training needs; an evaluation needs nothing, and samples with parameters of its own."""
        if evaluation:
            return cls()
        replays = bool(getattr(args, "use_rollout_routing_replay", False))
        return cls(
            experts_shape=(int(args.num_layers), int(args.moe_router_topk)) if replays else None,
            top_p=float(getattr(args, "rollout_top_p", None) or 1.0) != 1.0,
        )


def fill(sample: Any, source: TrainingSample, needs: Needs, *, response: str) -> None:
    """Write a training sample into slime's sample. Which fields are set depends on `needs` alone.

    Raises:
        InvalidSampleError: What is needed is missing: a log-probability, experts, top-p data.
    """
    source.validate(logprobs_required=True)
    experts = kept = None
    if needs.experts_shape is not None:
        experts = source.experts_array()
        if experts is None:
            raise InvalidSampleError("the trainer replays routed experts and the rollout has none")
    if needs.top_p:
        kept = source.kept.part(source.prompt_length, len(source)) if source.kept is not None else None
        if kept is None:
            raise InvalidSampleError("rollout_top_p is not 1, and the server returned no top-p token ids")
    _set_arrays(
        sample,
        token_ids=source.token_ids,
        prompt_length=source.prompt_length,
        mask=source.loss_mask[source.prompt_length :],
        logprobs=source.response_logprobs(),
        experts=experts,
        kept=kept,
    )
    sample.response = response
    sample.weight_versions = versions_of(source)
    set_status(sample, source.status)


def versions_of(source: TrainingSample) -> list[str]:
    """The weight versions in order of first use, each run once."""
    versions: list[str] = []
    for span in source.weight_versions:
        if span.version is not None and versions[-1:] != [span.version]:
            versions.append(span.version)
    return versions


def fill_unusable(sample: Any, source: TrainingSample | None, args: Any, needs: Needs) -> None:
    """Make a sample that slime can carry and that trains nothing: mask 0, removed, with a numeric reward.

    The fields are those that every sample of the run has, for slime decides by the first sample of a batch. A rollout
    that sampled nothing is given one masked token, since slime's tensors cannot be empty.
    """
    if source is not None and source.response_length:
        ids, prompt_length = source.token_ids, source.prompt_length
        logprobs = np.zeros(source.response_length) if source.logprobs is None else source.logprobs[prompt_length:]
        values = np.where(np.isfinite(logprobs), logprobs, 0.0)
        sample.weight_versions = versions_of(source)
    else:
        prompt = (source.token_ids.tolist() if source is not None else []) or [0]
        ids, prompt_length = np.array([*prompt, prompt[-1]], dtype=np.int32), len(prompt)
        values = np.zeros(1)
    length = len(ids) - prompt_length
    experts = None
    if needs.experts_shape is not None:
        layers, top_k = needs.experts_shape
        experts = np.broadcast_to(np.arange(top_k, dtype=np.int32), (len(ids) - 1, layers, top_k)).copy()
    empty = KeptSets(ids=np.zeros(0, dtype=np.int32), offsets=np.zeros(length + 1, dtype=np.int64))
    _set_arrays(
        sample,
        token_ids=ids,
        prompt_length=prompt_length,
        mask=np.zeros(length, dtype=np.uint8),
        logprobs=values.tolist(),
        experts=experts,
        kept=empty if needs.top_p else None,
    )
    sample.remove_sample = True
    sample.reward = reward_value(args, 0.0)


def reward_value(args: Any, reward: float) -> Any:
    """A reward as slime reads it: a number, or a dict where `reward_key` is set."""
    key = getattr(args, "reward_key", None)
    return {key: reward} if key else reward


def read_reward(args: Any, sample: Any) -> float | None:
    """The reward of a sample as a number; None where there is none."""
    value = getattr(sample, "reward", None)
    key = getattr(args, "reward_key", None)
    if isinstance(value, dict):
        value = value.get(key) if key else None
    return float(value) if isinstance(value, int | float) else None


def clear(sample: Any) -> None:
    """Forget an earlier attempt, so that nothing is doubled."""
    sample.tokens, sample.response, sample.response_length = [], "", 0
    sample.loss_mask = sample.rollout_log_probs = sample.reward = None
    sample.weight_versions = []
    sample.remove_sample = False
    for name in ("rollout_routed_experts", "rollout_top_p_token_ids", "rollout_top_p_token_offsets"):
        if hasattr(sample, name):
            setattr(sample, name, None)


def sibling_of(sample: Any) -> Any:
    """Another sample of the same rollout; containers are its own."""
    sibling = copy.copy(sample)
    sibling.metadata = copy.copy(sample.metadata)
    for name in ("spec_info", "prefix_cache_info"):
        if hasattr(sample, name):
            setattr(sibling, name, type(getattr(sample, name))())  # counted once, on the first
    sibling.non_generation_time = 0.0
    return sibling


def _set_arrays(
    sample: Any,
    *,
    token_ids: NDArray[np.int32],
    prompt_length: int,
    mask: NDArray[np.uint8],
    logprobs: list[float],
    experts: NDArray[np.int32] | None,
    kept: KeptSets | None,
) -> None:
    sample.tokens = token_ids.tolist()
    sample.response_length = len(token_ids) - prompt_length
    sample.loss_mask = mask.tolist()
    sample.rollout_log_probs = logprobs
    if experts is not None:
        sample.rollout_routed_experts = experts
    if kept is not None:
        sample.rollout_top_p_token_ids = kept.ids.tolist()
        sample.rollout_top_p_token_offsets = kept.offsets.tolist()
