"""Continuous batching: each step advances every running sequence, and sequences come and go between steps.

A sequence is prompt and output; its keys and values cover a first part of it. A step computes the next part: one token
for a sequence that samples, a chunk of the prompt for one that has just come. A sequence computed to its end gets a
new token. `step` is three calls: `_schedule` chooses, `_run` computes, `_postprocess` samples and finishes.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch

from ...exceptions import BackendAnswerError, BackendRequestError
from ...trajectory import Finish, FinishType
from ...trajectory.tokens import common_prefix
from .generation import Generation
from .runner import Runner, SequenceChunk, SequenceKV
from .sampler import most_likely, sample

logger = logging.getLogger(__name__)

CHUNK = 512
"""Prompts are computed in parts that end at multiples of this position, beside any other sequences."""
LOOK_AHEAD = 64
"""Waiting generations that a step considers."""
WORTH_WAITING = 32
"""A generation waits if a running prompt will soon offer it this many more cached tokens."""
STEP_BUDGET = CHUNK
"""Prompt tokens of a step; a step that reaches it admits no more generations."""


@dataclass(slots=True, eq=False)
class _Entry:
    tokens: np.ndarray
    kv: SequenceKV


_Running = Sequence[tuple[list[int], SequenceKV]]


class PrefixCache:
    """Finished sequences, the most recently used last, within a budget of tokens; 0 keeps nothing."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._entries: list[_Entry] = []

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()

    def match(self, tokens: list[int], limit: int, running: _Running) -> int:
        """Length of the longest known prefix of `tokens`, at most `limit`."""
        return self._find(tokens, limit, running)[0]

    def take(self, tokens: list[int], limit: int, running: _Running) -> SequenceKV | None:
        """Keys and values of the longest known prefix of `tokens`, at most `limit` positions, or None.

        Prefixes of `running` sequences count too. An entry that is wholly a prefix is handed over without a copy: the
        sequence that continues it will be stored in its place.
        """
        length, source, entry = self._find(tokens, limit, running)
        if source is None:
            return None
        if entry is not None:
            self._entries.remove(entry)
            if length == len(entry.tokens):
                return source
            self._entries.append(entry)  # used just now: the last to make room
        return source.copy_prefix(length)

    def _find(self, tokens: list[int], limit: int, running: _Running) -> tuple[int, SequenceKV | None, _Entry | None]:
        prefix = np.asarray(tokens[:limit], dtype=np.int64)
        best: tuple[int, SequenceKV | None, _Entry | None] = (0, None, None)
        for entry in self._entries:  # a few dozen, compared by NumPy: no tree is worth its code
            if (length := common_prefix(prefix, entry.tokens)) > best[0]:
                best = (length, entry.kv, entry)
        for other, kv in running:
            computed = np.asarray(other[: kv.length], dtype=np.int64)
            if (length := common_prefix(prefix, computed)) > best[0]:
                best = (length, kv, None)
        return best

    def put(self, tokens: list[int], kv: SequenceKV) -> None:
        """Store a finished sequence, known up to `kv.length`; the least recently used ones make room."""
        computed = np.asarray(tokens[: kv.length], dtype=np.int64)
        if not 0 < len(computed) <= self._budget:
            return
        entries, is_held = [], False
        for entry in self._entries:
            length = common_prefix(computed, entry.tokens)
            if length < len(entry.tokens):  # one that is wholly a prefix of the new one is covered by it
                entries.append(entry)
                is_held = is_held or length == len(computed)
        if not is_held:
            entries.append(_Entry(computed, kv))
        size = sum(len(entry.tokens) for entry in entries)
        while size > self._budget:
            size -= len(entries.pop(0).tokens)
        self._entries = entries


