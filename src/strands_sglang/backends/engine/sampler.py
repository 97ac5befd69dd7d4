"""Samples tokens and their logprobs from logits, with the server's meaning of a logprob.

A logprob is that of the distribution after penalties, grammar, logit bias and temperature, but before top-k, top-p and
min-p: those are not renormalised.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch

from .generation import Decoding, Generation


def sample(logits: torch.Tensor, generations: Sequence[Generation]) -> list[tuple[int, float]]:
    """Sample one token for each generation, with its log-probability.

    Args:
        logits: `[generations, vocabulary]`, changed in place.
    """
    for row, generation in zip(logits, generations, strict=True):
        _shape(row, generation)
    logits /= torch.tensor([[generation.decoding.temperature] for generation in generations])
    logprobs = torch.log_softmax(logits, dim=-1)
    tokens = logprobs.argmax(dim=-1).tolist()
    for index, generation in enumerate(generations):
        if not generation.decoding.greedy:
            # By seed and position alone, so neither the batch nor a retry changes what is drawn.
            position = len(generation.prompt) + len(generation.output)
            noise = np.random.Generator(np.random.Philox(key=generation.seed % 2**64, counter=position))
            tokens[index] = _draw(logprobs[index], generation.decoding, float(noise.random()))
    return [(token, float(row[token])) for token, row in zip(tokens, logprobs, strict=True)]


def most_likely(logprobs: torch.Tensor, count: int) -> list[tuple[int, float]]:
    """The `count` most likely tokens of a row with their log-probabilities, best first."""
    if not count:
        return []
    values, ids = logprobs.topk(min(count, len(logprobs)))
    return list(zip(ids.tolist(), values.tolist(), strict=True))


def _shape(logits: torch.Tensor, generation: Generation) -> None:
    """Apply what changes the distribution: penalties on sampled tokens, minimum length, grammar, bias."""
    decoding, output = generation.decoding, generation.output
    if output and (decoding.frequency_penalty or decoding.presence_penalty or decoding.repetition_penalty != 1):
        counted = Counter(output)
        ids, counts = torch.tensor(list(counted)), torch.tensor(list(counted.values()))
        scores = logits[ids] - decoding.presence_penalty - decoding.frequency_penalty * counts
        # Divided, a negative logit would rise.
        logits[ids] = torch.where(
            scores < 0, scores * decoding.repetition_penalty, scores / decoding.repetition_penalty
        )
    if len(output) < decoding.min_new_tokens and generation.stops:
        logits[list(generation.stops)] = -torch.inf
    if generation.matcher is not None:
        generation.matcher.mask(logits)
    if decoding.logit_bias:
        logits[list(decoding.logit_bias)] += torch.tensor(list(decoding.logit_bias.values()))


def _draw(logprobs: torch.Tensor, decoding: Decoding, uniform: float) -> int:
    """Invert the cumulative distribution of one row at `uniform`, after top-k, top-p and min-p."""
    probs = logprobs.double().exp()  # in float32 the sum of a large vocabulary misses 1 by more than rare tokens weigh
    if decoding.top_k == -1 and decoding.top_p == 1 and decoding.min_p == 0:
        return _invert(probs, uniform)
    ordered, ids = probs.sort(descending=True, stable=True)
    if decoding.top_k > 0:
        ordered[decoding.top_k :] = 0
    if decoding.top_p < 1:
        # Without the token itself: the one that crosses the threshold stays, so at least one always does.
        ordered[(ordered.cumsum(0) - ordered) > decoding.top_p] = 0
    if decoding.min_p > 0:
        ordered[ordered < ordered[0] * decoding.min_p] = 0
    return int(ids[_invert(ordered, uniform)])


def _invert(probs: torch.Tensor, uniform: float) -> int:
    cumulative = probs.cumsum(0)
    index = int(torch.searchsorted(cumulative, uniform * cumulative[-1], right=True))
    return min(index, int(probs.nonzero()[-1]))  # rounding may point past the last possible token
