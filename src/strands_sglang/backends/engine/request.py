"""Requests: top-level fields of `/generate` checked as the server checks them, and the state of one in flight."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from strands_sglang.backends.engine.params import SamplingParams, check_integer, integers, parse_error, value_error
from strands_sglang.exceptions import SGLangContextLengthError, SGLangRequestError

RESERVED_POSITIONS = 2
"""Positions of the context that the server keeps back: prompt + new tokens reach at most `context_length - 2`."""

_UNSUPPORTED_FIELDS = (
    "text",
    "input_embeds",
    "image_data",
    "video_data",
    "audio_data",
    "lora_path",
    "session_params",
    "custom_logit_processor",
    "return_hidden_states",
    "return_sampling_mask",
    "stream",
)


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """One request: what was asked, and how far it has come. Changed by the engine's thread only."""

    rid: str
    prompt: list[int]
    params: SamplingParams
    max_new_tokens: int
    return_logprob: bool
    logprob_start: int
    """First prompt position that gets a logprob, `len(prompt)` for none."""
    top_logprobs: int
    token_ids_logprob: list[int] | None
    text_in_logprobs: bool
    return_prompt_ids: bool
    seed: int
    created: float = field(default_factory=time.perf_counter)
    future: Future[dict[str, Any]] = field(default_factory=Future)

    seen: Any = None
    """The prompt's images (`vision.SeenPrompt`), if any; `prompt` is then the expanded one."""
    prompt_keys: list[int] | None = None
    """Replaces the prompt's ids where prefixes are compared."""
    matcher: Any = None
    """State of the grammar, if there is one."""
    kv: Any = None
    """Keys and values computed so far (`kv.SequenceKV`), None while the request waits."""
    started: bool = False
    cached_tokens: int = 0
    retractions: int = 0
    output: list[int] = field(default_factory=list)
    output_logprobs: list[float] = field(default_factory=list)
    output_top: list[list[tuple[float, int]]] = field(default_factory=list)
    output_ids_logprobs: list[list[tuple[float, int]]] = field(default_factory=list)
    input_logprobs: list[float] = field(default_factory=list)
    """Of prompt positions `logprob_start + 1` and on."""
    input_top: list[list[tuple[float, int]]] = field(default_factory=list)
    input_ids_logprobs: list[list[tuple[float, int]]] = field(default_factory=list)
    versions: list[tuple[str, int]] = field(default_factory=list)
    """Weight version and the first output index sampled under it."""

    @property
    def tokens(self) -> list[int]:
        """Prompt and output."""
        return self.prompt + self.output

    @property
    def keys(self) -> list[int]:
        """Prompt and output, by which prefixes are compared."""
        return (self.prompt_keys or self.prompt) + self.output

    @property
    def cache_limit(self) -> int:
        """Tokens that may come out of the prefix cache: one must be computed, and so must every scored position."""
        return min(len(self.prompt) + len(self.output) - 1, self.logprob_start)


