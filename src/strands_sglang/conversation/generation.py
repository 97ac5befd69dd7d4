"""One model call: a request, its answers, and the resumption of what the server aborted."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from array import array
from bisect import bisect_left
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, cast

from ..backends import Backend, GenerateAnswer, GenerateRequest, ScoredPrompt
from ..exceptions import (
    BackendAbortedError,
    BackendAnswerError,
    BackendConnectionError,
    BackendContextLengthError,
    ContextOverflowError,
)
from ..tokenizer import TokenizerAdapter
from ..trajectory import Completion, Finish, FinishType, SamplingMask, Turn, WeightSpan
from ..trajectory.media import collapsed_values, expanded_ids
from ..trajectory.packed import LOGPROB_TYPECODE, TOKEN_TYPECODE, append_span
from .plan import CallPlan

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=Hashable)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # seconds between an abort and the attempt to resume
_CELL = 4  # bytes of an int32


async def generate(backend: Backend, plan: CallPlan) -> Completion:
    """Run a model call to its end.

    An aborted request is continued from its partial tokens (policy `resume`): the ids already sampled become part of
    the next prompt and `max_new_tokens` shrinks by their number, so the turn is one segment of one length budget
    whatever the server does in between.

    Raises:
        ContextOverflowError: The prompt leaves no room in the context.
        BackendAbortedError: Under `resume`, nothing more came within `abort_timeout` seconds.
        BackendConnectionError: The client was closed meanwhile.
        BackendError: The request failed.
    """
    request = plan.request
    # Attempts of one call append to one output, so what they sampled is one turn whatever the server did in between.
    output = _Output(plan, backend)
    budget: int = request.sampling_params["max_new_tokens"]
    pause = _FIRST_PAUSE
    deadline, timeout = None, plan.config["abort_timeout"]
    closings = backend.closings
    while True:
        before = len(output.ids)
        try:
            answer = await backend.ask(output.next_request() if before or deadline is not None else request)
        except BackendContextLengthError as error:
            used, context = plan.call.prompt_length, plan.context_length
            limit = used - 1 if context is None else min(context, used - 1)
            raise ContextOverflowError(used, limit, str(error)) from error
        if request.growth:
            answer.check_expansion(request.prompt_tokens + before, plan.proof, backend.capabilities)
        output.append(answer)
        is_aborted = answer.finish.type is FinishType.ABORT
        # A server looks for stop strings in what one request sampled, and one may have begun before an abort.
        if is_aborted or before:
            stops = StopRule(plan.tokens, request.sampling_params, _earlier_stops(plan.call.location.parent))
            if (ended := _own_end(output, stops, before, budget, is_aborted=is_aborted)) is not None:
                return output.completion(ended)
        if not (is_aborted and plan.resumes):
            return output.completion(answer.finish)
        now = time.monotonic()
        if len(output.ids) > before or deadline is None:  # it got on: a slow drain is not a server that hangs
            pause = _FIRST_PAUSE
            deadline = now + (math.inf if timeout is None else timeout)
        if now >= deadline:
            raise BackendAbortedError(
                f"the server kept aborting the request for {timeout:g} s "
                f"({answer.finish.message or 'no reason given'})",
                dict(answer.payload),
            )
        logger.debug("sampled=<%d>, pause=<%.2f> | request aborted by the server, resuming", len(output.ids), pause)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
        if backend.closings != closings:
            raise BackendConnectionError("the client was closed while a request that the server aborted was resumed")


def _own_end(output: _Output, stops: StopRule, before: int, budget: int, *, is_aborted: bool) -> Finish | None:
    """The end that the whole output has by itself where the last answer does not name it; None if there is none.

    The server looks whether a request is to be aborted before it looks for a stop. So the last token of an aborted
    request may be the one that ends the turn, and whatever were sampled after it would be no text of the model's.
    """
    stop = stops.first_stop(output.ids, before) if is_aborted else stops.by_text(output.ids, before)
    if stop is not None:
        output.cut(stop.length)
        return Finish(type=FinishType.STOP, matched=stop.matched)
    if not is_aborted:
        return None
    if len(output.ids) >= budget:
        output.cut(budget)
        return Finish(type=FinishType.LENGTH)
    return None


class _Output:
    """The tokens sampled so far, over all attempts of one call."""

    def __init__(self, plan: CallPlan, backend: Backend) -> None:
        self.ids: array[int] = array(TOKEN_TYPECODE)
        self._request = plan.request
        self._plan = plan
        self._backend = backend
        # Only where they are asked for, as the attributes that are None.
        self._experts = None if plan.request.experts_from is None else ExpertRows(plan.call.location.parent)
        self._logprobs: array[float] | None = array(LOGPROB_TYPECODE)
        self._prompt_logprobs: array[float] | None = None
        self._spans: list[WeightSpan] = []
        self._rids: list[str] = []
        self._sampling_mask: SamplingMask | None = None
        self._cached_tokens: int | None = None
        self._latency: float | None = None

    def next_request(self) -> GenerateRequest:
        """The request that goes on where the last answer was aborted."""
        first = self._request
        params = dict(first.sampling_params)
        params["max_new_tokens"] -= len(self.ids)
        if params.get("min_new_tokens"):
            params["min_new_tokens"] = max(0, params["min_new_tokens"] - len(self.ids))
        return replace(
            first,
            prompt=first.prompt + self.ids,
            parts=(),
            sampling_params=params,
            score_from=None if self.ids else first.score_from,
            experts_from=None if self._experts is None else self._experts.start,
        )

    def append(self, answer: GenerateAnswer) -> None:
        """Append an answer; `BackendError` if a field that was asked for is missing, or belongs to other tokens."""
        offset = len(self.ids)
        if answer.output_logprobs is None and self._request.logprobs and answer.output_ids:
            logger.warning("request_id=<%s> | log-probabilities were requested and not returned", answer.rid)
        self.ids.extend(answer.output_ids)
        # One piece without log-probabilities leaves the turn without: a part of them would belong to no whole.
        if answer.output_logprobs is None or self._logprobs is None:
            self._logprobs = None if answer.output_ids else self._logprobs
        else:
            self._logprobs.extend(answer.output_logprobs)
        for span in answer.weight_spans:
            append_span(self._spans, span.version, offset + span.start, offset + span.end)
        if answer.rid is not None:
            self._rids.append(answer.rid)
        if self._cached_tokens is None:
            self._cached_tokens = answer.cached_tokens
        if answer.latency is not None:
            self._latency = (self._latency or 0.0) + answer.latency
        aborted = answer.finish.type is FinishType.ABORT
        # A request aborted before it ran has scored nothing; the next attempt is asked again.
        if self._request.score_from is not None and self._prompt_logprobs is None and answer.scored_prompt is not None:
            self._prompt_logprobs = _prompt_logprobs(answer.scored_prompt, self._plan)
        if self._experts is not None:
            if answer.routed_experts is not None:
                self._experts.append(answer.routed_experts, self._rows_end())
            # One that was aborted in the queue has none; the next attempt has all.
            elif self._plan.config["require_routed_experts"] and not aborted:
                raise self._missing("routed_experts", "the routed experts that are required")
        if self._request.sampling_mask:
            if (mask := answer.sampling_mask) is not None:
                held = self._sampling_mask
                self._sampling_mask = mask if held is None else SamplingMask.join([held, mask])
            elif answer.output_ids:
                raise self._missing("sampling_mask", "the sampling mask that was asked for")

    def _rows_end(self) -> int:
        """Positions whose experts are known: all that were fed, i.e. everything but the last token."""
        return self._plan.call.prompt_length + len(self.ids) - 1

    def _missing(self, name: str, what: str) -> BackendAnswerError:
        return BackendAnswerError(f"the answer lacks {what}{self._backend.capabilities.hint(name)}")

    def cut(self, length: int) -> None:
        if length >= len(self.ids):
            return
        del self.ids[length:]
        if self._logprobs is not None:
            del self._logprobs[length:]
        if self._sampling_mask is not None:
            self._sampling_mask = self._sampling_mask.part(0, length)
        self._spans = [
            WeightSpan(version=span.version, start=span.start, end=min(span.end, length))
            for span in self._spans
            if span.start < length
        ]
        if self._experts is not None:
            self._experts.cut(self._rows_end())

    def completion(self, finish: Finish) -> Completion:
        if finish.type is FinishType.LENGTH:
            asked: int = self._request.sampling_params["max_new_tokens"]
            finish = replace(finish, limited_by=self._plan.bounds.tightest(asked))
        return Completion(
            # Copies: arrays that have grown hold more than their values.
            output_ids=self.ids[:],
            output_logprobs=None if self._logprobs is None else self._logprobs[:],
            prompt_logprobs=self._prompt_logprobs,
            finish=finish if finish.message is not None else _one_of_equal(finish),
            weight_spans=_one_of_equal(tuple(self._spans)),
            request_ids=tuple(self._rids),
            cached_tokens=self._cached_tokens,
            latency=self._latency,
            routed_experts=None if self._experts is None else self._experts.rows_up_to(self._rows_end()),
            sampling_mask=self._sampling_mask,
        )


@lru_cache(maxsize=4096)
def _one_of_equal(value: T) -> T:
    """The first of equal values: most turns end alike, and under one version of the weights."""
    return value


def _prompt_logprobs(scored: ScoredPrompt, plan: CallPlan) -> array[float]:
    """Log-probabilities of the prompt delta. The very first token of a path has none, and neither has an image."""
    media = plan.call.prompt.media
    spans, shift = [], 0
    for medium in media:
        spans.append((medium.position + shift, len(medium.span)))
        shift += medium.growth
    values = scored.values_of(expanded_ids(plan.call.prompt.ids, media), spans)
    return collapsed_values(values, media, math.nan)


# ---- routed experts -----------------------------------------------------------------------------------------------


class ExpertRows:
    """A row per token that was fed: all of a sequence but the last.

    Args:
        parent: The turn that is extended. The row of its last token, which was not fed, comes with this call.
    """

    def __init__(self, parent: Turn | None) -> None:
        self.start = 0 if parent is None else parent.expanded_end - 1
        """Position of the first row that is not known yet."""
        self._row_bytes: int | None = None
        if parent is not None:
            first = 0 if parent.parent is None else parent.parent.expanded_end - 1
            self._row_bytes = _row_bytes(len(parent.completion.routed_experts or b""), self.start - first)
        self._data = bytearray()

    def append(self, data: bytes, end: int) -> None:
        """Append the rows `start` to `end` of an answer.

        Args:
            data: Rows of int32. Servers that cannot start elsewhere send the rows from position 0 on; those that are
                known already are left out.
            end: Position after the last row.

        Raises:
            BackendAnswerError: The size is neither.
        """
        rows = end - self.start
        if self._row_bytes is None:
            self._row_bytes = _row_bytes(len(data), rows) or _row_bytes(len(data), end)
        width = self._row_bytes or 0
        if data and width and len(data) == end * width:
            data = data[self.start * width :]
        if len(data) != rows * width or (rows and not width):
            expected = f"of {width} bytes each" if width else f"of whole int32 ({_CELL} bytes)"
            raise BackendAnswerError(
                f"routed_experts holds {len(data)} bytes, expected {rows} rows {expected}, one for each position from "
                f"{self.start} to {end - 1}; the experts would belong to other tokens"
            )
        self._data += data
        self.start = end

    def cut(self, end: int) -> None:
        """Forget the rows from position `end` on."""
        if end < self.start:
            del self._data[len(self._data) - (self.start - end) * (self._row_bytes or 0) :]
            self.start = end

    def rows_up_to(self, end: int) -> bytes | None:
        """All rows, or None if those up to `end` are not complete."""
        return bytes(self._data) if self.start == end else None


def _row_bytes(size: int, rows: int) -> int | None:
    return size // rows if rows and size and size % (_CELL * rows) == 0 else None


# ---- stops ---------------------------------------------------------------------------------------------------------


class Stop(NamedTuple):
    """The end of a turn: ids up to and including it, and the stop token's id, or the stop string or pattern."""

    length: int
    matched: int | str


