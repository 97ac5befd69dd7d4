"""tinker: `Datum`s for its importance-sampling and PPO losses. Written against tinker 0.38.0."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from strands_env.training.export import full_logprobs, trained_mask
from strands_env.training.sample import TrainingSample


def loss_inputs(sample: TrainingSample, *, advantage: float) -> dict[str, Any]:
    """`loss_fn_inputs` of a path: everything shifted by one, so that position `i` is about token `i + 1`.

    Args:
        advantage: Advantage of the rollout, put on every trained token.

    Returns:
        `target_tokens` int64, `logprobs`, `advantages` and `mask` float32, all `[tokens - 1]`.
    """
    mask = np.array(trained_mask(sample)[1:], dtype=np.float32)
    return {
        "target_tokens": sample.token_ids[1:].astype(np.int64),
        "logprobs": np.array(full_logprobs(sample)[1:], dtype=np.float32),
        "advantages": mask * np.float32(advantage),
        "mask": mask,
    }


def datum(sample: TrainingSample, *, advantage: float) -> Any:
    """A `tinker.Datum`; `ImportError` without tinker.

    `mask` is left out: the losses take it for an unknown input, and advantages are 0 outside it.
    """
    try:
        types = importlib.import_module("tinker.types")
    except ImportError as error:
        raise ImportError("datum() needs the package tinker: pip install tinker") from error
    inputs = loss_inputs(sample, advantage=advantage)
    inputs.pop("mask")
    model_input = types.ModelInput.from_ints(sample.token_ids[:-1].tolist())
    return types.Datum(model_input=model_input, loss_fn_inputs=inputs)
