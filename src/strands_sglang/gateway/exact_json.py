"""JSON that changes nothing: integers of any length, no key twice, and the depth that writing it again allows.

orjson does it where it can. It turns integers beyond 64 bits into floats when it reads and refuses them when it writes,
it reads numbers that are too small as 0, and it keeps the last of two values of one key; Python's own module takes over
then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import orjson

from ..tool_parsers.values import MAX_DEPTH, STRICT_DECODER, JSONError, is_too_deep

_TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep"
_WRITTEN_DEPTH = 254  # of nesting that orjson writes
_DIGITS = bytes(48 if 48 <= byte < 58 else byte | 32 if byte in b"eE-" else 32 for byte in range(256))
"""Every digit as 0, most other bytes as a blank: long and tiny numbers are then found without a regular expression."""
_LONG_NUMBER = b"0" * 19
_TINY_NUMBER = b"e-000"  # of three digits, which a double may not have
_ESCAPED_COLON = b"\\u003"  # and other characters with such an escape


def dumps(value: Any, *, sort_keys: bool = False) -> bytes:
    """JSON in UTF-8; `TypeError` for a value that is not JSON."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort_keys else None)
    except TypeError:  # an integer beyond 64 bits, or half of a surrogate pair: JSON has both
        try:
            return json.dumps(value, separators=(",", ":"), sort_keys=sort_keys, allow_nan=False).encode()
        except (ValueError, RecursionError) as error:
            raise TypeError(str(error)) from None


def object_text(value: Any, where: str) -> bytes:
    """A mapping as JSON, {} for None.

    Raises:
        TypeError: It is no mapping.
        ValueError: It holds values that are not JSON, or is nested more than `MAX_DEPTH` levels deep.
    """
    if not isinstance(value, Mapping | None):
        raise TypeError(f"{where} must be a mapping, such as a dict, got {value!r:.100}")
    if is_too_deep(held := dict(value or {})):
        raise ValueError(f"{where} is nested more than {MAX_DEPTH} levels deep")
    try:
        return dumps(held)
    except TypeError as error:
        raise ValueError(f"{where} must hold JSON values only: {error}") from None


def loads(raw: bytes) -> Any:
    """The value of a JSON text, exactly as it is written.

    Raises:
        JSONError: It is not JSON, gives a key twice, or is nested more than `MAX_DEPTH` levels deep.
    """
    try:
        digits = raw.translate(_DIGITS)
        if _LONG_NUMBER in digits or _TINY_NUMBER in digits or _ESCAPED_COLON in raw:
            raise ValueError
        value = orjson.loads(raw)
        # Every key has a colon, so one that was given twice leaves fewer of them in the text written again.
        if raw.count(b":") == orjson.dumps(_wrapped(value)).count(b":"):
            return value
    except (TypeError, ValueError):  # it is too deep, or orjson's own error
        pass
    try:
        value = STRICT_DECODER.decode(raw.decode())
    except JSONError:
        raise
    except RecursionError:
        raise JSONError(_TOO_DEEP) from None
    except ValueError as error:  # no JSON, no UTF-8, or a number of thousands of digits
        raise JSONError(str(error)) from None
    if is_too_deep(value):
        raise JSONError(_TOO_DEEP)
    return _whole(value)


def _wrapped(value: Any) -> Any:
    # Wrapped as often as this, a value that is too deep reaches the depth at which orjson stops: measured in C.
    for _ in range(_WRITTEN_DEPTH - MAX_DEPTH):
        value = [value]
    return value


def _whole(value: Any) -> Any:
    """The value with halves of surrogate pairs, which no tokenizer takes, as replacement characters."""
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        whole = {_whole(key): _whole(item) for key, item in value.items()}
        if len(whole) < len(value):
            raise JSONError("keys differ in halves of surrogate pairs only")
        return whole
    return [_whole(item) for item in value] if isinstance(value, list) else value
