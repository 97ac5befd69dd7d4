"""Check a request before it leaves the process: sampling parameters and top-level fields.

A server answers some of these mistakes with 400, ignores others, and dies of one (an id outside the vocabulary).
Rules are those of SGLang's `SamplingParams` and of its request schema.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Annotated, Any

from pydantic import Field, PlainValidator

from ...exceptions import BackendRequestError
from ..http.options import check_rid
from ..sampling import Count, SamplingParams, check_sampling_params, copy_json

CONTEXT_RESERVE = 2
"""Tokens the server keeps free: with `max_new_tokens` equal to `context - prompt`, two fewer are sampled.

Servers also refuse prompts within six tokens of the context (506 of 512, measured on 0.5.23), as context overflow.
"""


def _check_mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ValueError("must be a mapping with string keys")
    if not _is_finite(value):
        raise ValueError("must hold finite numbers, which JSON can express")
    return dict(copy_json(dict(value)))


def _is_finite(value: Any) -> bool:
    """False if a number in JSON data is NaN or infinite (it would be sent as null)."""
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


class SGLangSamplingParams(SamplingParams):
    """Every sampling parameter of the server that can be sent (`choice` is listed by its schema, but answers 500)."""

    n: Annotated[Count, Field(ge=1)] | None = None
    custom_params: Annotated[dict[str, Any] | None, PlainValidator(_check_mapping)] = None
    beam_width: Annotated[Count, Field(ge=1)] | None = None
    stream_interval: Annotated[Count, Field(ge=1)] | None = None
    watermark: Any = None


def validate_sampling_params(
    params: Mapping[str, Any], *, extra_keys: Collection[str] = (), vocab_size: int | None = None
) -> dict[str, Any]:
    """`backends.sampling.check_sampling_params` with SGLang's names.

    A `max_new_tokens` of None has a meaning of its own (all that fits) and is kept.
    """
    checked = check_sampling_params(params, SGLangSamplingParams, extra_keys=extra_keys, vocab_size=vocab_size)
    return {"max_new_tokens": None, **checked} if "max_new_tokens" in dict(params) else checked


_BOOL_FIELDS = frozenset(
    {
        "return_logprob",
        "return_text_in_logprobs",
        "return_prompt_token_ids",
        "return_sampling_mask",
        "return_routed_experts",
        "return_indexer_topk",
        "return_flat_raw_top_logprobs",
        "return_flat_raw_output_top_logprobs",
        "background",
        "require_reasoning",
    }
)
_INT_FIELDS = {
    "logprob_start_len": -1,
    "top_logprobs_num": 0,
    "routed_experts_start_len": 0,
    "max_thinking_tokens": 0,
}


def validate_fields(
    fields: Mapping[str, Any], prompt_len: int | None = None, vocab_size: int | None = None
) -> dict[str, Any]:
    """Check the top-level fields of a generate request, leave out those that are None, and return a fresh dict.

    Unknown fields pass: servers ignore what they do not know. `sampling_params` is left to
    `validate_sampling_params`.

    Args:
        prompt_len: Length of the prompt, if known: start positions must lie within it.
        vocab_size: Rows of the embedding: token ids must be below it. None if unknown.

    Raises:
        BackendRequestError: A known field of the wrong type or out of range, or one this client cannot serve.
    """
    checked = {key: value for key, value in fields.items() if value is not None}
    for key, value in checked.items():
        if key in _BOOL_FIELDS and not isinstance(value, bool):
            raise BackendRequestError(f"{key}={value!r}: expected True or False")
        low = _INT_FIELDS.get(key)
        if low is not None and (isinstance(value, bool) or not isinstance(value, int) or value < low):
            raise BackendRequestError(f"{key}={value!r}: expected an integer of at least {low}")
        if prompt_len is not None and key.endswith("_start_len") and isinstance(value, int) and value > prompt_len:
            raise BackendRequestError(f"{key}={value!r}: expected at most the prompt length, {prompt_len}")
    scored = checked.get("token_ids_logprob", [])
    if not isinstance(scored, (list, tuple)) or any(
        type(token) is not int or token < 0 or (vocab_size is not None and token >= vocab_size) for token in scored
    ):
        below = "" if vocab_size is None else f", below the vocabulary size, {vocab_size}"
        raise BackendRequestError(f"token_ids_logprob={scored!r:.200}: expected a list of token ids{below}")
    if checked.get("stream"):
        raise BackendRequestError("stream=True: this client reads one whole answer per call; leave stream out")
    if "rid" in checked:
        check_rid(checked["rid"])
    for key in ("text", "input_embeds"):
        if key in checked:
            raise BackendRequestError(
                f"{key} is given besides input_ids: the server would use input_ids; leave {key} out"
            )
    return checked
