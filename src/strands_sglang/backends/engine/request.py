"""Requests of `/generate`: every field checked as the server checks it, and the state of one in flight.

The server refuses in two forms, and so does the engine: its schema check answers `{"error": text}` (unknown key, wrong
type), its value checks answer `{"error": {"message": text}}`.
"""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from strands_sglang.exceptions import BackendContextLengthError, BackendHTTPError, BackendRequestError

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


_INT, _FLOAT, _BOOL, _STR = "i64", "f64", "a boolean", "a string"
_PYTHON_TYPES = {_INT: (int,), _FLOAT: (int, float), _BOOL: (bool,), _STR: (str,)}
_TYPES = {
    "max_new_tokens": _INT,
    "stop": None,
    "stop_token_ids": None,
    "stop_regex": None,
    "temperature": _FLOAT,
    "top_p": _FLOAT,
    "top_k": _INT,
    "min_p": _FLOAT,
    "frequency_penalty": _FLOAT,
    "presence_penalty": _FLOAT,
    "repetition_penalty": _FLOAT,
    "min_new_tokens": _INT,
    "n": _INT,
    "json_schema": _STR,
    "regex": _STR,
    "ebnf": _STR,
    "structural_tag": _STR,
    "ignore_eos": _BOOL,
    "skip_special_tokens": _BOOL,
    "spaces_between_special_tokens": _BOOL,
    "no_stop_trim": _BOOL,
    "stream_interval": _INT,
    "logit_bias": None,
    "sampling_seed": _INT,
    "custom_params": None,
    "beam_width": _INT,
    "watermark": None,
    "choice": None,
}
"""Sampling keys the server knows, with the type its schema check demands (`None`: checked elsewhere)."""

_RANGES: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "temperature": (lambda x: math.isfinite(x) and x >= 0, "a non-negative finite number"),
    "top_p": (lambda x: 0 < x <= 1, "in (0, 1]"),
    "min_p": (lambda x: 0 <= x <= 1, "in [0, 1]"),
    "top_k": (lambda x: x == -1 or x >= 1, "-1 (disable) or at least 1"),
    "frequency_penalty": (lambda x: -2 <= x <= 2, "in [-2, 2]"),
    "presence_penalty": (lambda x: -2 <= x <= 2, "in [-2, 2]"),
    "repetition_penalty": (lambda x: 0 < x <= 2, "in (0, 2] (1.0 = no penalty)"),
    "max_new_tokens": (lambda x: x >= 0, "at least 0"),
}
"""Ranges that its value checks demand, in their order and words."""

_UNSUPPORTED_SAMPLING = ("stop_regex", "structural_tag", "custom_params", "beam_width", "watermark", "choice")


def value_error(message: str) -> BackendHTTPError:
    """A 400 as the server's value checks answer it."""
    return BackendHTTPError(400, json.dumps({"error": {"message": message}}))


def schema_error(message: str) -> BackendHTTPError:
    """A 400 as the server's schema check answers it."""
    return BackendHTTPError(400, json.dumps({"error": message}))


def parse_error(message: str) -> BackendHTTPError:
    """A 400 as the server answers a body that it cannot parse."""
    body = {"object": "error", "message": message, "type": "Bad Request", "param": None, "code": 400}
    return BackendHTTPError(400, json.dumps(body))


def internal_error(cause: Exception | None = None) -> BackendHTTPError:
    """The 500 of a failed step."""
    error = BackendHTTPError(500, "Internal Server Error")
    error.__cause__ = cause
    return error


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSampling:
    """Checked sampling parameters; names and defaults are the server's."""

    max_new_tokens: int | None = 128
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_new_tokens: int = 0
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    sampling_seed: int | None = None

    @property
    def greedy(self) -> bool:
        """The most likely token is taken."""
        return self.top_k == 1

    @property
    def grammar(self) -> tuple[str, str] | None:
        """Kind and text of the grammar, if there is one."""
        for kind in ("json_schema", "regex", "ebnf"):
            if text := getattr(self, kind):
                return kind, text
        return None

    @classmethod
    def parse(cls, given: Any, *, vocab_size: int) -> EngineSampling:
        """Check a `sampling_params` object; `BackendHTTPError` 400 in the server's words."""
        if not isinstance(given, Mapping):
            raise schema_error(f"invalid type: {_describe(given)}, expected a map")
        values = {}
        for key, value in given.items():
            if key not in _TYPES:
                known = ", ".join(f"`{name}`" for name in _TYPES)
                raise schema_error(f"unknown field `{key}`, expected one of {known}")
            if value is None and key != "max_new_tokens":
                continue
            if value is not None:
                _check_type(value, _TYPES[key])
                if key in _UNSUPPORTED_SAMPLING:
                    raise value_error(f"{key} is not supported by the embedded engine.")
            values[key] = value
        if values.pop("n", 1) != 1:
            raise value_error("n > 1 is not supported by the embedded engine; send several requests.")
        values.pop("stream_interval", None)
        values["stop"] = _stop_strings(values.get("stop", ()))
        values["stop_token_ids"] = frozenset(integers(values.get("stop_token_ids", ()), "stop_token_ids"))
        values["logit_bias"] = _logit_bias(values.get("logit_bias", {}), vocab_size)
        for key in ("json_schema", "regex", "ebnf"):
            values[key] = values.get(key) or None
        if 0 <= values.get("temperature", 1.0) < 1e-6:
            values |= {"temperature": 1.0, "top_k": 1}
        params = cls(**values)
        for key, (fits, expected) in _RANGES.items():
            value = getattr(params, key)
            if value is not None and not fits(value):
                raise value_error(f"{key} must be {expected}, got {value}.")
        least, most = params.min_new_tokens, params.max_new_tokens
        if least < 0 or least > (most or least):
            raise value_error(f"min_new_tokens must be in [0, max_new_tokens({most})], got {least}.")
        if sum(text is not None for text in (params.json_schema, params.regex, params.ebnf)) > 1:
            raise value_error("Only one of regex, json_schema, ebnf or structural_tag can be set.")
        return params


