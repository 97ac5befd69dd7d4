"""AReaL: the tensor dict of one trajectory. Written against areal 1.0.4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strands_env.training.sample import InvalidSampleError, TrainingSample


def tensor_dict(sample: TrainingSample, *, version_of: Callable[[str], int] = int) -> dict[str, Any] | None:
    """A path as AReaL's workflows return it: batch dimension 1, every field over the full length.

    Args:
        version_of: Makes AReaL's version number of a weight version. Tokens that were not sampled have -1.

    Returns:
        `input_ids` int64, `loss_mask` int32, `logprobs` float32, `versions` int32, `attention_mask` bool, all
        `[1, tokens]`, and `rewards` float32 `[1]`. None for a sample that may not be trained (failed, aborted, without
        reward): AReaL leaves a rollout out of its batch whose workflow returns None.

    Raises:
        InvalidSampleError: A trained token has no log-probability or no weight version, the version is not a number,
            or the sample has images.
    """
    import torch

    if not sample.is_usable:
        return None
    mask, versions = sample.trained_mask(), sample.version_numbers(version_of)
    if (highest := int(versions.max())) > 2**31 - 1:
        raise InvalidSampleError(f"AReaL's versions are int32, and a weight version is {highest}: give version_of=")
    return {
        "input_ids": torch.tensor([sample.token_ids.tolist()], dtype=torch.int64),
        "loss_mask": torch.tensor([mask], dtype=torch.int32),
        "logprobs": torch.tensor([sample.full_logprobs()], dtype=torch.float32),
        "versions": torch.tensor(versions[None], dtype=torch.int32),
        "attention_mask": torch.ones((1, len(sample)), dtype=torch.bool),
        "rewards": torch.tensor([float(sample.reward or 0.0)], dtype=torch.float32),
    }
