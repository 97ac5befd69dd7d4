"""One model call: request, answer, and resumption of what the server aborted."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import math
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .._http_errors import http_error
from ..exceptions import SGLangAbortedError, SGLangClientError, SGLangDecodingError
from ..trajectory import Completion, Finish, FinishType, KeptTokens, WeightSpan
from ..trajectory._segments import LOGPROB_TYPECODE, TOKEN_TYPECODE
from ._options import AbortPolicy

logger = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # seconds between an abort and the attempt to resume


class GenerateClient(Protocol):
    """Anything that speaks the generate contract: the HTTP client, the embedded engine, a scripted fake."""

    async def generate(self, input_ids: list[int], **fields: Any) -> dict[str, Any]:
        """Sample a continuation of `input_ids`; the answer is that of SGLang's native `/generate`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """Everything a model call sends.

    Attributes:
        held_ids: Ids of the path the call extends.
        prompt_ids: Ids appended to it.
        sampling_params: Validated, with an explicit `max_new_tokens`.
        fields: Further top-level fields.
        return_logprob: Ask for output log-probabilities.
        return_prompt_logprobs: Ask for those of `prompt_ids`, too.
        return_routed_experts: Ask for the routed experts of what is new.
        return_sampling_mask: Ask for the sampling support of every output token.
        abort_policy: What to do when the server aborts.
        abort_timeout: Seconds after the first abort within which a resumed call must get on, or None for no limit.
    """

    held_ids: Sequence[int]
    prompt_ids: array[int]
    sampling_params: Mapping[str, Any]
    fields: Mapping[str, Any]
    return_logprob: bool
    return_prompt_logprobs: bool
    return_routed_experts: bool
    return_sampling_mask: bool
    abort_policy: AbortPolicy
    abort_timeout: float | None


def _no_logprobs() -> array[float]:
    return array(LOGPROB_TYPECODE)


@dataclass(slots=True)
class _Pieces:
    """What has been sampled so far, over all attempts of one call."""

    ids: array[int] = field(default_factory=lambda: array(TOKEN_TYPECODE))
    logprobs: array[float] | None = field(default_factory=_no_logprobs)
    prompt_logprobs: array[float] | None = None
    spans: list[WeightSpan] = field(default_factory=list)
    request_ids: list[str] = field(default_factory=list)
    experts: list[bytes] = field(default_factory=list)
    expert_rows: int | None = None  # positions, from the start of the sequence, whose experts are known
    kept_ids: array[int] = field(default_factory=lambda: array(TOKEN_TYPECODE))
    kept_offsets: array[int] = field(default_factory=lambda: array("q", [0]))
    cached_tokens: int | None = None
    latency: float | None = None


async def generate(client: GenerateClient, request: GenerateRequest) -> Completion:
    """Run a model call to its end.

    An aborted request is continued from its partial tokens (policy `resume`): the ids already sampled become part of
    the next prompt and `max_new_tokens` shrinks by their number, so the turn is one segment of one length budget
    whatever the server does in between.

    Raises:
        SGLangAbortedError: Under `resume`, nothing more came within `abort_timeout` seconds.
        SGLangClientError: The request failed.
    """
    pieces = _Pieces()
    budget = request.sampling_params["max_new_tokens"]
    pause, deadline = _FIRST_PAUSE, math.inf
    while True:
        answer = await client.generate(
            [*request.held_ids, *request.prompt_ids, *pieces.ids], **_fields(request, pieces)
        )
        before = len(pieces.ids)
        finish = _take(answer, request, pieces)
        if finish.type is not FinishType.ABORT or request.abort_policy is AbortPolicy.SURFACE:
            return _complete(request, pieces, finish)
        if len(pieces.ids) >= budget:
            return _complete(request, pieces, Finish(type=FinishType.LENGTH))
        now = time.monotonic()
        if len(pieces.ids) > before or deadline == math.inf:
            pause, deadline = _FIRST_PAUSE, now + (math.inf if request.abort_timeout is None else request.abort_timeout)
        if now >= deadline:
            raise SGLangAbortedError(
                f"the server kept aborting the request for {request.abort_timeout:g} s "
                f"({finish.message or 'no reason given'})",
                answer,
            )
        logger.debug("sampled=<%d>, pause=<%.2f> | request aborted by the server, resuming", len(pieces.ids), pause)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _fields(request: GenerateRequest, pieces: _Pieces) -> dict[str, Any]:
    held, sampled = len(request.held_ids), len(pieces.ids)
    params = dict(request.sampling_params)
    params["max_new_tokens"] -= sampled
    if params.get("min_new_tokens"):
        params["min_new_tokens"] = max(0, params["min_new_tokens"] - sampled)
    fields: dict[str, Any] = {**request.fields, "sampling_params": params, "return_logprob": request.return_logprob}
    if request.return_logprob:
        # -1 leaves the whole prefix cache usable; a start inside the prompt caps the cache there.
        score_prompt = request.return_prompt_logprobs and not sampled
        # The first scored position has no value, so scoring starts one early: at the last sampled token, whose key and
        # value were never computed, so that this costs no cache either.
        fields["logprob_start_len"] = max(held - 1, 0) if score_prompt else -1
    fields["return_routed_experts"] = request.return_routed_experts
    if request.return_routed_experts:
        fields["routed_experts_start_len"] = max(held - 1, 0) if pieces.expert_rows is None else pieces.expert_rows
    if request.return_sampling_mask:
        fields["return_sampling_mask"] = True
    return fields


def _expert_rows_end(request: GenerateRequest, pieces: _Pieces) -> int:
    """Positions whose experts are known: all that were fed, i.e. everything but the last token."""
    return len(request.held_ids) + len(request.prompt_ids) + len(pieces.ids) - 1


def _take(answer: Mapping[str, Any], request: GenerateRequest, pieces: _Pieces) -> Finish:
    """Check one answer and append it to the pieces.

    Raises:
        SGLangClientError: The answer, which comes from outside, is not what it should be.
    """
    try:
        return _read(answer, request, pieces)
    except SGLangClientError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
        raise SGLangDecodingError(f"the answer cannot be read ({error!r}): {_excerpt(answer)}") from error


def _read(answer: Mapping[str, Any], request: GenerateRequest, pieces: _Pieces) -> Finish:
    meta = answer.get("meta_info")
    if not isinstance(meta, Mapping):
        raise SGLangDecodingError(f"the answer has no meta_info: {_excerpt(answer)}")
    _raise_failed_abort(meta)
    triples = meta.get("output_token_logprobs")
    ids = answer.get("output_ids")
    if ids is None:
        if triples is None:
            raise SGLangDecodingError(
                "the answer has neither output_ids nor output_token_logprobs, so the sampled tokens are unknown; "
                "ask for return_logprob, or use a server from 0.5 on"
            )
        ids = [entry[1] for entry in triples]
    logprobs = _logprobs(ids, triples)
    if logprobs is None and request.return_logprob and ids:
        logger.warning("request_id=<%s> | log-probabilities were requested and not returned", meta.get("id"))
    offset = len(pieces.ids)
    pieces.ids.extend(ids)
    if logprobs is None or pieces.logprobs is None:
        pieces.logprobs = None if ids else pieces.logprobs
    else:
        pieces.logprobs.extend(logprobs)
    pieces.spans.extend(_weight_spans(meta, len(ids), offset))
    if isinstance(meta.get("id"), str):
        pieces.request_ids.append(meta["id"])
    if pieces.cached_tokens is None and isinstance(meta.get("cached_tokens"), int):
        pieces.cached_tokens = meta["cached_tokens"]
    if isinstance(meta.get("e2e_latency"), int | float):
        pieces.latency = (pieces.latency or 0.0) + meta["e2e_latency"]
    finish = Finish.from_meta(meta.get("finish_reason"))
    scored = meta.get("input_token_logprobs")
    # A request aborted before it ran has scored nothing; the next attempt is asked again.
    if (
        request.return_prompt_logprobs
        and pieces.prompt_logprobs is None
        and (scored or finish.type != FinishType.ABORT)
    ):
        pieces.prompt_logprobs = _prompt_logprobs(scored, request)
    if request.return_routed_experts:
        _take_experts(meta, finish, request, pieces)
    if request.return_sampling_mask:
        _take_sampling_mask(meta, finish, len(ids), pieces)
    return finish


def _raise_failed_abort(meta: Mapping[str, Any]) -> None:
    """An abort with an error status is a refusal by the server, not an interruption."""
    reason = meta.get("finish_reason")
    if isinstance(reason, Mapping) and reason.get("type") == "abort":
        status = reason.get("status_code")
        if isinstance(status, int) and status >= 400:
            raise http_error(status, str(reason.get("message") or "aborted"))


def _logprobs(ids: Sequence[int], triples: Any) -> array[float] | None:
    if triples is None:
        return None
    if len(triples) != len(ids) or any(entry[1] != token for entry, token in zip(triples, ids, strict=True)):
        raise SGLangDecodingError(
            f"output_token_logprobs ({len(triples)} entries) do not belong to output_ids ({len(ids)} tokens)"
        )
    return array(LOGPROB_TYPECODE, (math.nan if entry[0] is None else entry[0] for entry in triples))


def _prompt_logprobs(triples: Any, request: GenerateRequest) -> array[float]:
    """Log-probabilities of the prompt delta. The very first token of a path has none."""
    count = len(request.prompt_ids)
    entries = list(triples or ())[-count:] if count else []
    values = array(LOGPROB_TYPECODE, (math.nan for _ in range(count - len(entries))))
    values.extend(math.nan if entry[0] is None else entry[0] for entry in entries)
    for entry, token in zip(reversed(entries), reversed(request.prompt_ids), strict=False):
        if entry[1] != token:
            raise SGLangDecodingError("input_token_logprobs do not belong to the ids that were sent")
    return values


def _weight_spans(meta: Mapping[str, Any], count: int, offset: int) -> list[WeightSpan]:
    """Spans that tile the output; the version is None where the answer does not say it in a readable way."""
    entries = meta.get("weight_versions")
    if not (isinstance(entries, list) and entries):
        entries = [{"version": meta.get("weight_version"), "start": 0, "end": count}]
    spans: list[WeightSpan] = []
    end = 0

    def add(version: str | None, stop: int) -> None:
        nonlocal end
        if stop > end:
            spans.append(WeightSpan(version=version, start=offset + end, end=offset + stop))
            end = stop

    for entry in entries:
        if not isinstance(entry, Mapping):
            continue
        version, first, last = entry.get("version"), entry.get("start"), entry.get("end")
        if isinstance(version, str | int) and isinstance(first, int) and isinstance(last, int) and first < last:
            add(None, min(first, count))
            add(str(version), min(last, count))
    add(None, count)
    return spans


def _take_experts(meta: Mapping[str, Any], finish: Finish, request: GenerateRequest, pieces: _Pieces) -> None:
    data = meta.get("routed_experts")
    if data is None:
        if finish.type is FinishType.ABORT:
            return  # requests aborted while waiting have none; the next attempt is asked for all that is missing
        raise _MissingField(
            "routed_experts",
            "return_routed_experts was asked for and the server returned none: "
            "start it with --enable-return-routed-experts, and mind that some routers drop the field",
        )
    try:
        pieces.experts.append(base64.b64decode(data, validate=True))
    except (binascii.Error, TypeError) as error:
        raise SGLangDecodingError(f"routed_experts is not valid base64: {error}") from error
    pieces.expert_rows = _expert_rows_end(request, pieces)


def _take_sampling_mask(meta: Mapping[str, Any], finish: Finish, count: int, pieces: _Pieces) -> None:
    masks = meta.get("output_token_sampling_mask")
    if masks is None and count:
        raise _MissingField(
            "output_token_sampling_mask",
            "return_sampling_mask was asked for and the server returned none: it needs SGLang 0.5.18 or newer",
        )
    for kept in masks or ():
        pieces.kept_ids.extend(kept)
        pieces.kept_offsets.append(len(pieces.kept_ids))
    if len(pieces.kept_offsets) != len(pieces.ids) + 1:
        raise SGLangDecodingError("output_token_sampling_mask does not have one set per output token")


class _MissingField(SGLangClientError, KeyError):
    """A requested field is missing from the answer."""

    def __init__(self, field_name: str, message: str) -> None:
        super().__init__(field_name, message)

    def __str__(self) -> str:
        return f"{self.args[0]}: {self.args[1]}"


def _complete(request: GenerateRequest, pieces: _Pieces, finish: Finish) -> Completion:
    spans: list[WeightSpan] = []
    for span in pieces.spans:
        if spans and spans[-1].end == span.start and spans[-1].version == span.version:
            span = WeightSpan(version=span.version, start=spans.pop().start, end=span.end)
        spans.append(span)
    has_kept = len(pieces.kept_offsets) > 1
    return Completion(
        output_ids=pieces.ids,
        output_logprobs=pieces.logprobs,
        prompt_logprobs=pieces.prompt_logprobs,
        finish=finish,
        weight_spans=tuple(spans),
        request_ids=tuple(pieces.request_ids),
        cached_tokens=pieces.cached_tokens,
        latency=pieces.latency,
        routed_experts=b"".join(pieces.experts) if pieces.expert_rows == _expert_rows_end(request, pieces) else None,
        kept_tokens=KeptTokens(ids=pieces.kept_ids, offsets=pieces.kept_offsets) if has_kept else None,
    )


def _excerpt(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "..."