def parse_request(
    input_ids: Sequence[int], fields: Mapping[str, Any], *, vocab_size: int, context_length: int, seed: int
) -> Request:
    """Check the fields of one request.

    Top-level fields that the engine does not know are ignored, as the server ignores them.

    Args:
        input_ids: Token ids of the prompt.
        fields: The other top-level fields of `/generate`.
        vocab_size: Rows of the model's output.
        context_length: Positions the model has.
        seed: Seed of the request unless it brings its own.

    Raises:
        SGLangRequestError: Ids that are not integers, or outside the vocabulary (they would kill a server).
        SGLangContextLengthError: The prompt, or the prompt and `max_new_tokens`, do not fit.
        SGLangHTTPError: Anything else the server answers with 400.
    """
    for key in _UNSUPPORTED_FIELDS:
        if fields.get(key):
            raise value_error(f"{key} is not supported by the embedded engine.")
    prompt = prompt_ids(input_ids, vocab_size)
    params = SamplingParams.parse(fields.get("sampling_params") or {}, vocab_size=vocab_size)
    return_logprob = _flag(fields, "return_logprob")
    start = check_integer(fields.get("logprob_start_len", -1))
    if start > len(prompt):
        raise value_error(
            f"req.logprob_start_len={start} is higher than the number of input tokens "
            f"len(req.origin_input_ids)={len(prompt)}. Please use a smaller logprob_start_len."
        )
    extra_ids = fields.get("token_ids_logprob")
    if extra_ids is not None:
        extra_ids = integers(extra_ids, "token_ids_logprob")
        if any(not 0 <= token < vocab_size for token in extra_ids):
            raise value_error(f"token_ids_logprob must be in [0, {vocab_size - 1}], got {extra_ids}.")
    rid = fields.get("rid") or uuid.uuid4().hex
    if not isinstance(rid, str):
        raise value_error(f"rid must be a string, got {rid!r}.")
    return Request(
        rid=rid,
        prompt=prompt,
        params=params,
        max_new_tokens=_budget(len(prompt), fields, params, context_length),
        return_logprob=return_logprob,
        logprob_start=start if return_logprob and start >= 0 else len(prompt),
        top_logprobs=min(check_integer(fields.get("top_logprobs_num") or 0), vocab_size) if return_logprob else 0,
        token_ids_logprob=extra_ids if return_logprob else None,
        text_in_logprobs=_flag(fields, "return_text_in_logprobs"),
        return_prompt_ids=_flag(fields, "return_prompt_token_ids"),
        seed=params.sampling_seed if params.sampling_seed is not None else seed,
    )


def prompt_ids(input_ids: Sequence[int], vocab_size: int) -> list[int]:
    """The ids of a prompt, checked.

    Raises:
        SGLangRequestError: Ids that are not integers, or outside the vocabulary.
        SGLangHTTPError: Status 400: the prompt is empty.
    """
    try:
        prompt = [int(token) for token in input_ids]
        exact = all(map(lambda token, given: token == given and not isinstance(given, bool), prompt, input_ids))
    except (TypeError, ValueError):
        exact = False
    if not exact:
        raise SGLangRequestError(f"input_ids={input_ids!r}: expected a flat sequence of integers")
    if not prompt:
        raise value_error("input_ids cannot be empty.")
    for token in prompt:
        if not 0 <= token < vocab_size:
            raise SGLangRequestError(f"input_ids contains {token!r}, expected ids in [0, {vocab_size - 1}]")
    return prompt


def _flag(fields: Mapping[str, Any], key: str) -> bool:
    value = fields.get(key, False)
    if not isinstance(value, bool):
        raise parse_error(f"1 validation error:\n  {key}: Input should be a valid boolean, got {value!r}")
    return value


def _budget(prompt_tokens: int, fields: Mapping[str, Any], params: SamplingParams, context_length: int) -> int:
    """Most tokens to sample: what was asked for, or what fits."""

    def overflow(message: str) -> SGLangContextLengthError:
        return SGLangContextLengthError(400, json.dumps({"error": {"message": message}}))

    if prompt_tokens >= context_length:
        raise overflow(
            f"The input ({prompt_tokens} tokens) is longer than the model's context length ({context_length} tokens)."
        )
    asked = (fields.get("sampling_params") or {}).get("max_new_tokens")
    if asked is not None and prompt_tokens + asked > context_length:
        raise overflow(
            f"Requested token count exceeds the model's maximum context length of {context_length} tokens. "
            f"You requested a total of {prompt_tokens + asked} tokens: {prompt_tokens} tokens from the input messages "
            f"and {asked} tokens for the completion. Please reduce the number of tokens in the input messages or the "
            f"completion to fit within the limit."
        )
    room = max(0, context_length - prompt_tokens - RESERVED_POSITIONS)
    return room if params.max_new_tokens is None else min(params.max_new_tokens, room)
