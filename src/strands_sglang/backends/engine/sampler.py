"""Samples tokens and their logprobs from logits, with the server's meaning of a logprob.

A logprob is that of the distribution after penalties, grammar, logit bias and temperature, but before top-k, top-p and
min-p: those are not renormalised.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from strands_sglang.backends.engine.request import EngineSampling, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """One sampled token."""

    token: int
    logprob: float
    top: list[tuple[float, int]]
    """The most likely tokens, as many as were asked for: logprob and id."""
    ids: list[tuple[float, int]]
    """Logprobs of the ids asked for."""


def sample(logits: torch.Tensor, requests: Sequence[Request], stop_ids: Sequence[frozenset[int]]) -> list[Sampled]:
    """Sample one token for each request.

    Args:
        logits: `[requests, vocabulary]`, changed in place.
        stop_ids: Tokens that end each request, forbidden while it is shorter than `min_new_tokens`.
    """
    for row, request, stops in zip(logits, requests, stop_ids, strict=True):
        _shape(row, request, stops)
    logits /= torch.tensor([[request.params.temperature] for request in requests])
    logprobs = torch.log_softmax(logits, dim=-1)
    tokens = logprobs.argmax(dim=-1).tolist()
    for index, request in enumerate(requests):
        if not request.params.greedy:
            tokens[index] = _draw(logprobs[index], request.params, _uniform(request))
    return [
        Sampled(
            token=token,
            logprob=float(row[token]),
            top=top_logprobs(row, request.top_logprobs),
            ids=[(float(row[extra]), extra) for extra in request.token_ids_logprob or ()],
        )
        for token, row, request in zip(tokens, logprobs, requests, strict=True)
    ]


def top_logprobs(logprobs: torch.Tensor, count: int) -> list[tuple[float, int]]:
    """The `count` most likely tokens of a row, best first."""
    if not count:
        return []
    values, ids = logprobs.topk(count)
    return list(zip(values.tolist(), ids.tolist(), strict=True))


def _shape(logits: torch.Tensor, request: Request, stops: frozenset[int]) -> None:
    """Apply what changes the distribution: penalties on sampled tokens, minimum length, grammar, bias."""
    params = request.params
    if request.output and (params.frequency_penalty or params.presence_penalty or params.repetition_penalty != 1):
        counts = Counter(request.output)
        ids = torch.tensor(list(counts))
        seen = logits[ids] - params.presence_penalty - params.frequency_penalty * torch.tensor(list(counts.values()))
        logits[ids] = torch.where(seen < 0, seen * params.repetition_penalty, seen / params.repetition_penalty)
    if len(request.output) < params.min_new_tokens and stops:
        logits[list(stops)] = -torch.inf
    if request.matcher is not None:
        request.matcher.mask(logits)
    if params.logit_bias:
        logits[list(params.logit_bias)] += torch.tensor(list(params.logit_bias.values()))


def _uniform(request: Request) -> float:
    """A number in [0, 1) that depends on the seed and the position alone, so neither on the batch nor on retries."""
    position = len(request.prompt) + len(request.output)
    return float(np.random.Generator(np.random.Philox(key=request.seed % 2**64, counter=position)).random())


def _draw(logprobs: torch.Tensor, params: EngineSampling, uniform: float) -> int:
    """Invert the cumulative distribution of one row at `uniform`, after top-k, top-p and min-p."""
    probs = logprobs.double().exp()
    if params.top_k == -1 and params.top_p == 1 and params.min_p == 0:
        return _invert(probs, uniform)
    ordered, ids = probs.sort(descending=True, stable=True)
    if params.top_k > 0:
        ordered[params.top_k :] = 0
    if params.top_p < 1:
        ordered[(ordered.cumsum(0) - ordered) > params.top_p] = 0
    if params.min_p > 0:
        ordered[ordered < ordered[0] * params.min_p] = 0
    return int(ids[_invert(ordered, uniform)])


def _invert(probs: torch.Tensor, uniform: float) -> int:
    cumulative = probs.cumsum(0)
    index = int(torch.searchsorted(cumulative, uniform * cumulative[-1], right=True))
    return min(index, int(probs.nonzero()[-1]))  # rounding may point past the last possible token
