"""Checks of single sampling parameters: each takes a name and a value, and returns the value to send or raises."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any

import numpy as np

from .exceptions import SGLangRequestError

Check = Callable[[str, Any], Any]


def fail(key: str, value: Any, expected: str) -> SGLangRequestError:
    return SGLangRequestError(f"sampling_params[{key!r}]={value!r}: expected {expected}")


def integer(low: int | None = None) -> Check:
    expected = "an integer" if low is None else f"an integer of at least {low}"

    def check(key: str, value: Any) -> int:
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, Integral) or (low is not None and value < low):
            raise fail(key, value, expected)
        return int(value)

    return check


def number(accept: Callable[[float], bool], expected: str) -> Check:
    def check(key: str, value: Any) -> float:
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.number)):
            raise fail(key, value, expected)
        if not math.isfinite(float(value)) or not accept(float(value)):
            raise fail(key, value, expected)
        return value if isinstance(value, (int, float)) else float(value)

    return check


def boolean(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise fail(key, value, "True or False")
    return value


def strings(limit: int, max_bytes: int | None = None, *, patterns: bool = False) -> Check:
    def check(key: str, value: Any) -> str | list[str]:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
            raise fail(key, value, "a string or a list of strings")
        if len(items) > limit:
            raise fail(key, value, f"at most {limit} strings, not {len(items)}")
        if max_bytes is not None and any(len(item.encode()) > max_bytes for item in items):
            raise fail(key, value, f"patterns of at most {max_bytes} bytes")
        if not all(items):
            raise fail(key, value, "no empty string, which would end every reply at once")
        for item in items if patterns else ():
            try:
                re.compile(item)
            except (re.error, RecursionError, OverflowError) as error:
                raise fail(key, value, f"regular expressions ({error} in {item!r})") from None
        return value if isinstance(value, str) else list(items)

    return check


def grammar(key: str, value: Any) -> str:
    if isinstance(value, (Mapping, list)):
        raise fail(key, value, "a string; use json.dumps(...)")
    if not isinstance(value, str) or not value:
        raise fail(key, value, "a non-empty string")
    return value


def token_ids(key: str, value: Any) -> list[int]:
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise fail(key, value, "a list of token ids")
    items = list(value)
    if any(isinstance(item, bool) or not isinstance(item, Integral) or item < 0 for item in items):
        raise fail(key, value, "token ids, integers of at least 0")
    return [int(item) for item in items]


def logit_bias(key: str, value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise fail(key, value, "a mapping of token ids (as strings) to numbers")
    bias = number(lambda _: True, "a finite number for every token id")
    checked: dict[str, float] = {}
    for token, amount in value.items():
        if isinstance(token, bool) or not re.fullmatch("[0-9]+", str(token)):
            raise fail(key, value, f"token ids as keys, not {token!r}")
        checked[str(token)] = bias(key, amount)
    return checked


def mapping(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise fail(key, value, "a mapping with string keys")
    if not _is_finite(value):
        raise fail(key, value, "finite numbers, which JSON can hold")
    return copy_json(dict(value))  # type: ignore[no-any-return]


def _is_finite(value: Any) -> bool:
    """Whether no number in JSON data is NaN or infinite (it would be sent as null)."""
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_finite, value))
    return not isinstance(value, (float, np.floating)) or math.isfinite(value)


def copy_json(value: Any) -> Any:
    """A copy of plain JSON data that shares no container with the original."""
    if isinstance(value, dict):
        return {key: copy_json(item) for key, item in value.items()}
    return [copy_json(item) for item in value] if isinstance(value, (list, tuple)) else value
