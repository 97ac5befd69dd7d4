"""One model call: a request, its answer, and the resumption of what the server aborted."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from array import array
from collections.abc import Collection, Iterator
from typing import Any, Literal, NamedTuple, Protocol

from ..backends.http.retry import pauses
from ..backends.sglang.answer import GenerateAnswer, ScoredPrompt, read_answer
from ..backends.sglang.request import GenerateRequest
from ..exceptions import SGLangAbortedError, SGLangClientError, SGLangConnectionError, SGLangDecodingError
from ..media import Medium, collapsed_values, expanded_ids, growth_of
from ..trajectory import Completion, Finish, FinishType, SamplingMask, WeightSpan
from ..trajectory.segments import LOGPROB_TYPECODE, TOKEN_TYPECODE
from .experts import ExpertRows
from .options import AbortPolicy
from .stops import StopRule
from .tokenizer import TokenizerAdapter

logger = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # seconds between an abort and the attempt to resume


class GenerateClient(Protocol):
    """Anything that speaks the generate contract: the HTTP client, the embedded engine, a scripted fake."""

    async def generate(self, input_ids: list[int], **fields: Any) -> dict[str, Any]:
        """Sample a continuation of `input_ids`; the answer is that of SGLang's native `/generate`."""


async def ask(client: GenerateClient, request: GenerateRequest) -> GenerateAnswer:
    """The checked answer to a request, from any client.

    A client with a method `ask` takes the request as it is and answers with a checked value. Every other one is given
    a list of ids and keywords, and its answer is checked here.

    Raises:
        SGLangClientError: The call failed, or the answer is not what it should be.
    """
    if _takes_requests(client):
        answer: GenerateAnswer = await client.ask(request)  # type: ignore[attr-defined]
        return answer
    payload = await client.generate(request.prompt.tolist(), **request.keywords())
    return read_answer(payload, vocab_size=request.vocab_size, max_new_tokens=request.max_new_tokens)


def _takes_requests(client: Any) -> bool:
    """Whether `ask` may stand in for `generate`: not where a subclass or a patch replaced `generate` alone."""
    if "generate" in getattr(client, "__dict__", ()):
        return False
    for cls in type(client).__mro__:
        if "ask" in vars(cls):
            return True
        if "generate" in vars(cls):
            return False
    return False


class CallPlan(NamedTuple):
    """How the answers to a call are read and joined.

    Attributes:
        held: Length of the path the call extends, as the server counts it.
        prompt_ids: Ids appended to it.
        media: Images among them.
        proof: The whole prompt as the server has to expand it, or None where that was proved before.
        score_prompt: Log-probabilities of `prompt_ids` were asked for.
        experts_required: An answer without the routed experts that were asked for is an error.
        expert_row_bytes: Bytes of routed experts of one token on the held path, or None if unknown.
        abort_policy: What to do when the server aborts.
        abort_timeout: Seconds after the first abort within which a resumed call must get on, or None for no limit.
        tokens: The tokenizer.
        stop_ids: Stop tokens that ended earlier turns.
    """

    held: int
    prompt_ids: array[int]
    media: tuple[Medium, ...]
    proof: array[int] | None
    score_prompt: bool
    experts_required: bool
    expert_row_bytes: int | None
    abort_policy: AbortPolicy | Literal["resume", "surface"]
    abort_timeout: float | None
    tokens: TokenizerAdapter
    stop_ids: Collection[int]


async def generate(client: GenerateClient, request: GenerateRequest, plan: CallPlan) -> Completion:
    """Run a model call to its end.

    An aborted request is continued from its partial tokens (policy `resume`): the ids already sampled become part of
    the next prompt and `max_new_tokens` shrinks by their number, so the turn is one segment of one length budget
    whatever the server does in between.

    Args:
        client: What speaks the generate contract.
        request: The request, with an explicit `max_new_tokens`.
        plan: How its answers are read.

    Raises:
        SGLangAbortedError: Under `resume`, nothing more came within `abort_timeout` seconds.
        SGLangConnectionError: The client was closed meanwhile.
        SGLangClientError: The request failed.
    """
    output = _Output(request, plan)
    budget: int = request.fields["sampling_params"]["max_new_tokens"]
    waits: Iterator[float] | None = None
    deadline: float | None = None
    closings = getattr(client, "closings", None)
    while True:
        before = len(output.ids)
        answer = await ask(client, output.next_request() if before or deadline is not None else request)
        if request.growth:
            _check_expansion(answer, request.prompt_tokens + before, plan.proof)
        output.append(answer)
        if answer.finish.type is not FinishType.ABORT:
            return output.completion(answer.finish)
        stops = StopRule(plan.tokens, request.fields["sampling_params"], plan.stop_ids)
        if (ended := _own_end(output, stops, before, budget)) is not None:
            return output.completion(ended)
        if plan.abort_policy == AbortPolicy.SURFACE:
            return output.completion(answer.finish)
        now = time.monotonic()
        if len(output.ids) > before or deadline is None or waits is None:
            waits = pauses(_FIRST_PAUSE, _LONGEST_PAUSE)
            deadline = now + (math.inf if plan.abort_timeout is None else plan.abort_timeout)
        if now >= deadline:
            raise SGLangAbortedError(
                f"the server kept aborting the request for {plan.abort_timeout:g} s "
                f"({answer.finish.message or 'no reason given'})",
                dict(answer.payload),
            )
        pause = next(waits)
        logger.debug("sampled=<%d>, pause=<%.2f> | request aborted by the server, resuming", len(output.ids), pause)
        await asyncio.sleep(pause)
        if getattr(client, "closings", None) != closings:
            raise SGLangConnectionError("the client was closed while a request that the server aborted was resumed")