def _check_type(value: Any, expected: str | None) -> None:
    if expected is not None and type(value) not in _PYTHON_TYPES[expected]:
        raise schema_error(f"invalid type: {_describe(value)}, expected {expected}")


def check_integer(value: Any) -> int:
    """The value, if it is an integer and no boolean."""
    _check_type(value, _INT)
    return int(value)


def _describe(value: Any) -> str:
    if isinstance(value, bool):
        return f"boolean `{str(value).lower()}`"
    if isinstance(value, int):
        return f"integer `{value}`"
    if isinstance(value, float):
        return f"floating point `{value}`"
    if isinstance(value, str):
        return f"string {json.dumps(value)}"
    return {dict: "map", list: "sequence", type(None): "null"}.get(type(value), type(value).__name__)


def _stop_strings(value: Any) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else value
    if not isinstance(strings, Sequence) or not all(isinstance(text, str) for text in strings):
        raise schema_error(f"invalid type: {_describe(value)}, expected a string or a sequence of strings")
    if len(strings) > 32:
        raise value_error(f"stop must have at most 32 entries, got {len(strings)}.")
    return tuple(text for text in strings if text)


def integers(value: Any, key: str) -> list[int]:
    """A sequence of integers, without the nulls in it."""
    if isinstance(value, (str, Mapping)) or not hasattr(value, "__iter__"):
        raise schema_error(f"invalid type: {_describe(value)}, expected a sequence for {key}")
    items = [item for item in value if item is not None]
    for item in items:
        _check_type(item, _INT)
    return items


def _logit_bias(value: Any, vocab_size: int) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise schema_error(f"invalid type: {_describe(value)}, expected a map")
    bias = {}
    for key, number in value.items():
        _check_type(number, _FLOAT)
        token = int(key) if str(key).lstrip("-").isdigit() else -1
        if not 0 <= token < vocab_size:
            raise value_error(f"logit_bias must has keys in [0, {vocab_size - 1}], got {key}.")
        bias[token] = float(number)
    return bias


# ---- requests


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """One request: what was asked, and how far it has come. Changed by the engine's thread only."""

    rid: str
    prompt: list[int]
    params: EngineSampling
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
    """Log-probabilities of prompt positions `logprob_start + 1` and on."""
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
        vocab_size: Rows of the model's output.
        seed: Seed of the request unless it brings its own.

    Raises:
        BackendRequestError: Ids that are not integers, or outside the vocabulary (they would kill a server).
        BackendContextLengthError: The prompt, or the prompt and `max_new_tokens`, do not fit.
        BackendHTTPError: Anything else the server answers with 400.
    """
    for key in _UNSUPPORTED_FIELDS:
        if fields.get(key):
            raise value_error(f"{key} is not supported by the embedded engine.")
    prompt = prompt_ids(input_ids, vocab_size)
    params = EngineSampling.parse(fields.get("sampling_params") or {}, vocab_size=vocab_size)
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
    """The checked ids of a prompt; `BackendRequestError` for a wrong id, `BackendHTTPError` 400 for an empty prompt."""
    try:
        prompt = [int(token) for token in input_ids]
        exact = all(map(lambda token, given: token == given and not isinstance(given, bool), prompt, input_ids))
    except (TypeError, ValueError):
        exact = False
    if not exact:
        raise BackendRequestError(f"input_ids={input_ids!r}: expected a flat sequence of integers")
    if not prompt:
        raise value_error("input_ids cannot be empty.")
    for token in prompt:
        if not 0 <= token < vocab_size:
            raise BackendRequestError(f"input_ids contains {token!r}, expected ids in [0, {vocab_size - 1}]")
    return prompt


def _flag(fields: Mapping[str, Any], key: str) -> bool:
    value = fields.get(key, False)
    if not isinstance(value, bool):
        raise parse_error(f"1 validation error:\n  {key}: Input should be a valid boolean, got {value!r}")
    return value


def _budget(prompt_tokens: int, fields: Mapping[str, Any], params: EngineSampling, context_length: int) -> int:
    """Most tokens to sample: what was asked for, or what fits."""

    def overflow(message: str) -> BackendContextLengthError:
        return BackendContextLengthError(400, json.dumps({"error": {"message": message}}))

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
