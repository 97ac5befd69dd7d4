"""Check a request before it leaves the process: sampling parameters and top-level fields.

A server answers some of these mistakes with 400, ignores others, and dies of one (an id outside the vocabulary).
Rules are those of SGLang's `SamplingParams` and of its request schema.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Collection, Mapping
from numbers import Integral, Real
from typing import Any

from ...exceptions import BackendRequestError
from ..contract import CONSTRAINTS
from ..http.options import check_rid

CONTEXT_RESERVE = 2
"""Tokens the server keeps free: with `max_new_tokens` equal to `context - prompt`, two fewer are sampled.

Servers also refuse prompts within six tokens of the context (506 of 512, measured on 0.5.23), as context overflow.
"""

_ALIASES = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "max_length": "max_new_tokens",
    "max_output_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "seed": "sampling_seed",
    "stop_sequences": "stop",
    "stop_strings": "stop",
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "grammar": "ebnf",
    "response_format": "json_schema",
    "num_return_sequences": "n",
    "best_of": "n",
}

ParameterCheck = Callable[[str, Any], Any]


def _fail(key: str, value: Any, expected: str) -> BackendRequestError:
    return BackendRequestError(f"sampling_params[{key!r}]={value!r}: expected {expected}")


def _integer(low: int | None = None) -> ParameterCheck:
    expected = "an integer" if low is None else f"an integer of at least {low}"

    def check(key: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, Integral) or (low is not None and value < low):
            raise _fail(key, value, expected)
        return int(value)

    return check


def _number(accept: Callable[[float], bool], expected: str) -> ParameterCheck:
    def check(key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | Real):  # NumPy's numbers are Real
            raise _fail(key, value, expected)
        if not math.isfinite(float(value)) or not accept(float(value)):
            raise _fail(key, value, expected)
        return value if isinstance(value, (int, float)) else float(value)

    return check


def _boolean(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _fail(key, value, "True or False")
    return value


def _strings(limit: int, max_bytes: int | None = None, *, patterns: bool = False) -> ParameterCheck:
    def check(key: str, value: Any) -> str | list[str]:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
            raise _fail(key, value, "a string or a list of strings")
        if len(items) > limit:
            raise _fail(key, value, f"at most {limit} strings, not {len(items)}")
        if max_bytes is not None and any(len(item.encode()) > max_bytes for item in items):
            raise _fail(key, value, f"patterns of at most {max_bytes} bytes")
        if not all(items):
            raise _fail(key, value, "no empty string, which would end every reply at once")
        for item in items if patterns else ():
            try:
                re.compile(item)
            except (re.error, RecursionError, OverflowError) as error:
                raise _fail(key, value, f"regular expressions ({error} in {item!r})") from None
        return value if isinstance(value, str) else list(items)

    return check


def _grammar(key: str, value: Any) -> str:
    if isinstance(value, (Mapping, list)):
        raise _fail(key, value, "a string; use json.dumps(...)")
    if not isinstance(value, str) or not value:
        raise _fail(key, value, "a non-empty string")
    return value


def _token_ids(key: str, value: Any) -> list[int]:
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise _fail(key, value, "a list of token ids")
    items = list(value)
    if any(isinstance(item, bool) or not isinstance(item, Integral) or item < 0 for item in items):
        raise _fail(key, value, "token ids, integers of at least 0")
    return [int(item) for item in items]


def _logit_bias(key: str, value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise _fail(key, value, "a mapping of token ids (as strings) to numbers")
    bias = _number(lambda _: True, "a finite number for every token id")
    checked: dict[str, float] = {}
    for token, amount in value.items():
        if isinstance(token, bool) or not re.fullmatch("[0-9]+", str(token)):
            raise _fail(key, value, f"token ids as keys, not {token!r}")
        checked[str(token)] = bias(key, amount)
    return checked


def _mapping(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise _fail(key, value, "a mapping with string keys")
    if not _is_finite(value):
        raise _fail(key, value, "finite numbers, which JSON can hold")
    return _copy_json(dict(value))  # type: ignore[no-any-return]


def _is_finite(value: Any) -> bool:
    """False if a number in JSON data is NaN or infinite (it would be sent as null)."""
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_finite, value))
    return not isinstance(value, Real) or isinstance(value, Integral) or math.isfinite(value)


def _copy_json(value: Any) -> Any:
    """A copy of plain JSON data that shares no container with the original."""
    if isinstance(value, dict):
        return {key: _copy_json(item) for key, item in value.items()}
    return [_copy_json(item) for item in value] if isinstance(value, (list, tuple)) else value


_penalty = _number(lambda x: -2 <= x <= 2, "a number from -2 to 2")
_CHECKS: Mapping[str, ParameterCheck] = {
    "max_new_tokens": _integer(0),
    "min_new_tokens": _integer(0),
    "temperature": _number(lambda x: x >= 0, "a finite number of at least 0"),
    "top_p": _number(lambda x: 0 < x <= 1, "a number above 0 and up to 1"),
    "top_k": _integer(-1),
    "min_p": _number(lambda x: 0 <= x <= 1, "a number from 0 to 1"),
    "frequency_penalty": _penalty,
    "presence_penalty": _penalty,
    "repetition_penalty": _number(lambda x: 0 < x <= 2, "a number above 0 and up to 2"),
    "stop": _strings(32),
    "stop_token_ids": _token_ids,
    "stop_regex": _strings(32, max_bytes=256, patterns=True),
    "ignore_eos": _boolean,
    "skip_special_tokens": _boolean,
    "spaces_between_special_tokens": _boolean,
    "no_stop_trim": _boolean,
    "n": _integer(1),
    "json_schema": _grammar,
    "regex": _grammar,
    "ebnf": _grammar,
    "structural_tag": _grammar,
    "logit_bias": _logit_bias,
    "sampling_seed": _integer(),
    "custom_params": _mapping,
    "beam_width": _integer(1),
    "stream_interval": _integer(1),
    "watermark": lambda _, value: _copy_json(value),
}
SAMPLING_KEYS = frozenset(_CHECKS)
"""Every sampling parameter of the server that can be sent (`choice` is listed by its schema, but answers 500)."""


def validate_sampling_params(
    params: Mapping[str, Any], *, extra_keys: Collection[str] = (), vocab_size: int | None = None
) -> dict[str, Any]:
    """Check sampling parameters as the server would, and return a fresh copy that shares nothing with them.

    A value of None means the server's default and is left out, except `max_new_tokens`, where None has a meaning of
    its own (all that fits) and is kept.

    Args:
        params: SGLang sampling parameters; never changed.
        extra_keys: Further keys to let through unchecked, for servers newer than this package.
        vocab_size: Rows of the embedding: token ids must be below it. None if unknown.

    Raises:
        BackendRequestError: An unknown key (the message names the nearest valid one), a wrong type or value, a token
            id outside the vocabulary, or more than one grammar.
    """
    if not isinstance(params, Mapping):
        raise BackendRequestError(f"sampling_params={params!r}: expected a mapping of parameter names to values")
    checked: dict[str, Any] = {}
    for key, value in params.items():
        if key in extra_keys:
            checked[key] = _copy_json(value)
        elif key not in _CHECKS:
            raise BackendRequestError(_unknown_key(key))
        elif value is not None:
            checked[key] = _CHECKS[key](key, value)
        elif key == "max_new_tokens":
            checked[key] = None
    grammars = [key for key in checked if key in CONSTRAINTS]
    if len(grammars) > 1:
        raise BackendRequestError(f"sampling_params has {' and '.join(grammars)}: the server takes at most one grammar")
    if checked.get("top_k") == 0 and checked.get("temperature") != 0:
        raise _fail("top_k", 0, "-1 (off) or an integer of at least 1")
    longest = checked.get("max_new_tokens")
    if longest is not None and checked.get("min_new_tokens", 0) > longest:
        raise _fail("min_new_tokens", checked["min_new_tokens"], f"at most max_new_tokens={longest}")
    for key in ("stop_token_ids", "logit_bias"):
        tokens = (int(token) for token in checked.get(key) or ())
        if vocab_size is not None and any(token >= vocab_size for token in tokens):
            raise _fail(key, checked[key], f"token ids below the vocabulary size, {vocab_size}")
    return checked


def _unknown_key(key: Any) -> str:
    near = _ALIASES.get(key) or next(iter(difflib.get_close_matches(str(key), sorted(SAMPLING_KEYS), 1, 0.5)), None)
    hint = f"did you mean {near!r}?" if near else f"valid names are {', '.join(sorted(SAMPLING_KEYS))}"
    return f"sampling_params has no {key!r}; {hint}"


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
