"""One GRPO step: group-relative advantages and the clipped objective, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from strands_env.training import TrainingSample, group_advantages

TRUNCATED_AT = 2.0
"""Largest importance weight of a rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStatistics:
    """An update, seen before it was made.

    Attributes:
        sequence_gap: Mean over rollouts of the summed log-probability of the sampled tokens (as the sampler recorded
            them) minus that of the trained tokens (as the trainer computes them), in nats: 0 when the trainer trains
            what was sampled.
        max_token_gap: Largest difference of a token's log-probability between sampler and trainer; None where the
            trained tokens have no recorded one.
        k3: Mean per-token estimate of KL(sampler || trainer) (Schulman's k3); None likewise.
        gradient_norm: Norm of the gradient before clipping.
        weight: Mean importance weight of the rollouts; 1 without correction.
    """

    sequence_gap: float
    max_token_gap: float | None
    k3: float | None
    gradient_norm: float
    weight: float


def token_logprobs(model: Any, samples: Sequence[TrainingSample], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of every token but the first, and the loss mask, both `[samples, longest - 1]`."""
    longest = max(len(sample) for sample in samples)
    ids = torch.full((len(samples), longest), pad, dtype=torch.long)
    mask = torch.zeros(len(samples), longest, device=model.device)
    for row, sample in enumerate(samples):
        ids[row, : len(sample)] = torch.from_numpy(sample.token_ids.astype(np.int64))
        mask[row, : len(sample)] = torch.from_numpy(sample.loss_mask.astype(np.float32))
    ids = ids.to(model.device)
    logits = model(input_ids=ids).logits[:, :-1].float()
    logprobs = torch.log_softmax(logits, dim=-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    return logprobs, mask[:, 1:]


def recorded_logprobs(samples: Sequence[TrainingSample], width: int) -> torch.Tensor | None:
    """The sampler's log-probabilities, `[samples, width]`, 0 on untrained tokens; None if there are none."""
    if any(sample.logprobs is None for sample in samples):
        return None
    values = torch.zeros(len(samples), width)
    for row, sample in enumerate(samples):
        logprobs = np.where(sample.loss_mask == 1, sample.logprobs, 0.0)[1:]
        values[row, : len(logprobs)] = torch.from_numpy(logprobs)
    return values


def update(
    model: Any,
    optimizer: Any,
    samples: Sequence[TrainingSample],
    sampled: Sequence[TrainingSample],
    *,
    pad: int,
    weighed: Sequence[TrainingSample] | None = None,
    clip: float = 0.2,
    micro_batch: int = 16,
) -> StepStatistics:
    """Make one optimiser step on a batch.

    Args:
        model: The policy.
        optimizer: Its optimiser.
        samples: The trained samples.
        sampled: The samples as they were sampled, in the same order; the same samples in the token-exact arm.
        pad: Padding id.
        weighed: Weight each rollout by the probability of these samples over that of what was sampled, at most
            `TRUNCATED_AT`. Given what is trained, this is importance sampling of whole sequences (tokens of different
            encodings cannot be paired); given the re-tokenised samples beside token-exact training, it is a control
            whose updates are shrunk equally. None: all weights are 1.
        clip: Range of the probability ratio.
        micro_batch: Samples of one forward pass; the gradient is that of the whole batch.
    """
    advantages = torch.tensor(
        group_advantages(
            [sample.reward for sample in samples],
            group_ids=[sample.group_id for sample in samples],
            rollout_ids=[sample.rollout_id for sample in samples],
        ),
        dtype=torch.float32,
        device=model.device,
    )
    tokens = sum(sample.trained_tokens for sample in samples)
    gaps, weights, k3, largest, is_recorded = 0.0, 0.0, 0.0, 0.0, True
    optimizer.zero_grad(set_to_none=False)  # Adam goes on by its momentum where a batch has no gradient
    for part in _parts(samples, advantages.tolist(), micro_batch):
        trained = [samples[i] for i in part]
        own = torch.tensor([_recorded_sum(sampled[i]) for i in part], device=model.device)
        advantage = advantages[part]
        with torch.set_grad_enabled(bool(advantage.any())):  # equal rewards of a group give no gradient
            logprobs, mask = token_logprobs(model, trained, pad)
        recorded = recorded_logprobs(trained, logprobs.shape[1])
        old = logprobs.detach() if recorded is None else recorded.to(model.device)
        gap = own - (logprobs.detach() * mask).sum(1)
        weight = torch.ones_like(gap)
        if weighed is not None:
            with torch.no_grad():
                likelihood, weighed_mask = token_logprobs(model, [weighed[i] for i in part], pad)
            weight = torch.exp((likelihood * weighed_mask).sum(1) - own).clamp(max=TRUNCATED_AT)
        if logprobs.requires_grad:
            ratio = torch.exp((logprobs - old) * mask)
            scale = (advantage * weight)[:, None]
            gain = torch.minimum(ratio * scale, ratio.clamp(1 - clip, 1 + clip) * scale)
            (-(gain * mask).sum() / tokens).backward()
        difference = (logprobs.detach() - old) * mask
        gaps, weights = gaps + float(gap.sum()), weights + float(weight.sum())
        k3 += float(((torch.exp(difference) - 1 - difference) * mask).sum())
        largest = max(largest, float(difference.abs().max()))
        is_recorded = is_recorded and recorded is not None
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return StepStatistics(
        sequence_gap=gaps / len(samples),
        max_token_gap=largest if is_recorded else None,
        k3=k3 / tokens if is_recorded else None,
        gradient_norm=float(norm),
        weight=weights / len(samples),
    )


def _parts(samples: Sequence[TrainingSample], advantages: Sequence[float], size: int) -> list[list[int]]:
    """Indices of micro-batches: samples with a gradient apart from those without, and those of like length together."""
    parts = []
    for is_trained in (True, False):
        chosen = [i for i, advantage in enumerate(advantages) if (advantage != 0) == is_trained]
        chosen.sort(key=lambda i: len(samples[i]))
        parts += [chosen[start : start + size] for start in range(0, len(chosen), size)]
    return parts


def _recorded_sum(sample: TrainingSample) -> float:
    """Log-probability of everything that was sampled, as the sampler recorded it."""
    return float(np.sum(np.where(sample.loss_mask == 1, sample.logprobs, 0.0)))