def _check_expansion(answer: GenerateAnswer, expected: int, proof: array[int] | None) -> None:
    """Refuse an answer to another prompt than ours: a server that expands images differently, or tokenises again.

    Args:
        answer: The answer.
        expected: Length of the expanded prompt, tokens sampled in earlier attempts included.
        proof: The expanded prompt of the first attempt, where the server was asked to show it.

    Raises:
        SGLangDecodingError: Length or ids differ, or the server does not say.
    """
    length = answer.payload["meta_info"].get("prompt_tokens")
    if length is None and answer.finish.type is FinishType.ABORT:
        return  # aborted before it was looked at
    if length != expected:
        raise SGLangDecodingError(
            f"the server's prompt has {length} tokens, expected {expected} with the images expanded: it expands them "
            "differently, or tokenised the prompt again (SGLANG_MM_AVOID_RETOKENIZE)"
        )
    if proof is None:
        return
    shown = answer.payload.get("prompt_token_ids")
    if shown is None:
        raise SGLangDecodingError(
            "the server does not show prompt_token_ids, so nothing proves how it expands images: SGLang 0.5.23 does"
        )
    if list(shown[: len(proof)]) != proof.tolist():
        raise SGLangDecodingError("the server expanded the images to other ids, or changed ids beside them")


def _own_end(output: _Output, stops: StopRule, before: int, budget: int) -> Finish | None:
    """How an aborted answer would have ended by itself with what it holds; None if it would have gone on.

    The server looks whether a request is to be aborted before it looks for a stop. So the last token of an aborted
    request may be the one that ends the turn, and whatever were sampled after it would be no text of the model's.
    """
    if (stop := stops.first_stop(output.ids, before)) is not None:
        output.cut(stop.length)
        return Finish(type=FinishType.STOP, matched=stop.matched)
    if len(output.ids) >= budget:
        output.cut(budget)
        return Finish(type=FinishType.LENGTH)
    return None