def _earlier_stops(turn: Turn | None) -> frozenset[int]:
    """Stop tokens that ended the turns of a path."""
    stops = set[int]()
    while turn is not None:
        if (stop := turn.completion.finish.stop_token_id) is not None:
            stops.add(stop)
        turn = turn.parent
    return frozenset(stops)


class StopRule:
    """The stops of a request, other than its length.

    Below `min_new_tokens` nothing is different: the server bans stop tokens there, and one that still comes (an
    end of sequence that only the model's configuration names) ends the request. `seen` are stop tokens that ended
    earlier turns: the engine may know more than the tokenizer does.
    """

    def __init__(self, tokens: TokenizerAdapter, params: Mapping[str, Any], seen: Collection[int] = ()) -> None:
        self._tokens = tokens
        self._seen = seen
        self._ids = frozenset(params.get("stop_token_ids") or ())
        self._uses_ids = not params.get("ignore_eos", False)  # which switches `stop_token_ids` off, too
        strings, patterns = params.get("stop") or [], params.get("stop_regex") or []
        self._strings = [strings] if isinstance(strings, str) else list(strings)
        self._patterns = [patterns] if isinstance(patterns, str) else list(patterns)

    def first_stop(self, ids: Sequence[int], start: int) -> Stop | None:
        """The first stop that ends in `ids[start:]`, the output of one request; None if there is none.

        Tokens can follow a stop where several are decoded at a time (speculative decoding).
        """
        found = [stop for stop in (self.by_text(ids, start), self._by_id(ids, start)) if stop is not None]
        return min(found, key=lambda stop: stop.length, default=None)

    def _by_id(self, ids: Sequence[int], start: int) -> Stop | None:
        if not self._uses_ids or len(ids) == start:
            return None
        stops = self._ids | self._tokens.stop_ids
        stops |= {token for token in self._seen if self._tokens.is_control(token)}
        for position in range(start, len(ids)):
            if ids[position] in stops:
                return Stop(length=position + 1, matched=ids[position])
        return None

    def by_text(self, ids: Sequence[int], start: int) -> Stop | None:
        """The first stop string or pattern that ends in `ids[start:]`; it may begin before."""
        if not (self._strings or self._patterns) or self._match(self._tokens.decode(ids)) is None:
            return None
        # A stop string ends with the first token whose text completes it: the server decodes token by token.
        ends = range(start + 1, len(ids))
        end = (
            start + 1 + bisect_left(ends, True, key=lambda end: self._match(self._tokens.decode(ids[:end])) is not None)
        )
        return Stop(length=end, matched=cast(str, self._match(self._tokens.decode(ids[:end]))))

    def _match(self, text: str) -> str | None:
        # No string is empty and every pattern compiles: sampling parameters were checked before anything was sent.
        found = next((string for string in self._strings if string in text), None)
        return found or next((pattern for pattern in self._patterns if re.search(pattern, text)), None)
