"""Continuous batching: each step advances every running sequence, and sequences come and go between steps.

A sequence is prompt and output; its keys and values cover a first part of it. A step computes the next part: one token
for a sequence that samples, a chunk of the prompt for one that has just come. A sequence computed to its end gets a
new token. `step` is three calls: `_schedule` chooses, `_run` computes, `_postprocess` samples and finishes.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import torch

from ...exceptions import BackendAnswerError, BackendRequestError
from ...trajectory import Finish, FinishType
from ...trajectory.tokens import common_prefix
from .kv import PrefixCache, SequenceKV
from .request import Request
from .runner import Runner, SequenceChunk
from .sampler import most_likely, sample

logger = logging.getLogger(__name__)

CHUNK = 512
"""Prompts are computed in parts that end at multiples of this position, whatever else is in the step."""
LOOK_AHEAD = 64
"""Waiting requests that a step considers."""
WORTH_WAITING = 32
"""A request waits if a running prompt will soon offer it this many more cached tokens."""
STEP_BUDGET = CHUNK
"""Prompt tokens of a step; a step that reaches it admits no more requests."""


class Scheduler:
    """State of all requests; used by the engine's thread only."""

    def __init__(
        self,
        runner: Runner,
        tokenizer: Any,
        *,
        stop_token_ids: frozenset[int],
        max_batch_size: int,
        prefix_cache_tokens: int,
        weight_version: str,
    ) -> None:
        self.weight_version = weight_version
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.cache = PrefixCache(prefix_cache_tokens)
        self._runner = runner
        self._tokenizer = tokenizer
        self._stop_token_ids = stop_token_ids
        self._max_batch_size = max_batch_size

    def add(self, request: Request) -> None:
        """Queue a request."""
        if any(request.rid == other.rid for other in (*self.waiting, *self.running)):
            request.future.set_exception(BackendRequestError(f"rid={request.rid!r} is that of a request in flight"))
            return
        self.waiting.append(request)

    def step(self) -> bool:
        """Advance all running sequences by one part; False if there was nothing to do."""
        batch = self._schedule()
        if not batch:
            return False
        with torch.inference_mode():
            logits = self._run(batch)
            self._postprocess(batch, logits)
        return True

    # Schedule

    def _schedule(self) -> list[tuple[Request, int]]:
        """Choose the sequences of this step, each with the position up to which it is computed."""
        batch = [(request, self._next_end(request)) for request in self.running]
        prompt_tokens = sum(end - request.kv.length for request, end in batch if end - request.kv.length > 1)
        for request in list(islice(self.waiting, LOOK_AHEAD)):
            if len(self.running) >= self._max_batch_size or prompt_tokens >= STEP_BUDGET:
                break
            if self._better_later(request):  # later ones may still be admitted before it
                continue
            kv = self.cache.take(request.keys, request.cache_limit, self._sources())
            request.kv = kv or SequenceKV(self._runner.layers)
            self.waiting.remove(request)
            self.running.append(request)
            if request.cached_tokens is None:  # not one whose weights were replaced under way
                request.cached_tokens = request.kv.length
                request.versions.append((self.weight_version, 0))
            end = self._next_end(request)
            batch.append((request, end))
            prompt_tokens += end - request.kv.length
        return batch

    def _next_end(self, request: Request) -> int:
        """End of the part that comes next: the whole rest, but no further than the next multiple of `CHUNK`."""
        computed: int = request.kv.length
        return min(len(request.prompt) + len(request.output), (computed // CHUNK + 1) * CHUNK)

    def _better_later(self, request: Request) -> bool:
        """A prompt that is being computed now will offer a longer prefix, as in the samples of a group."""
        coming = [other.prompt_keys or other.prompt for other in self.running if other.kv.length < len(other.prompt)]
        if not coming:
            return False
        wanted = np.asarray(request.keys[: request.cache_limit])
        later = max(common_prefix(wanted, np.asarray(prompt)) for prompt in coming)
        return later - self.cache.match(request.keys, request.cache_limit, self._sources()) >= WORTH_WAITING

    def _sources(self) -> list[tuple[list[int], SequenceKV]]:
        """Running sequences, whose prefixes may be used."""
        return [(other.keys, other.kv) for other in self.running]

    # Run

    def _run(self, batch: list[tuple[Request, int]]) -> list[torch.Tensor]:
        """Compute the chosen parts, and return the logits of each: of scored prompt positions, and of its last one."""
        segments = []
        for request, end in batch:
            start = request.kv.length
            scored = request.first_scored + len(request.prompt_logprobs)
            first_wanted = min(max(scored, start), end) if scored < len(request.prompt) - 1 else end
            whole = len(request.prompt) + len(request.output)
            if end == whole:  # computed to its end: the last position's logits give the next token
                first_wanted = min(first_wanted, end - 1)
            # The newest token alone is the common case; `tokens` is a copy of them all.
            tokens = request.output[-1:] if start == whole - 1 and request.output else request.tokens[start:end]
            segments.append(
                SequenceChunk(kv=request.kv, tokens=tokens, logits_from=first_wanted - start, seen=request.seen)
            )
        return self._runner.forward(segments)

    # Postprocess

    def _postprocess(self, batch: list[tuple[Request, int]], logits: list[torch.Tensor]) -> None:
        rows, sampling = [], []
        for (request, end), part in zip(batch, logits, strict=True):
            self._score_prompt(request, end, part)
            if end == len(request.prompt) + len(request.output):
                if request.max_new_tokens == 0:
                    self._finish(request, Finish(type=FinishType.LENGTH))
                else:
                    rows.append(part[-1])
                    sampling.append(request)
        if not sampling:
            return
        stops = [self._stops(request) for request in sampling]
        for request, (token, logprob) in zip(sampling, sample(torch.stack(rows), sampling, stops), strict=True):
            if logprob != logprob:  # NaN: the weights are broken
                message = "the model's log-probabilities are NaN: are its weights broken?"
                self._fail(request, BackendAnswerError(message))
                continue
            if request.versions[-1][0] != self.weight_version:  # the weights were replaced under way
                request.versions.append((self.weight_version, len(request.output)))
            request.output.append(token)
            request.output_logprobs.append(logprob)
            if request.matcher is not None:
                request.matcher.accept(token)
            if finish := self._finish_of(request):
                self._finish(request, finish)

    def _score_prompt(self, request: Request, end: int, logits: torch.Tensor) -> None:
        """Note the logprobs of prompt tokens that the logits of this part predict."""
        scored = request.first_scored + len(request.prompt_logprobs)  # position whose successor is to be scored next
        last = min(end, len(request.prompt) - 1)
        if scored >= last:
            return
        first = end - len(logits)
        for position in range(scored, last):
            row = torch.log_softmax(logits[position - first], dim=-1)
            request.prompt_logprobs.append(float(row[request.prompt[position + 1]]))
            request.prompt_top.append(most_likely(row, request.asked.score_top_k))

    def _stops(self, request: Request) -> frozenset[int]:
        return self._stop_token_ids | request.decoding.stop_token_ids

    def _finish_of(self, request: Request) -> Finish | None:
        """The end at the newest token, in the server's order of checks; None if the request continues."""
        params, token = request.decoding, request.output[-1]
        if params.stop:
            # A token adds at least a byte, so the match lies in this many tokens; two more for cut characters.
            window = max(len(stop.encode()) for stop in params.stop) + 2
            tail = self._tokenizer.decode(request.output[-window:])
            for stop in params.stop:
                if stop in tail:
                    return Finish(type=FinishType.STOP, matched=stop)
        if not params.ignore_eos and token in self._stops(request):  # SGLang's `ignore_eos` covers `stop_token_ids` too
            return Finish(type=FinishType.STOP, matched=token)
        if len(request.output) >= request.max_new_tokens:
            return Finish(type=FinishType.LENGTH)
        if request.matcher is not None and request.matcher.is_finished:
            return Finish(type=FinishType.STOP, matched=token)
        return None

    def _finish(self, request: Request, finish: Finish) -> None:
        if request.kv is not None:
            self.cache.put(request.keys, request.kv)
        request.versions = request.versions or [(self.weight_version, 0)]
        self._forget(request)
        request.future.set_result(request.answer(finish))

    def _fail(self, request: Request, error: Exception) -> None:
        self._forget(request)
        request.future.set_exception(error)

    def _forget(self, request: Request) -> None:
        request.kv = None
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)

    # Control

    def abort(self, chosen: Callable[[Request], bool] = lambda request: True) -> bool:
        """End the chosen requests with what they have sampled so far; True if there are any."""
        found = [request for request in (*self.running, *self.waiting) if chosen(request)]
        for request in found:
            self._finish(request, Finish(type=FinishType.ABORT, message="aborted"))
        return bool(found)

    def fail_all(self, error: Exception) -> None:
        """End every request with an error."""
        for request in [*self.running, *self.waiting]:
            self._fail(request, error)

    def forget_computed(self) -> None:
        """Drop all keys and values: running requests keep what they sampled, and wait to be computed again."""
        self.cache.clear()
        for request in reversed(self.running):
            request.kv = None
            self.waiting.appendleft(request)
        self.running.clear()
