"""Answers of vLLM's `/inference/v1/generate`, checked once where they enter, and its errors."""

from __future__ import annotations

import base64
import binascii
import io
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ...exceptions import BackendAnswerError, BackendHTTPError
from ...trajectory import Finish, FinishType
from ..answer import (
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
from ..contract import GenerateAnswer, GenerateRequest, ScoredPrompt

RID_PREFIX: Final = "generate-tokens-"
"""Prefix that the server puts before the id of a request, in answers and in abort calls."""

# The server's stand-in for a log-probability that is infinite or not a number.
_REPLACED: Final = -9999.0

_FINISHES: Final = {
    "stop": FinishType.STOP,
    "length": FinishType.LENGTH,
    "abort": FinishType.ABORT,
    "repetition": FinishType.STOP,
}


@refuse_unreadable
def read_answer(payload: Any, request: GenerateRequest, *, rid: str | None) -> GenerateAnswer:
    """Check an answer and make it a typed value; `rid` is the id that was sent, or None if it is not known.

    Raises:
        BackendAnswerError: The answer contradicts itself or the request, or is not a whole answer.
    """
    choices = payload.get("choices") if isinstance(payload, Mapping) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], Mapping):
        raise BackendAnswerError(f"the answer has no single choice: {payload!r:.200}")
    choice: Mapping[str, Any] = choices[0]
    answer_id = payload.get("request_id")
    if rid is not None and isinstance(answer_id, str) and answer_id.removeprefix(RID_PREFIX) != rid:
        raise BackendAnswerError(f"the answer to request {rid} is that of request {answer_id}: connections got mixed")
    token_ids = choice.get("token_ids")
    if token_ids is None:
        raise BackendAnswerError("the answer has no token_ids: was it asked for text?")
    ids = checked_ids("token_ids", token_ids)
    finish = _finish(choice, ids[-1] if ids else None)
    check_output(ids, finish, vocab_size=request.vocab_size, max_new_tokens=request.max_new_tokens)
    usage = payload.get("usage")
    usage = usage if isinstance(usage, Mapping) else {}
    prompt_tokens, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if is_count(prompt_tokens) and prompt_tokens != request.prompt_tokens:
        raise BackendAnswerError(f"usage.prompt_tokens={prompt_tokens}, but {request.prompt_tokens} tokens were sent")
    if is_count(completion) and completion != len(ids):
        raise BackendAnswerError(f"usage.completion_tokens={completion}, but the answer has {len(ids)} token_ids")
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    prompt_ids = payload.get("prompt_token_ids")
    return GenerateAnswer(
        output_ids=ids,
        finish=finish,
        output_logprobs=_logprobs(choice.get("logprobs"), ids.tolist()) if request.logprobs else None,
        scored_prompt=None if request.score_from is None else _read_scored(payload.get("prompt_logprobs"), request),
        weight_spans=weight_spans(choice.get("weight_versions"), None, len(ids)),
        routed_experts=None if request.experts_from is None else _experts(choice.get("routed_experts")),
        sampling_mask=sampling_mask("sampling_mask", choice.get("sampling_mask"), len(ids)),
        rid=answer_id.removeprefix(RID_PREFIX) if isinstance(answer_id, str) else None,
        prompt_tokens=prompt_tokens if is_count(prompt_tokens) else None,
        prompt_ids=prompt_ids if isinstance(prompt_ids, list) else None,
        cached_tokens=cached if is_count(cached) else None,
        payload=payload,
    )


def _finish(choice: Mapping[str, Any], last: int | None) -> Finish:
    reason, matched = choice.get("finish_reason"), choice.get("stop_reason")
    if not isinstance(reason, str):
        raise BackendAnswerError(f"the answer has no finish_reason, so it is not complete: {reason!r:.200}")
    kind = _FINISHES.get(reason, FinishType.UNKNOWN)
    if kind is not FinishType.STOP:
        return Finish(type=kind, message=reason if kind is FinishType.UNKNOWN else None)
    if reason == "repetition":
        return Finish(type=kind, matched=reason)
    # The end-of-sequence token is named by nothing; it is the last one.
    return Finish(type=kind, matched=matched if isinstance(matched, int | str) else last)


