"""The answer to a request, laid out as the server lays it out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from strands_sglang.backends.engine.request import Request


def answer(request: Request, finish: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
    """The answer of `/generate`; `tokenizer` decodes `text` and, if asked for, the third element of each logprob."""
    waiting = finish["type"] == "abort" and "status_code" not in finish
    meta: dict[str, Any] = {"id": request.rid, "finish_reason": finish}
    if not waiting:  # like the server, which knows less of a request that it aborts in the queue
        meta["prompt_tokens"] = len(request.prompt)
        if request.seen is not None:
            meta["image_tokens"] = sum(image.length for image in request.seen.images)
        meta["num_retractions"] = request.retractions
        meta["reasoning_tokens"] = 0
        meta["cached_tokens"] = request.cached_tokens
        meta["cached_tokens_details"] = {"device": request.cached_tokens, "host": 0} if request.cached_tokens else None
        meta["dp_rank"] = None
    meta["completion_tokens"] = len(request.output)
    spans = _version_spans(request)
    meta["weight_version"] = spans[-1]["version"]
    meta["weight_versions"] = spans
    if request.return_logprob:
        meta |= _logprobs(request, tokenizer)
    meta["e2e_latency"] = time.perf_counter() - request.created
    meta["response_sent_to_client_ts"] = time.time()
    result = {"text": text_of(request, finish, tokenizer), "output_ids": list(request.output), "meta_info": meta}
    if request.return_prompt_ids:
        result["prompt_token_ids"] = list(request.prompt)
    return result


def text_of(request: Request, finish: dict[str, Any], tokenizer: Any) -> str:
    """Decoded output without what ended it, unless that is to be kept."""
    params = request.params
    matched = finish.get("matched")
    ids = request.output
    if isinstance(matched, int) and not params.no_stop_trim:
        ids = ids[:-1]
    text = str(
        tokenizer.decode(
            ids,
            skip_special_tokens=params.skip_special_tokens,
            spaces_between_special_tokens=params.spaces_between_special_tokens,
        )
    )
    if isinstance(matched, str) and (position := text.find(matched)) >= 0:
        return text[: position + len(matched) if params.no_stop_trim else position]
    return text


def _version_spans(request: Request) -> list[dict[str, Any]]:
    ends = [start for _, start in request.versions[1:]] + [len(request.output)]
    return [
        {"version": version, "start": start, "end": end}
        for (version, start), end in zip(request.versions, ends, strict=True)
    ]


def _logprobs(request: Request, tokenizer: Any) -> dict[str, Any]:
    def entry(logprob: float | None, token: int) -> list[Any]:
        return [logprob, token, tokenizer.decode([token]) if request.text_in_logprobs else None]

    def rows(table: Sequence[Sequence[tuple[float, int]]]) -> list[Any]:
        return [[entry(*pair) for pair in row] for row in table]

    scored = request.prompt[request.logprob_start :]
    unknown: list[Any] = [None] if scored else []  # nothing before it was scored, so the first has no logprob
    meta = {
        "input_token_logprobs": [entry(*pair) for pair in zip(unknown + request.input_logprobs, scored, strict=False)],
        "output_token_logprobs": [entry(*pair) for pair in zip(request.output_logprobs, request.output, strict=True)],
        "output_token_logprobs_length": len(request.output),
    }
    if request.top_logprobs:
        meta["input_top_logprobs"] = unknown + rows(request.input_top)
        meta["output_top_logprobs"] = rows(request.output_top)
    if request.token_ids_logprob is not None:
        meta["input_token_ids_logprobs"] = unknown + rows(request.input_ids_logprobs)
        meta["output_token_ids_logprobs"] = rows(request.output_ids_logprobs)
    return meta
