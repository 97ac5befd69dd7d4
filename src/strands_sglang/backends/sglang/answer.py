"""One `/generate` answer, checked once where it enters: what passes here can be recorded in a trajectory."""

from __future__ import annotations

import base64
import binascii
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from types import NoneType
from typing import Any, TypeGuard

import orjson

from ...exceptions import SGLangClientError, SGLangDecodingError
from ...trajectory import Finish, FinishType, SamplingMask, WeightSpan
from ...trajectory.segments import LOGPROB_TYPECODE, TOKEN_TYPECODE
from ..http.http_errors import embedded_error, http_error
from .request import GenerateRequest

_MAPPING = (dict, Mapping)  # the plain type first: it is tested faster
_EXCERPT = 200
_ROUNDING = 1e-5
"""A log-probability this far above 0 is a rounding error of float32; any other positive one is refused."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoredPrompt:
    """Log-probabilities of the last tokens of a prompt.

    Attributes:
        ids: The tokens, as the server names them.
        logprobs: One value a token; NaN where there is none.
    """

    ids: array[int]
    logprobs: array[float]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GenerateAnswer:
    """A checked answer. `read_answer` makes one of anything that is an answer.

    Attributes:
        payload: The answer as it came, completed with `output_ids` where an old server left them out.
        output_ids: Sampled ids, the matched stop token included.
        output_logprobs: One value an output token (NaN = none), or None where the answer has none at all.
        scored_prompt: Log-probabilities of the prompt, or None where the answer has none.
        finish: How it ended.
        weight_spans: Weight versions over the output; the spans tile it.
        routed_experts: Raw little-endian int32 rows, or None.
        sampling_mask: Ids that survived top-k and top-p per output token, or None.
        rid: Request id, or None.
        cached_tokens: Prompt tokens the server took from its prefix cache, or None.
        latency: Seconds the server took, or None.
    """

    payload: Mapping[str, Any]
    output_ids: array[int]
    output_logprobs: array[float] | None
    scored_prompt: ScoredPrompt | None
    finish: Finish
    weight_spans: tuple[WeightSpan, ...]
    routed_experts: bytes | None
    sampling_mask: SamplingMask | None
    rid: str | None
    cached_tokens: int | None
    latency: float | None


def parse_answer(body: bytes) -> Any:
    """The JSON of a 200 answer.

    Raises:
        SGLangDecodingError: It is not JSON (half-written, or not SGLang).
        SGLangHTTPError: It is an error object or an error event.
    """
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if body.lstrip().startswith(b"data:") and (failure := _stream_error(body)) is not None:
            raise failure from None
        raise SGLangDecodingError(f"the answer is not JSON ({error}); {len(body)} bytes: {_excerpt(body)}") from error
    if (failure := embedded_error(body, parsed)) is not None:
        raise failure
    return parsed


def _stream_error(body: bytes) -> Exception | None:
    first = body.lstrip().splitlines()[0].removeprefix(b"data:").strip()
    try:
        return embedded_error(body, orjson.loads(first))
    except orjson.JSONDecodeError:
        return None


def read_answer(payload: Any, *, vocab_size: int | None = None, max_new_tokens: int | None = None) -> GenerateAnswer:
    """Check a generate answer and make it a typed value.

    Every key of `meta_info` but the finish reason is optional (requests aborted in the waiting queue lack most), but
    what is there must agree: as many log-probabilities as ids, for the same ids, none of them positive.

    Args:
        payload: The answer as Python objects.
        vocab_size: Number of ids the model has, or None if unknown.
        max_new_tokens: Most tokens that were asked for, or None if unknown. An aborted request may overshoot: several
            tokens a step were decoded, and nobody cut them to the length.

    Raises:
        SGLangDecodingError: The answer contradicts itself or the request, or is no whole generate answer.
        SGLangHTTPError: An abort that carries an error status: the server refused the request.
    """
    try:
        return _read(payload, vocab_size, max_new_tokens)
    except SGLangClientError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
        raise SGLangDecodingError(f"the answer cannot be read ({error!r}): {payload!r:.200}") from error


def _read(payload: Any, vocab_size: int | None, max_new_tokens: int | None) -> GenerateAnswer:
    if not isinstance(payload, _MAPPING):
        raise SGLangDecodingError(
            f"the answer is a JSON {type(payload).__name__}, expected one object: {payload!r:.200}"
        )
    meta = payload.get("meta_info")
    if not isinstance(meta, _MAPPING):
        raise SGLangDecodingError(f"the answer has no meta_info object: {payload!r:.200}")
    finish = _finish(meta)
    listed = payload.get("output_ids")
    ids = array(TOKEN_TYPECODE) if listed is None else _ids("output_ids", listed)
    entries = meta.get("output_token_logprobs")
    scored = None if entries is None else _scored("output_token_logprobs", entries, listed, ids)
    if listed is None:
        if scored is None and finish.type is not FinishType.ABORT:  # one aborted before it ran sampled nothing
            raise SGLangDecodingError(
                "the answer has neither output_ids nor output_token_logprobs, so the sampled tokens are unknown; "
                "ask for return_logprob, or use a server from 0.5 on"
            )
        ids = ids if scored is None else scored.ids
        payload = {**payload, "output_ids": ids.tolist()}
    elif scored is not None and scored.ids is not ids and scored.ids != ids:
        raise SGLangDecodingError(
            f"output_token_logprobs ({len(scored.ids)} entries) do not belong to output_ids ({len(ids)} tokens): "
            f"{scored.ids.tolist()!r:.100} against {ids.tolist()!r:.100}"
        )
    if vocab_size is not None and ids and max(ids) >= vocab_size:
        raise SGLangDecodingError(
            f"output_ids has {max(ids)}, expected ids from 0 to {vocab_size - 1}, those of the vocabulary"
        )
    if max_new_tokens is not None and len(ids) > max_new_tokens and finish.type is not FinishType.ABORT:
        raise SGLangDecodingError(f"the answer holds {len(ids)} tokens, but max_new_tokens was {max_new_tokens}")
    prompt = meta.get("input_token_logprobs")
    rid, cached, latency = meta.get("id"), meta.get("cached_tokens"), meta.get("e2e_latency")
    return GenerateAnswer(
        payload=payload,
        output_ids=ids,
        output_logprobs=None if scored is None else scored.logprobs,
        scored_prompt=_scored("input_token_logprobs", prompt) if prompt else None,
        finish=finish,
        weight_spans=_weight_spans(meta, len(ids)),
        routed_experts=_experts(meta.get("routed_experts")),
        sampling_mask=_sampling_mask(meta.get("output_token_sampling_mask"), len(ids)),
        rid=rid if isinstance(rid, str) else None,
        cached_tokens=cached if is_count(cached) else None,
        latency=latency if isinstance(latency, int | float) else None,
    )


def _finish(meta: Mapping[str, Any]) -> Finish:
    """How the answer ended. Without a reason it is a chunk of a stream: not finished, and not all of its tokens."""
    reason = meta.get("finish_reason")
    kind = reason.get("type") if isinstance(reason, _MAPPING) else reason
    if not isinstance(kind, str):
        raise SGLangDecodingError(
            f"the answer has no finish_reason, so it is not complete: meta_info.finish_reason={reason!r:.200}"
        )
    if kind == "abort" and isinstance(reason, _MAPPING):
        status = reason.get("status_code")
        if is_count(status) and 400 <= status <= 599:  # a refusal by the server, not an interruption
            raise http_error(status, str(reason.get("message") or "aborted"))
    return Finish.from_meta(reason)


def is_count(value: Any) -> TypeGuard[int]:
    """Whether a value is an integer, and not a truth value."""
    return isinstance(value, int) and not isinstance(value, bool)


def _ids(name: str, listed: Any) -> array[int]:
    """Token ids as a compact array. A wrong one, sent back in the next prompt, would kill the server."""
    if not isinstance(listed, list):
        listed = listed.tolist() if hasattr(listed, "tolist") else list(listed)
    if not set(map(type, listed)) <= {int}:
        raise SGLangDecodingError(f"{name}={listed!r:.200}: expected a list of token ids")
    try:
        ids = array(TOKEN_TYPECODE, listed)
    except OverflowError as error:
        raise SGLangDecodingError(f"{name}={listed!r:.200}: expected token ids of 31 bits") from error
    if ids and (lowest := min(ids)) < 0:
        raise SGLangDecodingError(f"{name} has {lowest}, expected ids from 0")
    return ids


def _scored(name: str, entries: Any, known: Any = None, known_ids: array[int] | None = None) -> ScoredPrompt:
    """A list of `[logprob or null, id, text or null]` entries, as arrays.

    Args:
        name: Name of the list.
        entries: The list.
        known: A list of ids that was checked before.
        known_ids: Its array, which is used where the entries name the same ids.
    """
    if not entries:
        return ScoredPrompt(ids=array(TOKEN_TYPECODE), logprobs=array(LOGPROB_TYPECODE))
    try:
        values, listed, *_ = zip(*entries, strict=False)
    except (TypeError, ValueError) as error:
        raise SGLangDecodingError(f"meta_info.{name}={entries!r:.200}: expected [logprob, id, text] entries") from error
    same = known_ids is not None and list(listed) == known and set(map(type, listed)) == {int}
    ids = known_ids if same and known_ids is not None else _ids(name, list(listed))
    return ScoredPrompt(ids=ids, logprobs=_logprobs(name, values))


def _logprobs(name: str, values: Sequence[Any]) -> array[float]:
    kinds = set(map(type, values))
    if not kinds <= {float}:
        if bool in kinds or not all(issubclass(kind, Real | NoneType) for kind in kinds):
            raise SGLangDecodingError(
                f"meta_info.{name}={values!r:.200}: expected numbers or null as log-probabilities"
            )
        values = [math.nan if value is None else float(value) for value in values]
    logprobs = array(LOGPROB_TYPECODE, values)
    # No comparison with NaN holds, so `max` would overlook what stands beside one.
    known = logprobs if (total := sum(logprobs)) == total else [value for value in logprobs if value == value]
    if known and (positive := max(known)) > _ROUNDING:
        raise SGLangDecodingError(f"meta_info.{name} has the log-probability {positive!r}: expected at most 0")
    return logprobs


def _experts(encoded: Any) -> bytes | None:
    if encoded is None:
        return None
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise SGLangDecodingError(f"routed_experts is not valid base64: {error}") from error


def _sampling_mask(masks: Any, count: int) -> SamplingMask | None:
    if masks is None:
        return None
    if not isinstance(masks, Sequence) or len(masks) != count:
        raise SGLangDecodingError(
            f"output_token_sampling_mask does not have one set per output token ({count}): {masks!r:.200}"
        )
    return SamplingMask.of(_ids("output_token_sampling_mask", survivors) for survivors in masks)


def _weight_spans(meta: Mapping[str, Any], count: int) -> tuple[WeightSpan, ...]:
    """Spans that tile the output; the version is None where the answer does not say it in a readable way."""
    entries = meta.get("weight_versions")
    if not (isinstance(entries, list) and entries):
        entries = [{"version": meta.get("weight_version"), "start": 0, "end": count}]
    spans: list[WeightSpan] = []
    end = 0

    def add(version: str | None, stop: int) -> None:
        nonlocal end
        if stop > end:
            spans.append(WeightSpan(version=version, start=end, end=stop))
            end = stop

    for entry in entries:
        if not isinstance(entry, _MAPPING):
            continue
        version, first, last = entry.get("version"), entry.get("start"), entry.get("end")
        if isinstance(version, str | int) and isinstance(first, int) and isinstance(last, int) and first < last:
            add(None, min(first, count))
            add(str(version), min(last, count))
    add(None, count)
    return tuple(spans)


# Fields that make the server's prompt longer than the ids that were sent.
_PROMPT_FIELDS = frozenset({"image_data", "video_data", "audio_data", "session_params"})


def check_belongs(
    answer: GenerateAnswer, request: GenerateRequest, *, rid: str, was_sent: Callable[[object], bool]
) -> None:
    """Check that the answer of a server is the answer to this request.

    Args:
        answer: The answer.
        request: The request.
        rid: Id of the attempt.
        was_sent: Whether an id is that of a request of this client.

    Raises:
        SGLangDecodingError: It answers another request of ours, a prompt of another length, or counts its tokens
            otherwise.
    """
    meta = answer.payload["meta_info"]
    if answer.rid != rid and was_sent(answer.rid):
        raise SGLangDecodingError(f"the answer to request {rid} is that of request {answer.rid}: connections got mixed")
    prompt, count = meta.get("prompt_tokens"), meta.get("completion_tokens")
    if is_count(prompt) and prompt != len(request.prompt) and _PROMPT_FIELDS.isdisjoint(request.fields):
        raise SGLangDecodingError(
            f"meta_info.prompt_tokens={prompt}, but {len(request.prompt)} input ids were sent: was the prompt cut "
            "(--allow-auto-truncate)?"
        )
    # An abort may lose the last tokens on their way; those that came are right all the same.
    if is_count(count) and count != len(answer.output_ids) and answer.finish.type is not FinishType.ABORT:
        raise SGLangDecodingError(
            f"meta_info.completion_tokens={count}, but the answer has {len(answer.output_ids)} output_ids"
        )


def _excerpt(body: bytes) -> str:
    text = body[:_EXCERPT].decode("utf-8", "replace")
    return repr(text) + ("..." if len(body) > _EXCERPT else "")