class _Output:
    """What has been sampled so far, over all attempts of one call."""

    def __init__(self, request: GenerateRequest, plan: CallPlan) -> None:
        self.ids: array[int] = array(TOKEN_TYPECODE)
        self._request = request
        self._plan = plan
        self._fields = request.fields
        self._experts = ExpertRows(plan.held, plan.expert_row_bytes)
        self._logprobs: array[float] | None = array(LOGPROB_TYPECODE)
        self._prompt_logprobs: array[float] | None = None
        self._spans: list[WeightSpan] = []
        self._rids: list[str] = []
        self._kept: SamplingMask | None = None
        self._cached_tokens: int | None = None
        self._latency: float | None = None

    def next_request(self) -> GenerateRequest:
        """The request that goes on where the last answer was aborted."""
        params = dict(self._fields["sampling_params"])
        params["max_new_tokens"] -= len(self.ids)
        if params.get("min_new_tokens"):
            params["min_new_tokens"] = max(0, params["min_new_tokens"] - len(self.ids))
        changed: dict[str, Any] = {"sampling_params": params}
        if self.ids and "logprob_start_len" in self._fields:
            changed["logprob_start_len"] = -1
        if "routed_experts_start_len" in self._fields:
            changed["routed_experts_start_len"] = self._experts.start
        return self._request.with_prompt(self._request.prompt.followed_by(self.ids), **changed)

    def append(self, answer: GenerateAnswer) -> None:
        """Append an answer.

        Raises:
            SGLangClientError: A field that was asked for is missing, or belongs to other tokens.
        """
        offset = len(self.ids)
        if answer.output_logprobs is None and self._fields.get("return_logprob") and answer.output_ids:
            logger.warning("request_id=<%s> | log-probabilities were requested and not returned", answer.rid)
        self.ids.extend(answer.output_ids)
        if answer.output_logprobs is None or self._logprobs is None:
            self._logprobs = None if answer.output_ids else self._logprobs
        else:
            self._logprobs.extend(answer.output_logprobs)
        self._spans += (
            answer.weight_spans
            if not offset
            else [
                WeightSpan(version=span.version, start=offset + span.start, end=offset + span.end)
                for span in answer.weight_spans
            ]
        )
        if answer.rid is not None:
            self._rids.append(answer.rid)
        if self._cached_tokens is None:
            self._cached_tokens = answer.cached_tokens
        if answer.latency is not None:
            self._latency = (self._latency or 0.0) + answer.latency
        aborted = answer.finish.type is FinishType.ABORT
        # A request aborted before it ran has scored nothing; the next attempt is asked again.
        if self._plan.score_prompt and self._prompt_logprobs is None and (answer.scored_prompt or not aborted):
            self._prompt_logprobs = _prompt_logprobs(answer.scored_prompt, self._plan)
        if self._fields.get("return_routed_experts"):
            self._append_experts(answer.routed_experts, aborted)
        if self._fields.get("return_sampling_mask"):
            self._append_kept(answer.sampling_mask, len(answer.output_ids))

    def _rows_end(self) -> int:
        """Positions whose experts are known: all that were fed, i.e. everything but the last token."""
        growth = growth_of(self._plan.media)
        return self._plan.held + len(self._plan.prompt_ids) + growth + len(self.ids) - 1

    def _append_experts(self, rows: bytes | None, aborted: bool) -> None:
        if rows is not None:
            self._experts.append(rows, self._rows_end())
        elif (
            self._plan.experts_required and not aborted
        ):  # those in the queue have none; the next attempt brings all missing
            raise _MissingFieldError(
                "routed_experts",
                "return_routed_experts was requested, but the server returned none: "
                "start it with --enable-return-routed-experts, and mind that some routers drop the field",
            )

    def _append_kept(self, kept: SamplingMask | None, count: int) -> None:
        if kept is None:
            if count:
                raise _MissingFieldError(
                    "output_token_sampling_mask",
                    "return_sampling_mask was requested, but the server returned none: it needs SGLang 0.5.18 or newer",
                )
        else:
            self._kept = kept if self._kept is None else SamplingMask.join([self._kept, kept])

    def cut(self, length: int) -> None:
        """Forget the tokens after the first `length`."""
        if length >= len(self.ids):
            return
        del self.ids[length:]
        if self._logprobs is not None:
            del self._logprobs[length:]
        if self._kept is not None:
            self._kept = self._kept.part(0, length)
        self._spans = [
            WeightSpan(version=span.version, start=span.start, end=min(span.end, length))
            for span in self._spans
            if span.start < length
        ]
        self._experts.cut(self._rows_end())

    def completion(self, finish: Finish) -> Completion:
        """The call as it is recorded."""
        spans: list[WeightSpan] = []
        for span in self._spans:
            if spans and spans[-1].end == span.start and spans[-1].version == span.version:
                span = WeightSpan(version=span.version, start=spans.pop().start, end=span.end)
            spans.append(span)
        with_experts = self._fields.get("return_routed_experts")
        return Completion(
            output_ids=self.ids,
            output_logprobs=self._logprobs,
            prompt_logprobs=self._prompt_logprobs,
            finish=finish,
            weight_spans=tuple(spans),
            request_ids=tuple(self._rids),
            cached_tokens=self._cached_tokens,
            latency=self._latency,
            routed_experts=self._experts.rows_up_to(self._rows_end()) if with_experts else None,
            sampling_mask=self._kept,
        )


def _prompt_logprobs(scored: ScoredPrompt | None, plan: CallPlan) -> array[float]:
    """Log-probabilities of the prompt delta. The very first token of a path has none, and neither has an image."""
    expected = expanded_ids(plan.prompt_ids, plan.media)
    count = len(expected)
    ids = array(TOKEN_TYPECODE) if scored is None else scored.ids[-count:]
    values = array(LOGPROB_TYPECODE, [math.nan]) * (count - len(ids))
    if scored is not None:
        values.extend(scored.logprobs[-count:])
    first = count - len(ids)
    shift = 0
    for medium in plan.media:  # the server names 0 for every token of an image
        offset = medium.position + shift
        for place in range(max(offset, first), offset + len(medium.span)):
            ids[place - first] = expected[place]
        shift += medium.growth
    if ids != expected[first:]:
        raise SGLangDecodingError("input_token_logprobs do not belong to the ids that were sent")
    return collapsed_values(values, plan.media, math.nan)


class _MissingFieldError(SGLangClientError, KeyError):
    """A requested field is missing from the answer."""

    def __init__(self, field_name: str, message: str) -> None:
        super().__init__(field_name, message)

    def __str__(self) -> str:
        return f"{self.args[0]}: {self.args[1]}"
