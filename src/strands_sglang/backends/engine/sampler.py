"""Samples tokens and their logprobs from logits, with the server's meaning of a logprob.

A logprob is that of the distribution after penalties, grammar, logit bias and temperature, but before top-k, top-p and
min-p: those are not renormalised. Grammars (JSON schemas, regular expressions, EBNF) become token masks by xgrammar.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ...exceptions import BackendRequestError
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
            # By seed and position alone, so neither the batch nor a retry changes the drawn tokens.
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
    """Apply the changes of the distribution: penalties on sampled tokens, minimum length, grammar, bias."""
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


# ---- grammars


class GrammarCompiler:
    """Compiles grammars for one tokenizer; safe to call from any thread.

    Args:
        vocab_size: Rows of the model's output.
        stop_token_ids: Tokens that end a completed grammar.
    """

    def __init__(self, tokenizer: Any, *, vocab_size: int, stop_token_ids: Sequence[int]) -> None:
        import xgrammar

        self._vocab_size = vocab_size
        info = xgrammar.TokenizerInfo.from_huggingface(
            tokenizer, vocab_size=vocab_size, stop_token_ids=list(stop_token_ids) or None
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1)
        self._compile = functools.lru_cache(maxsize=64)(self._compile_uncached)

    def matcher(self, kind: str, text: str) -> Matcher:
        """Start an answer under a `json_schema`, `regex` or `ebnf`; `BackendRequestError` if it cannot be compiled."""
        import xgrammar

        try:
            compiled = self._compile(kind, text)
        except Exception as error:
            raise BackendRequestError(f"sampling_params[{kind!r}] cannot be compiled: {error}") from error
        return Matcher(xgrammar.GrammarMatcher(compiled), self._vocab_size)

    def _compile_uncached(self, kind: str, text: str) -> Any:
        if kind == "json_schema":
            if text == "$$ANY$$":
                return self._compiler.compile_builtin_json_grammar()
            json.loads(text)
            return self._compiler.compile_json_schema(text)
        return self._compiler.compile_regex(text) if kind == "regex" else self._compiler.compile_grammar(text)


class Matcher:
    """State of one answer in its grammar."""

    def __init__(self, matcher: Any, vocab_size: int) -> None:
        import xgrammar

        self._matcher = matcher
        self._apply = xgrammar.apply_token_bitmask_inplace
        self._bitmask = xgrammar.allocate_token_bitmask(1, vocab_size)

    @property
    def is_finished(self) -> bool:
        """Nothing more may follow."""
        return bool(self._matcher.is_terminated())

    def mask(self, logits: torch.Tensor) -> None:
        """Set the logits `[vocabulary]` of forbidden tokens to minus infinity."""
        if self._matcher.fill_next_token_bitmask(self._bitmask):
            self._apply(logits[None], self._bitmask)

    def accept(self, token: int) -> bool:
        """Advance by a sampled token; False if the grammar forbids it."""
        return bool(self._matcher.accept_token(token))
