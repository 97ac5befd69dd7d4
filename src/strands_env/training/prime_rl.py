"""prime-rl: the fields of its `TrainingSample`. Written against prime-rl 559b44772 (2026-08-21).

SGLang is not an engine of prime-rl, so this exports finished rollouts. Routed experts are refused: prime-rl replays a
row for every token, and the last token of a path was never fed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from strands_env.training.export import check_fields, reference_logprobs, token_advantages
from strands_env.training.sample import InvalidSampleError, TrainingSample


def training_sample(
    sample: TrainingSample,
    *,
    env_name: str,
    temperature: float,
    advantage: float | NDArray[np.float64] | None = None,
) -> dict[str, Any]:
    """A path, every field over the full length. A token is trained in the first path that contains it, as there.

    `rl_weights` is there where the sample has a `loss_weight` other than 1.
    The teacher's log-probabilities (`score_with_teacher`) are `ref_logprobs`; `ref_kl_weights` is for you to set.

    Args:
        temperature: That of the sampling; prime-rl divides logits by it.
        advantage: Advantage of the rollout, or of each token (`turn_advantages`); None leaves it to the orchestrator.

    Raises:
        InvalidSampleError: A trained token has no log-probability, or the sample has routed experts or images.
        ValueError: `advantage` is neither a number nor one for each token.
    """
    if sample.routed_experts is not None:
        raise InvalidSampleError(
            f"rollout {sample.rollout_id!r} has routed experts, which this export does not carry; prime-rl would "
            "train without replaying them: sample with return_routed_experts=False"
        )
    count = len(sample)
    mask = [bool(value) for value in sample.trained_mask(weight_follows=True)]
    fields = {
        "token_ids": sample.token_ids.tolist(),
        "mask": mask,
        "logprobs": sample.full_logprobs(),
        "temperatures": [float(temperature)] * count,
        "env_name": env_name,
        "ref_logprobs": None if sample.teacher_logprobs is None else reference_logprobs(sample),
        "advantages": None if advantage is None else token_advantages(sample, advantage).tolist(),
    }
    if sample.loss_weight != 1:
        fields["rl_weights"] = [float(sample.loss_weight) * trained for trained in mask]
    check_fields("prime-rl", "prime_rl.transports.rollouts.types", "TrainingSample", fields)
    return fields
