"""vLLM's `/inference/v1/generate` in terms of SGLang's `/generate`, which fakes script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NAMES = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "seed": "sampling_seed"}
RID_PREFIX = "generate-tokens-"


def from_vllm(body: Mapping[str, Any]) -> dict[str, Any]:
    """A request of vLLM's as the fields of SGLang's."""
    params = body.get("sampling_params") or {}
    return {
        "input_ids": body["token_ids"],
        "rid": body.get("request_id"),
        "return_logprob": params.get("logprobs") is not None,
        "return_prompt_token_ids": bool(body.get("return_token_ids")),
        "sampling_params": {_NAMES.get(name, name): value for name, value in params.items()},
    }


def to_vllm(answer: Mapping[str, Any], body: Mapping[str, Any], *, raw_logprobs: bool = False) -> dict[str, Any]:
    """An answer of SGLang's as vLLM 0.32 gives it.

    Args:
        body: The request, as vLLM was given it.
        raw_logprobs: The two best tokens differ by the same at every temperature, as without
            `--logprobs-mode processed_logprobs`.
    """
    meta, ids = answer["meta_info"], answer["output_ids"]
    params = body.get("sampling_params") or {}
    finish = meta["finish_reason"]
    matched = finish.get("matched")
    content = [
        {"token_id": token, "logprob": -9999.0 if logprob is None else logprob, "rank": 1, "top_logprobs": []}
        for logprob, token, *_ in meta.get("output_token_logprobs") or ()
    ]
    if params.get("logprobs", 0) and content:
        gap = 2.0 if raw_logprobs else 2.0 / params.get("temperature", 1.0)
        best = ({"token_id": rank, "logprob": -0.1 - gap * (rank - 1), "rank": rank} for rank in (1, 2))
        content[0]["top_logprobs"] = [{"token_id": 9, "logprob": -9.0, "rank": 50}, *best][: params["logprobs"]]
    choice = {
        "index": 0,
        "finish_reason": finish["type"],
        "stop_reason": None if ids and matched == ids[-1] else matched,
        "token_ids": ids,
        "logprobs": {"content": content} if params.get("logprobs") is not None else None,
        "weight_versions": meta.get("weight_versions") or [],
        "routed_experts": None,
        "sampling_mask": meta.get("output_token_sampling_mask"),
    }
    return {
        "request_id": f"{RID_PREFIX}{meta['id']}",
        "model": "fake",
        "output_mode": "tokens",
        "usage": {
            "prompt_tokens": meta.get("prompt_tokens", len(body["token_ids"])),
            "completion_tokens": len(ids),
            "prompt_tokens_details": {"cached_tokens": meta.get("cached_tokens", 0)},
        },
        "prompt_token_ids": body["token_ids"] if body.get("return_token_ids") else None,
        "choices": [choice],
    }
