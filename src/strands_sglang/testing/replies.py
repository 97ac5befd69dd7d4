"""A scripted reply, and the answer a server would give for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

FinishName = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A reply of a fake model.

    Attributes:
        text: The reply as text; `ids` are made of it by the tokenizer if they are not given.
        ids: Sampled ids, the stop token included.
        logprobs: One per id; by default they follow from the ids (`default_logprob`).
        finish: Type of the finish reason. Text replies that stop get the end-of-sequence token appended.
        matched: The id or text that a stop matched; the last id by default.
        delay: Seconds before the answer. An abort that comes meanwhile ends it at once.
        cached_tokens: Prompt tokens found in the cache.
        weight_version: Version of the weights, or None to leave it out.
        meta: Further keys of `meta_info`, such as `routed_experts`; they replace the defaults.
    """

    text: str | None = None
    ids: Sequence[int] | None = None
    logprobs: Sequence[float | None] | None = None
    finish: FinishName = "stop"
    matched: int | str | None = None
    delay: float = 0.0
    cached_tokens: int = 0
    weight_version: str | None = "default"
    meta: Mapping[str, Any] = field(default_factory=dict)


def default_logprob(token_id: int) -> float:
    """The logprob that fakes give to an id: made up, negative, and exact in float32."""
    return -(token_id % 63 + 1) / 64


def build_answer(
    reply: Reply,
    input_ids: Sequence[int],
    fields: Mapping[str, Any],
    *,
    rid: str,
    tokenizer: Any = None,
) -> dict[str, Any]:
    """The answer of `/generate` for a reply, as SGLang 0.5.23 gives it.

    A reply longer than `max_new_tokens` is cut there and finishes by length. Logprobs are there when they were asked
    for.

    Args:
        fields: Top-level fields of the request.
        tokenizer: Encodes text replies, decodes the ids of others (Hugging Face style `encode` and `decode`).

    Raises:
        ValueError: A text reply without a tokenizer and without ids, or logprobs of another length than the ids.
    """
    params = fields.get("sampling_params") or {}
    eos = getattr(tokenizer, "eos_token_id", None)
    ids = _ids(reply, tokenizer, eos)
    logprobs = list(reply.logprobs) if reply.logprobs is not None else [default_logprob(token) for token in ids]
    if len(logprobs) != len(ids):
        raise ValueError(f"Reply has {len(logprobs)} logprobs for {len(ids)} ids")
    finish: dict[str, Any] = {"type": reply.finish}
    limit = params.get("max_new_tokens", 128)
    if limit is not None and len(ids) > limit:
        ids, logprobs = ids[:limit], logprobs[:limit]
        finish = {"type": "length"}
    if finish["type"] == "stop":
        finish["matched"] = reply.matched if reply.matched is not None else (ids[-1] if ids else None)
    elif finish["type"] == "length":
        finish["length"] = len(ids)
    else:
        finish |= {"message": "Aborted", "status_code": None, "err_type": None}
    meta: dict[str, Any] = {
        "id": rid,
        "finish_reason": finish,
        "prompt_tokens": len(input_ids),
        "completion_tokens": len(ids),
        "cached_tokens": reply.cached_tokens,
        "e2e_latency": reply.delay,
    }
    if reply.weight_version is not None:
        meta["weight_version"] = reply.weight_version
        meta["weight_versions"] = [{"version": reply.weight_version, "start": 0, "end": len(ids)}]
    if fields.get("return_logprob"):
        start = fields.get("logprob_start_len", -1)
        scored = input_ids[start:] if start >= 0 else ()  # none for -1, as since SGLang 0.5.10
        meta["input_token_logprobs"] = [
            [default_logprob(token) if place else None, token, None] for place, token in enumerate(scored)
        ]
        meta["output_token_logprobs"] = [[lp, token, None] for lp, token in zip(logprobs, ids, strict=True)]
        meta["output_token_logprobs_length"] = len(ids)
    return {"text": _text(reply, ids, params, tokenizer, eos), "output_ids": ids, "meta_info": {**meta, **reply.meta}}


def _ids(reply: Reply, tokenizer: Any, eos: int | None) -> list[int]:
    if reply.ids is not None:
        return list(reply.ids)
    if not reply.text:
        return [eos] if reply.finish == "stop" and eos is not None else []
    if tokenizer is None:
        raise ValueError(f"Reply(text={reply.text!r}) has no ids: give ids=, or a tokenizer to the fake")
    ids = list(tokenizer.encode(reply.text, add_special_tokens=False))
    return [*ids, eos] if reply.finish == "stop" and eos is not None else ids


def _text(reply: Reply, ids: list[int], params: Mapping[str, Any], tokenizer: Any, eos: int | None) -> str:
    if tokenizer is None:
        return reply.text or ""
    visible_ids = ids
    if ids and ids[-1] == eos and not params.get("no_stop_trim"):
        visible_ids = ids[:-1]
    return str(tokenizer.decode(visible_ids, skip_special_tokens=params.get("skip_special_tokens", True)))
