"""JSON that changes nothing: integers of any length, no key twice, and the depth that writing it again allows.

orjson does it where it can. It turns integers beyond 64 bits into floats when it reads and refuses them when it writes,
and it keeps the last of two values of one key; Python's own module takes over then.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

import orjson

MAX_DEPTH = 100
"""Deepest nesting of objects and arrays in a request."""
_WRITTEN_DEPTH = 254  # what orjson writes
_DIGITS = bytes(48 if 48 <= byte < 58 else 32 for byte in range(256))
"""Every digit as 0 and everything else as a blank: a long number is then found without a regular expression."""
_LONG_INTEGER = b"0" * 19
_ESCAPED_COLON = b"\\u003"  # and what else has such an escape


class UnreadableJSONError(ValueError):
    """The text is not JSON that can be kept as it is; the message says why."""


def dumps(value: Any, *, sort_keys: bool = False) -> bytes:
    """JSON in UTF-8; `TypeError` for a value that is not JSON."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort_keys else None)
    except TypeError:  # an integer beyond 64 bits, or half of a surrogate pair: JSON has both
        try:
            return json.dumps(value, separators=(",", ":"), sort_keys=sort_keys, allow_nan=False).encode()
        except (ValueError, RecursionError) as error:
            raise TypeError(str(error)) from None


def loads(raw: bytes) -> Any:
    """The value of a JSON text, exactly as it is written.

    Raises:
        UnreadableJSONError: It is not JSON, gives a key twice, or is nested more than `MAX_DEPTH` levels deep.
    """
    try:
        if _LONG_INTEGER in raw.translate(_DIGITS) or _ESCAPED_COLON in raw:
            raise ValueError
        value = orjson.loads(raw)
        # Every key has a colon, so one that was given twice leaves fewer of them in what is written again.
        if raw.count(b":") == orjson.dumps(_wrapped(value)).count(b":"):
            return value
    except ValueError:  # orjson's own error as well
        pass
    except TypeError:
        raise UnreadableJSONError(f"it is nested more than {MAX_DEPTH} levels deep") from None
    try:
        value = _DECODER.decode(raw.decode())
    except UnreadableJSONError:
        raise
    except RecursionError:
        raise UnreadableJSONError(f"it is nested more than {MAX_DEPTH} levels deep") from None
    except ValueError as error:  # no JSON, no UTF-8, or a number of thousands of digits
        raise UnreadableJSONError(str(error)) from None
    return _whole(value, 0)


def is_too_deep(value: Any) -> bool:
    """True for a value nested more than `MAX_DEPTH` levels deep, around which nothing may be written."""
    try:
        orjson.dumps(_wrapped(value))
    except TypeError as error:
        return "Recursion" in str(error) or _depth_exceeds(value, MAX_DEPTH)
    return False


def _wrapped(value: Any) -> Any:
    # Wrapped as often as this, a value that is too deep reaches the depth at which orjson stops: measured in C.
    for _ in range(_WRITTEN_DEPTH - MAX_DEPTH):
        value = [value]
    return value


def _depth_exceeds(value: Any, most: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    return most == 0 or any(_depth_exceeds(v, most - 1) for v in (value.values() if isinstance(value, dict) else value))


def _whole(value: Any, depth: int) -> Any:
    """The value with halves of surrogate pairs, which no tokenizer takes, as replacement characters."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if not isinstance(value, dict | list):
        return value
    if depth == MAX_DEPTH:
        raise UnreadableJSONError(f"it is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        return {_whole(key, depth): _whole(item, depth + 1) for key, item in value.items()}
    return [_whole(item, depth + 1) for item in value]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise UnreadableJSONError(f"the key {twice[:100]!r} is given twice in one object")
    return value


def _constant(name: str) -> NoReturn:
    raise UnreadableJSONError(f"{name} is not a JSON value")


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise UnreadableJSONError(f"the number {digits[:40]} is too large")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_float=_float)
