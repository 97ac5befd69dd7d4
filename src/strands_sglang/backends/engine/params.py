"""Sampling parameters, checked as the server checks them.

The server refuses in two forms, and so do we: its schema check answers `{"error": text}` (unknown key, wrong type),
its value checks answer `{"error": {"message": text}}`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strands_sglang.exceptions import SGLangHTTPError

_INT, _FLOAT, _BOOL, _STR = "i64", "f64", "a boolean", "a string"
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


def value_error(message: str) -> SGLangHTTPError:
    """A 400 as the server's value checks answer it."""
    return SGLangHTTPError(400, json.dumps({"error": {"message": message}}))


def schema_error(message: str) -> SGLangHTTPError:
    """A 400 as the server's schema check answers it."""
    return SGLangHTTPError(400, json.dumps({"error": message}))


def parse_error(message: str) -> SGLangHTTPError:
    """A 400 as the server answers a body that it cannot parse."""
    body = {"object": "error", "message": message, "type": "Bad Request", "param": None, "code": 400}
    return SGLangHTTPError(400, json.dumps(body))


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
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
        """Whether the most likely token is taken."""
        return self.top_k == 1

    @property
    def grammar(self) -> tuple[str, str] | None:
        """Kind and text of the grammar, if there is one."""
        for kind in ("json_schema", "regex", "ebnf"):
            if text := getattr(self, kind):
                return kind, text
        return None

    @classmethod
    def parse(cls, given: Any, *, vocab_size: int) -> SamplingParams:
        """Check a `sampling_params` object.

        Raises:
            SGLangHTTPError: Status 400 with the server's words.
        """
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
        params._check_ranges()
        return params

    def _check_ranges(self) -> None:
        for key, (fits, expected) in _RANGES.items():
            value = getattr(self, key)
            if value is not None and not fits(value):
                raise value_error(f"{key} must be {expected}, got {value}.")
        if self.min_new_tokens < 0 or self.min_new_tokens > (self.max_new_tokens or self.min_new_tokens):
            raise value_error(
                f"min_new_tokens must be in [0, max_new_tokens({self.max_new_tokens})], got {self.min_new_tokens}."
            )
        if sum(text is not None for text in (self.json_schema, self.regex, self.ebnf)) > 1:
            raise value_error("Only one of regex, json_schema, ebnf or structural_tag can be set.")


def _check_type(value: Any, expected: str | None) -> None:
    number = isinstance(value, int) and not isinstance(value, bool)
    fits = {
        None: True,
        _INT: number,
        _FLOAT: number or isinstance(value, float),
        _BOOL: isinstance(value, bool),
        _STR: isinstance(value, str),
    }[expected]
    if not fits:
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
