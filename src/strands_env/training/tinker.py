"""tinker: `Datum`s for its importance-sampling and PPO losses. Written against tinker 0.38.0."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strands_env.training.export import reference_logprobs, token_advantages, written_for
from strands_env.training.sample import InvalidSampleError, TrainingSample


def loss_inputs(
    sample: TrainingSample, *, advantage: float | NDArray[np.float64], kl_penalty_coef: float = 0.0
) -> dict[str, Any]:
    """`loss_fn_inputs` of a path: everything shifted by one, so that position `i` is about token `i + 1`.

    Args:
        advantage: Advantage of the rollout, put on every trained token, or of each token (`turn_advantages`).
        kl_penalty_coef: For on-policy distillation: weight of the sampled log-probability less the teacher's
            (`score_with_teacher`), in nats, subtracted from the advantage of each token, as by the cookbook.

    Returns:
        `target_tokens` int64, `logprobs`, `advantages` (times `loss_weight`) and `mask` float32, all `[tokens - 1]`.

    Raises:
        InvalidSampleError: A trained token has no log-probability, or none of the teacher.
        ValueError: `advantage` is neither a number nor one for each token.
    """
    mask = np.array(sample.trained_mask(weight_follows=True)[1:], dtype=np.float32)
    logprobs = np.array(sample.full_logprobs()[1:], dtype=np.float32)
    advantages = token_advantages(sample, advantage)[1:].astype(np.float32)
    if kl_penalty_coef:
        teacher = np.array(reference_logprobs(sample)[1:], dtype=np.float32)
        advantages -= np.float32(kl_penalty_coef) * mask * (logprobs - teacher)
    return {
        "target_tokens": sample.token_ids[1:].astype(np.int64),
        "logprobs": logprobs,
        "advantages": advantages * np.float32(sample.loss_weight),  # the losses are sums of multiples of these
        "mask": mask,
    }


def soft_targets(sample: TrainingSample, top_k: int) -> dict[str, Any]:
    """`loss_fn_inputs` of the loss `cross_entropy` towards the teacher's most likely tokens, renormalised over them.

    Returns:
        `target_tokens` int64 and `weights` float32, `[tokens - 1, top_k]`; the weights of a trained token sum to
        the sample's `loss_weight`, those of others are 0.

    Raises:
        InvalidSampleError: The sample may be trained, and the teacher kept fewer tokens at each position.
    """
    mask = np.array(sample.trained_mask(weight_follows=True)[1:], dtype=np.float32)[:, None]
    if not sample.is_usable:
        return {"target_tokens": np.zeros((len(mask), top_k), np.int64), "weights": np.zeros((len(mask), top_k), "f4")}
    ids, logprobs = sample.teacher_top_ids, sample.teacher_top_logprobs
    if ids is None or logprobs is None or ids.shape[1] < top_k:
        raise InvalidSampleError(f"rollout {sample.rollout_id!r} was not scored with top_k={top_k}")
    weights = np.nan_to_num(np.exp(logprobs[1:, :top_k])) * mask  # best first; the prompt has none
    total = weights.sum(axis=1, keepdims=True)
    # The teacher kept only its likeliest tokens: the remaining probability is spread over them.
    return {
        "target_tokens": np.maximum(ids[1:, :top_k], 0).astype(np.int64),
        "weights": weights / np.where(total > 0, total, 1) * np.float32(sample.loss_weight),
    }


def datum(sample: TrainingSample, *, advantage: float | NDArray[np.float64], kl_penalty_coef: float = 0.0) -> Any:
    """A `tinker.Datum`; `TrainerVersionError` where the installed tinker does not take it.

    `mask` is left out: the losses take it for an unknown input, and advantages are 0 outside it.
    """
    inputs = loss_inputs(sample, advantage=advantage, kl_penalty_coef=kl_penalty_coef)
    inputs.pop("mask")
    with written_for("tinker"):
        types: Any = importlib.import_module("tinker.types")
        model_input = types.ModelInput.from_ints(sample.token_ids[:-1].tolist())
        return types.Datum(model_input=model_input, loss_fn_inputs=inputs)