class Scheduler:
    """State of all generations; used by the engine's thread only."""

    def __init__(
        self,
        runner: Runner,
        tokenizer: Any,
        *,
        max_batch_size: int,
        prefix_cache_tokens: int,
        weight_version: str,
    ) -> None:
        self.weight_version = weight_version
        self.waiting: deque[Generation] = deque()
        self.running: list[Generation] = []
        self.cache = PrefixCache(prefix_cache_tokens)
        self._runner = runner
        self._tokenizer = tokenizer
        self._max_batch_size = max_batch_size

    def add(self, generation: Generation) -> None:
        """Queue a generation."""
        if any(generation.rid == other.rid for other in (*self.waiting, *self.running)):
            error = BackendRequestError(f"rid={generation.rid!r} is that of a request in flight")
            generation.future.set_exception(error)
            return
        self.waiting.append(generation)

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

    def _schedule(self) -> list[tuple[Generation, int]]:
        """Choose the sequences of this step, each with the position up to which it is computed."""
        batch = [(generation, self._next_end(generation)) for generation in self.running]
        prompt_tokens = sum(end - generation.kv.length for generation, end in batch if end - generation.kv.length > 1)
        for generation in list(islice(self.waiting, LOOK_AHEAD)):
            if len(self.running) >= self._max_batch_size or prompt_tokens >= STEP_BUDGET:
                break
            if self._better_later(generation):  # later ones may still be admitted before it
                continue
            kv = self.cache.take(generation.keys, generation.cache_limit, self._sources())
            generation.kv = kv or SequenceKV(self._runner.layers)
            self.waiting.remove(generation)
            self.running.append(generation)
            if generation.cached_tokens is None:  # not one whose weights were replaced under way
                generation.cached_tokens = generation.kv.length
                generation.versions.append((self.weight_version, 0))
            end = self._next_end(generation)
            batch.append((generation, end))
            prompt_tokens += end - generation.kv.length
        return batch

    def _next_end(self, generation: Generation) -> int:
        """End of the part that comes next: the whole rest, but no further than the next multiple of `CHUNK`."""
        computed: int = generation.kv.length
        return min(len(generation.prompt) + len(generation.output), (computed // CHUNK + 1) * CHUNK)

    def _better_later(self, generation: Generation) -> bool:
        """A prompt that is being computed now will offer a longer prefix, as in the samples of a group."""
        coming = [other.prompt_keys or other.prompt for other in self.running if other.kv.length < len(other.prompt)]
        if not coming:
            return False
        prefix = np.asarray(generation.keys[: generation.cache_limit])
        later = max(common_prefix(prefix, np.asarray(prompt)) for prompt in coming)
        return later - self.cache.match(generation.keys, generation.cache_limit, self._sources()) >= WORTH_WAITING

    def _sources(self) -> list[tuple[list[int], SequenceKV]]:
        """Running sequences, whose prefixes may be used."""
        return [(other.keys, other.kv) for other in self.running]

    # Run

    def _run(self, batch: list[tuple[Generation, int]]) -> list[torch.Tensor]:
        """Compute the chosen parts, and return the logits of each: of scored prompt positions, and of its last one."""
        segments = []
        for generation, end in batch:
            start = generation.kv.length
            scored = generation.first_scored + len(generation.prompt_logprobs)
            first_wanted = min(max(scored, start), end) if scored < len(generation.prompt) - 1 else end
            whole = len(generation.prompt) + len(generation.output)
            if end == whole:  # computed to its end: the last position's logits give the next token
                first_wanted = min(first_wanted, end - 1)
            # The newest token alone is the common case; `tokens` is a copy of them all.
            is_newest = start == whole - 1 and bool(generation.output)
            tokens = generation.output[-1:] if is_newest else generation.tokens[start:end]
            segments.append(
                SequenceChunk(kv=generation.kv, tokens=tokens, logits_from=first_wanted - start, seen=generation.seen)
            )
        return self._runner.forward(segments)

    # Postprocess

    def _postprocess(self, batch: list[tuple[Generation, int]], logits: list[torch.Tensor]) -> None:
        rows, sampling = [], []
        for (generation, end), part in zip(batch, logits, strict=True):
            self._score_prompt(generation, end, part)
            if end == len(generation.prompt) + len(generation.output):
                if generation.max_new_tokens == 0:
                    self._finish(generation, Finish(type=FinishType.LENGTH))
                else:
                    rows.append(part[-1])
                    sampling.append(generation)
        if not sampling:
            return
        for generation, (token, logprob) in zip(sampling, sample(torch.stack(rows), sampling), strict=True):
            if logprob != logprob:  # NaN: the weights are broken
                message = "the model's log-probabilities are NaN: are its weights broken?"
                self._fail(generation, BackendAnswerError(message))
                continue
            if generation.versions[-1][0] != self.weight_version:  # the weights were replaced under way
                generation.versions.append((self.weight_version, len(generation.output)))
            generation.output.append(token)
            generation.output_logprobs.append(logprob)
            if generation.matcher is not None:
                generation.matcher.accept(token)
            if finish := self._finish_of(generation):
                self._finish(generation, finish)

    def _score_prompt(self, generation: Generation, end: int, logits: torch.Tensor) -> None:
        """Note the logprobs of prompt tokens that the logits of this part predict."""
        scored = generation.first_scored + len(
            generation.prompt_logprobs
        )  # position whose successor is to be scored next
        last = min(end, len(generation.prompt) - 1)
        if scored >= last:
            return
        first = end - len(logits)
        for position in range(scored, last):
            row = torch.log_softmax(logits[position - first], dim=-1)
            generation.prompt_logprobs.append(float(row[generation.prompt[position + 1]]))
            generation.prompt_top.append(most_likely(row, generation.request.score_top_k))

    def _finish_of(self, generation: Generation) -> Finish | None:
        """The end at the newest token, in the server's order of checks; None if the generation continues."""
        params, token = generation.decoding, generation.output[-1]
        if params.stop:
            # A token adds at least a byte, so the match lies in this many tokens; two more for cut characters.
            window = max(len(stop.encode()) for stop in params.stop) + 2
            tail = self._tokenizer.decode(generation.output[-window:])
            for stop in params.stop:
                if stop in tail:
                    return Finish(type=FinishType.STOP, matched=stop)
        if not params.ignore_eos and token in generation.stops:  # SGLang's `ignore_eos` covers `stop_token_ids` too
            return Finish(type=FinishType.STOP, matched=token)
        if len(generation.output) >= generation.max_new_tokens:
            return Finish(type=FinishType.LENGTH)
        if generation.matcher is not None and generation.matcher.is_finished:
            return Finish(type=FinishType.STOP, matched=token)
        return None

    def _finish(self, generation: Generation, finish: Finish) -> None:
        if generation.kv is not None:
            self.cache.put(generation.keys, generation.kv)
        generation.versions = generation.versions or [(self.weight_version, 0)]
        self._forget(generation)
        generation.future.set_result(generation.answer(finish))

    def _fail(self, generation: Generation, error: Exception) -> None:
        self._forget(generation)
        generation.future.set_exception(error)

    def _forget(self, generation: Generation) -> None:
        generation.kv = None
        if generation in self.running:
            self.running.remove(generation)
        elif generation in self.waiting:
            self.waiting.remove(generation)

    # Control

    def abort(self, chosen: Callable[[Generation], bool] = lambda generation: True) -> bool:
        """End the chosen generations with the tokens sampled so far; True if there are any."""
        generations = [generation for generation in (*self.running, *self.waiting) if chosen(generation)]
        for generation in generations:
            self._finish(generation, Finish(type=FinishType.ABORT, message="aborted"))
        return bool(generations)

    def fail_all(self, error: Exception) -> None:
        """End every generation with an error."""
        for generation in [*self.running, *self.waiting]:
            self._fail(generation, error)

    def forget_computed(self) -> None:
        """Drop all keys and values: running generations keep their sampled tokens, and wait to be computed again."""
        self.cache.clear()
        for generation in reversed(self.running):  # appended to the left, so the first one comes first again
            generation.kv = None
            self.waiting.appendleft(generation)
        self.running.clear()
