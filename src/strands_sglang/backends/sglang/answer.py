"""Answers of SGLang's `/generate`, checked once where they enter, its errors, and what routers dropped on the way.

Servers and routers speak at least eight dialects of errors (`docs/errors-and-retries.md` lists them). All of them are
read here, by structure: the status, then the parsed body, never a substring of the raw text.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from array import array
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ...exceptions import BackendAnswerError, BackendHTTPError
from ...trajectory import Finish, FinishType
from ...trajectory.packed import LOGPROB_TYPECODE, TOKEN_TYPECODE
from ..answer import (
    ErrorBody,
    check_output,
    checked_ids,
    checked_logprobs,
    is_count,
    parse_error_body,
    refuse_unreadable,
    sampling_mask,
    top_rows,
    weight_spans,
)
from ..answer import http_error as make_http_error
from ..contract import GenerateAnswer, ScoredPrompt
from ..http.call import GenerateCall
from ..http.retry import RetryClass, classify_failure, classify_status

_FINISHES = {str(member): member for member in FinishType}
_MAPPING = (dict, Mapping)  # the plain type first: it is tested faster


@refuse_unreadable
def read_answer(
    payload: Any, *, vocab_size: int | None = None, max_new_tokens: int | None = None, prompt: array[int] | None = None
) -> GenerateAnswer:
    """Check a generate answer and make it a typed value.

    Every key of `meta_info` but the finish reason is optional (requests aborted in the waiting queue lack most), but
    what is there must agree: as many log-probabilities as ids, for the same ids, none of them positive.

    Args:
        max_new_tokens: Most tokens that were asked for, or None if unknown. An aborted request may overshoot: several
            tokens a step were decoded, and nobody cut them to the length.
        prompt: The prompt that was sent, or None if it has images, which the server expands.

    Raises:
        BackendAnswerError: The answer contradicts itself or the request, or is not a whole generate answer.
        BackendHTTPError: An abort that carries an error status: the server refused the request.
    """
    if not isinstance(payload, _MAPPING):
        raise BackendAnswerError(f"the answer must be a JSON object, got a {type(payload).__name__}: {payload!r:.200}")
    meta = payload.get("meta_info")
    if not isinstance(meta, _MAPPING):
        raise BackendAnswerError(f"the answer has no meta_info object: {payload!r:.200}")
    finish = _finish(meta)
    token_ids = payload.get("output_ids")
    if token_ids is None and finish.type is not FinishType.ABORT:  # one aborted before it ran sampled nothing
        raise BackendAnswerError("the answer has no output_ids, so the sampled tokens are unknown: is it SGLang 0.5?")
    ids = checked_ids("output_ids", token_ids or [])
    entries = meta.get("output_token_logprobs")
    scored = None if entries is None else _read_scored("output_token_logprobs", entries, token_ids, ids)
    if scored is not None and scored.ids is not ids and scored.ids != ids:
        raise BackendAnswerError(
            f"output_token_logprobs ({len(scored.ids)} entries) do not belong to output_ids ({len(ids)} tokens): "
            f"{scored.ids.tolist()!r:.100} against {ids.tolist()!r:.100}"
        )
    check_output(ids, finish, vocab_size=vocab_size, max_new_tokens=max_new_tokens)
    scores = meta.get("input_token_logprobs")
    scored_prompt = _with_top(_read_scored("input_token_logprobs", scores), meta) if scores else None
    if prompt is not None and scored_prompt is not None:
        _restore_last_id(scored_prompt, prompt, vocab_size)
    prompt_ids, length = payload.get("prompt_token_ids"), meta.get("prompt_tokens")
    rid, cached, latency = meta.get("id"), meta.get("cached_tokens"), meta.get("e2e_latency")
    return GenerateAnswer(
        payload=payload,
        output_ids=ids,
        output_logprobs=None if scored is None else scored.logprobs,
        scored_prompt=scored_prompt,
        finish=finish,
        weight_spans=weight_spans(meta.get("weight_versions"), meta.get("weight_version"), len(ids)),
        routed_experts=_experts(meta.get("routed_experts")),
        sampling_mask=sampling_mask("output_token_sampling_mask", meta.get("output_token_sampling_mask"), len(ids)),
        rid=rid if isinstance(rid, str) else None,
        prompt_tokens=length if is_count(length) else None,
        prompt_ids=prompt_ids if isinstance(prompt_ids, list) else None,
        cached_tokens=cached if is_count(cached) else None,
        latency=latency if isinstance(latency, int | float) else None,
    )


def _finish(meta: Mapping[str, Any]) -> Finish:
    """The end of an answer. Without a reason it is a chunk of a stream: not finished, and not all of its tokens."""
    reason = meta.get("finish_reason")
    details = reason if isinstance(reason, _MAPPING) else {"type": reason}
    name, message, matched = details.get("type"), details.get("message"), details.get("matched")
    if not isinstance(name, str):
        raise BackendAnswerError(
            f"the answer has no finish_reason, so it is not complete: meta_info.finish_reason={reason!r:.200}"
        )
    kind = _FINISHES.get(name, FinishType.UNKNOWN)
    status = details.get("status_code")
    if kind is FinishType.ABORT and is_count(status) and 400 <= status <= 599:  # a refusal, not an interruption
        raise http_error(status, str(message or "aborted"))
    if message is None and kind is FinishType.UNKNOWN:
        message = name
    return Finish(
        type=kind,
        matched=matched if isinstance(matched, int | str) else None,
        message=message if isinstance(message, str) else None,
    )


def _read_scored(name: str, entries: Any, known: Any = None, known_ids: array[int] | None = None) -> ScoredPrompt:
    """Arrays of `[logprob or null, id, text or null]` entries; `known_ids`, of the checked `known`, where equal."""
    if not entries:
        return ScoredPrompt(ids=array(TOKEN_TYPECODE), logprobs=array(LOGPROB_TYPECODE))
    try:
        values, listed = [entry[0] for entry in entries], [entry[1] for entry in entries]
    except (TypeError, LookupError) as error:
        raise BackendAnswerError(
            f"meta_info.{name} must be [logprob, id, text] entries, got {entries!r:.200}"
        ) from error
    # One comparison of lists in place of a check of every id, where the answer names the same ids twice.
    same = known_ids is not None and listed == known and set(map(type, listed)) == {int}
    ids = known_ids if same and known_ids is not None else checked_ids(name, listed)
    return ScoredPrompt(ids=ids, logprobs=checked_logprobs(name, values))


def _restore_last_id(scored: ScoredPrompt, prompt: array[int], vocab_size: int | None) -> None:
    """Name tokens of the last vocabulary id, for which SGLang says 0. They have no value: nothing proves whose it is.

    SGLang clips these names at `vocab_size - 1`, exclusive, because it stands hashes in for the tokens of images.
    """
    if 0 not in scored.ids or len(scored.ids) > len(prompt):
        return
    last = max(prompt) if vocab_size is None else vocab_size - 1
    for place, (named_id, token) in enumerate(zip(scored.ids, prompt[-len(scored.ids) :], strict=True)):
        if named_id == 0 and token == last != 0:
            scored.ids[place], scored.logprobs[place] = last, math.nan


def _with_top(scored: ScoredPrompt, meta: Mapping[str, Any]) -> ScoredPrompt:
    """The same with the most likely tokens at each position, where the answer has them."""
    rows = meta.get("input_top_logprobs")
    if not rows:
        return scored
    if len(rows) != len(scored.ids):
        raise BackendAnswerError(f"input_top_logprobs has {len(rows)} rows for {len(scored.ids)} tokens")
    pairs = [[(entry[1], entry[0]) for entry in row or ()] for row in rows]
    return replace(scored, **top_rows("input_top_logprobs", pairs))


def _experts(encoded: Any) -> bytes | None:
    if encoded is None:
        return None
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise BackendAnswerError(f"routed_experts is not valid base64: {error}") from error


# Fields that make the server's prompt longer than the ids that were sent.
_PROMPT_FIELDS = frozenset({"image_data", "video_data", "audio_data", "session_params"})


def check_belongs(answer: GenerateAnswer, call: GenerateCall, *, rid: str, sent_ids: Collection[str]) -> None:
    """Check that an answer is the one to this call; `sent_ids` are those of this client's requests.

    Raises:
        BackendAnswerError: It answers another request of ours, a prompt of another length, or counts its tokens
            otherwise.
    """
    meta = answer.payload["meta_info"]
    if answer.rid != rid and answer.rid in sent_ids:
        raise BackendAnswerError(f"the answer to request {rid} is that of request {answer.rid}: connections got mixed")
    prompt, sent_count, count = answer.prompt_tokens, len(call.request.prompt), meta.get("completion_tokens")
    if prompt is not None and prompt != sent_count and _PROMPT_FIELDS.isdisjoint(call.fields):
        raise BackendAnswerError(
            f"meta_info.prompt_tokens={prompt}, but {sent_count} input ids were sent: was the prompt cut "
            "(--allow-auto-truncate)?"
        )
    # An abort may lose the last tokens on their way; those that arrived are still right.
    if is_count(count) and count != len(answer.output_ids) and answer.finish.type is not FinishType.ABORT:
        raise BackendAnswerError(
            f"meta_info.completion_tokens={count}, but the answer has {len(answer.output_ids)} output_ids"
        )


# ---- what routers dropped


ROUTING_KEY_HEADER = "X-SMG-Routing-Key"
"""Header by which routers keep the requests of one episode on one worker (policies `manual`, `consistent_hashing`)."""

# Routers (sglang-router, smg) re-serialise requests, and lose fields without an error. Measured: both drop these
# sampling parameters, and answer 200.
_DROPPED_SAMPLING_KEYS = frozenset(
    {"spaces_between_special_tokens", "logit_bias", "custom_params", "stop_regex", "structural_tag"}
)
# Request field -> where its effect shows in the answer.
_EFFECTS = {
    "return_logprob": ("meta_info", "output_token_logprobs"),
    "return_routed_experts": ("meta_info", "routed_experts"),
    "return_indexer_topk": ("meta_info", "indexer_topk"),
    "return_sampling_mask": ("meta_info", "output_token_sampling_mask"),
    "return_prompt_token_ids": (None, "prompt_token_ids"),
}
_SERVER_FLAGS = {
    "return_routed_experts": "--enable-return-routed-experts",
    "return_indexer_topk": "--enable-return-indexer-topk",
}


def dropped_fields(
    fields: Mapping[str, Any], rid: str, answer: Mapping[str, Any], headers: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """`(field, reason)` of each top-level field, or sampling parameter, that was lost on the way to the model."""
    meta = answer["meta_info"]
    finish = meta.get("finish_reason")
    was_aborted = isinstance(finish, Mapping) and finish.get("type") == "abort"
    if "id" in meta and meta["id"] != rid:
        yield "rid", "the answer has another request id; aborts by request id cannot work"
    if not was_aborted and answer["output_ids"]:
        for name, (parent, key) in _EFFECTS.items():
            if fields.get(name) is True and key not in (meta if parent else answer):
                flag = _SERVER_FLAGS.get(name)
                reason = "the answer lacks it; a router dropped the field"
                yield name, f"{reason}, or the server runs without {flag}" if flag else reason
    sampling = fields.get("sampling_params")
    dropped = _DROPPED_SAMPLING_KEYS & sampling.keys() if isinstance(sampling, Mapping) else ()
    if dropped and any(header.startswith("x-smg-") or header == "x-request-id" for header in headers):  # a router's
        for name in sorted(dropped):
            yield f"sampling_params.{name}", "routers are known to drop it; it may have had no effect"


# ---- errors


# What servers say when a prompt does not fit: whole sentences, since other messages may quote the words.
_OVERFLOW = re.compile(
    r"The input \(\d+ tokens\) is longer than the .{1,200}'s context length \(\d+ tokens\)"
    r"|exceeds the .{1,200}'s maximum context length of \d+ tokens"
    r"|This model's maximum context length is \d+ tokens"
    r"|Input length \(\d+ tokens\) exceeds the maximum allowed length \(\d+ tokens\)"
    r"|^(?:Multimodal )?(?:Prompt|Input) is too long\b"
    r"|^Input token count exceeds? the max(?:imum)? model len",
    re.IGNORECASE,
)
# Messages that quote the caller's own words, which may say anything: validation errors, schema checks, grammars.
_QUOTES_THE_CALLER = re.compile(
    r"\d+ validation errors?:|unknown field|invalid (?:type|value)|failed to compile|invalid grammar|stop_regex",
    re.IGNORECASE,
)
WORKER_LOST_CODES = frozenset({"call_upstream_request_error", "call_upstream_connection_failed"})
"""`code` of the 500 that a router answers when a worker dies during a request."""
_OVERFLOW_CODES = frozenset({"context_length_exceeded"})


def is_context_overflow(status: int | None, error: ErrorBody) -> bool:
    """True if a 400 says that the prompt, or prompt plus `max_new_tokens`, does not fit the context.

    SGLang gives overflow no status or code of its own, so the parsed message decides; messages that quote the caller
    (validation errors, grammar errors) do not count.
    """
    if status != 400:
        return False
    if error.code in _OVERFLOW_CODES:
        return True
    if not error.known or _QUOTES_THE_CALLER.match(error.message):
        return False
    return bool(_OVERFLOW.search(error.message))


def http_error(status: int, body: str | bytes, *, hint: str = "") -> BackendHTTPError:
    """The typed error of an error answer; `hint`, which may help, ends its message.

    Its message carries the server's words (their first 2,000 characters), its `body` the whole body.
    """
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
    error = parse_error_body(text)
    overflows = is_context_overflow(status, error)
    return make_http_error(status, text, error.message, overflows=overflows, hint=hint)


def classify(error: BaseException) -> RetryClass:
    """The retry class of a failure, from its type, status and parsed body."""
    if not isinstance(error, BackendHTTPError):
        return classify_failure(error)
    status, body = error.status, parse_error_body(error.body)
    if body.retryable is False or is_context_overflow(status, body):
        return RetryClass.NEVER
    if status == 400 and body.message.lower().startswith("duplicate request id"):
        return RetryClass.DUPLICATE_ID
    if status == 500 and body.code in WORKER_LOST_CODES:
        return RetryClass.WORKER_LOST
    by_status = classify_status(status)
    return RetryClass.SERVER_ERROR if by_status is RetryClass.NEVER and body.retryable else by_status
