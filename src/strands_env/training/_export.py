"""What the trainer adapters share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from strands_env.training.sample import InvalidSampleError, TrainingSample


def one_path(samples: Sequence[TrainingSample]) -> TrainingSample:
    """The path that stands for a rollout where a trainer takes one: that on which most trained tokens were sampled.

    Of equals it is the later. It trains all of them, those too that another path trains where every path is exported;
    what was sampled on other paths alone is not trained.

    Raises:
        InvalidSampleError: There is no sample.
    """
    if not samples:
        raise InvalidSampleError("the rollout has no sample: nothing was sampled, or nothing that is to be trained")
    paths = [with_all_sampled_tokens(sample) for sample in samples]
    return max(enumerate(paths), key=lambda pair: (pair[1].trained_tokens, pair[0]))[1]


def with_all_sampled_tokens(sample: TrainingSample) -> TrainingSample:
    """The sample with loss on the tokens that other samples of its rollout train. For a path that is exported alone."""
    if sample.trained_elsewhere is None:
        return sample
    return replace(sample, loss_mask=sample.loss_mask | sample.trained_elsewhere, trained_elsewhere=None)


def trained_mask(sample: TrainingSample) -> list[int]:
    """The loss mask over all tokens, all 0 where the sample may not be trained (failed, aborted, without reward)."""
    mask: list[int] = sample.loss_mask.tolist() if sample.is_usable else [0] * len(sample)
    return mask


def full_logprobs(sample: TrainingSample) -> list[float]:
    """Log-probabilities over all tokens, 0.0 where no loss is.

    Raises:
        InvalidSampleError: A trained token has none.
    """
    if not sample.is_usable:
        return [0.0] * len(sample)
    return [0.0] * sample.prompt_length + sample.response_logprobs()


def token_level_rewards(sample: TrainingSample) -> list[float]:
    """Rewards over the response: those of turns and spans, and the rollout's on the last trained token."""
    rewards = np.zeros(sample.response_length)
    if not sample.is_usable:
        return [0.0] * sample.response_length
    if sample.token_rewards is not None:
        rewards += np.nan_to_num(sample.token_rewards[sample.prompt_length :])
    trained = np.flatnonzero(sample.loss_mask[sample.prompt_length :])
    rewards[trained[-1]] += sample.reward or 0.0
    listed: list[float] = rewards.tolist()
    return listed