def _logprobs(field: Any, ids: list[int]) -> Any:
    """The log-probability of each sampled token; None where the answer has none at all."""
    entries = field.get("content") if isinstance(field, Mapping) else None
    if entries is None:
        return None
    names = [entry.get("token_id") for entry in entries]
    if None in names:  # releases before 0.32 write `"token": "token_id:N"`
        texts = [str(entry.get("token")) for entry in entries]
        names = [int(text.removeprefix("token_id:")) if text.startswith("token_id:") else None for text in texts]
    if names != ids:
        raise BackendAnswerError(
            f"logprobs.content ({len(names)} entries) do not belong to token_ids ({len(ids)} tokens): {names!r:.100}"
        )
    values = [entry["logprob"] for entry in entries]
    logprobs = checked_logprobs("logprobs.content", values)
    if logprobs and not (sum(logprobs) > -math.inf and min(logprobs) > _REPLACED):  # NaN fails the first
        unknown = (each for each in zip(ids, values, strict=True) if each[1] is None or not each[1] > _REPLACED)
        token, value = next(unknown)
        raise BackendAnswerError(
            f"the sampled token {token} has the log-probability {value!r}: it is not known, and is not made up"
        )
    return logprobs


def _read_scored(listing: Any, request: GenerateRequest) -> ScoredPrompt | None:
    """The prompt from `score_from` on; nothing precedes the very first token, which has no value."""
    if listing is None:
        return None
    prompt = request.prompt
    if len(listing) != len(prompt):
        raise BackendAnswerError(f"prompt_logprobs has {len(listing)} entries for a prompt of {len(prompt)} tokens")
    start, count = request.score_from or 0, request.score_top_k
    ids, entries = prompt[start:], listing[start:]
    values = [_read_logprob(entry[str(token)]) if entry else None for token, entry in zip(ids, entries, strict=True)]
    scored = ScoredPrompt(ids=checked_ids("prompt", ids), logprobs=checked_logprobs("prompt_logprobs", values))
    if not count:
        return scored
    # The token of the prompt comes along where it is none of them, with its rank.
    ranked = [
        sorted((each["rank"], int(token), _read_logprob(each)) for token, each in (entry or {}).items())
        for entry in entries
    ]
    return replace(scored, **top_rows("prompt_logprobs", [[pair[1:] for pair in row[:count]] for row in ranked]))


def _read_logprob(entry: Mapping[str, Any]) -> float | None:
    value = entry["logprob"]
    return None if value is None or value <= _REPLACED else value


def _experts(encoded: Any) -> bytes | None:
    """Rows of int32 experts, of a base64 `.npy` of shape (tokens, layers, experts)."""
    if encoded is None:
        return None
    import numpy as np

    try:
        rows = np.load(io.BytesIO(base64.b64decode(encoded, validate=True)), allow_pickle=False)
    except (binascii.Error, TypeError, ValueError, EOFError, OSError) as error:
        raise BackendAnswerError(f"routed_experts is not a base64 .npy array: {error}") from error
    if rows.ndim != 3 or rows.dtype.kind not in "iu":
        raise BackendAnswerError(f"routed_experts must be 3-d integers, got a {rows.ndim}-d array of {rows.dtype}")
    return bytes(np.ascontiguousarray(rows, dtype="<i4").tobytes())


# ---- errors

# Whole sentences: other messages may quote the caller's words.
_OVERFLOW: Final = re.compile(
    r"^The (?:decoder |encoder )?prompt \(length \d+\) is longer than the maximum model length of \d+"
    r"|^This model's maximum context length is \d+ tokens",
    re.IGNORECASE,
)
_OTHER_VOCABULARY: Final = re.compile(r"^Token id \d+ is out of vocabulary")
_HINTS: Final = {
    401: "give api_key, or set VLLM_API_KEY, to the key that the server was started with",
    403: "start vLLM with --enable-scale-out",
    404: "vLLM has /inference/v1/generate from 0.20 on; an SGLang server is reached with SGLangClient, or "
    "--backend sglang",
}


def http_error(status: int, body: bytes) -> BackendHTTPError:
    """The typed error of an error answer, in the server's words and with a hint that may help."""
    text = body.decode("utf-8", "replace")
    words = parse_error_body(text).message
    hint = _HINTS.get(status) if status != 404 or '"NotFoundError"' not in text else None  # otherwise an unknown model
    if hint is not None and "--enable-scale-out" in words:
        hint = None  # newer servers name the flag themselves
    if _OTHER_VOCABULARY.search(words):
        hint = "the tokenizer is not that of the served model"
    overflows = status == 400 and _OVERFLOW.search(words) is not None
    return make_http_error(status, text, words, overflows=overflows, hint=hint)
