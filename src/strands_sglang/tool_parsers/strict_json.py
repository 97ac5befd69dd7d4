"""Strict JSON: what RFC 8259 allows and every consumer understands the same way.

Python's decoder lets duplicate keys, NaN and overflowing numbers pass, each a silent change of what was written.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

_BLANK = re.compile(r"[ \t\n\r]*")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_PLAIN_DECODER = json.JSONDecoder()
_FIRST_WINDOW = 1024
_TOO_DEEP = "nested too deeply"
MAX_DEPTH = 100
"""Objects and lists inside each other: consumers read about 200 levels, and arguments travel inside messages."""
_LONGEST_LITERAL = 12  # "-Infinity", or an escaped surrogate pair


class JSONError(ValueError):
    """The text is not strict JSON; the message says why, without naming the text."""


def loads(text: str) -> Any:
    """Decode one JSON value.

    Raises:
        JSONError: Syntax errors, trailing text, duplicate keys, NaN or infinite numbers, lone surrogates, more than
            `MAX_DEPTH` levels.
    """
    try:
        value = _STRICT_DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise JSONError(f"{error.msg} at character {error.pos + 1}") from None
    except JSONError:
        raise
    except RecursionError:
        raise JSONError(_TOO_DEEP) from None
    except ValueError:  # int() refuses thousands of digits
        raise JSONError("a number has too many digits") from None
    if text.count("{") + text.count("[") > MAX_DEPTH and isinstance(value, dict | list) and _is_too_deep(value):
        raise JSONError(_TOO_DEEP)
    if _SURROGATE.search(text) and _has_lone_surrogate(value):
        raise JSONError("a \\u escape is half of a surrogate pair")
    return value


def value_end(text: str, start: int) -> int | None:
    """Offset behind the JSON value that begins at `start` (blanks skipped), or None where there is none.

    Only the boundary matters here, so duplicate keys pass; the value itself goes to `loads`.
    """
    start = skip_blank(text, start)
    size = _FIRST_WINDOW
    # The decoder's errors count the lines of all that was given to it, so a hostile text would take quadratic time.
    while True:
        window = text[start : start + size]
        is_cut = start + size < len(text)
        try:
            end = _PLAIN_DECODER.raw_decode(window)[1]
        except json.JSONDecodeError as error:
            near_the_cut = error.pos >= len(window) - _LONGEST_LITERAL or error.msg.startswith("Unterminated")
            if not (is_cut and near_the_cut):
                return None
        except (ValueError, RecursionError):
            return None
        else:
            if end < len(window) or not is_cut:
                return start + end
        size *= 4


def skip_blank(text: str, start: int) -> int:
    """Offset of the first character at or behind `start` that is not JSON white space."""
    match = _BLANK.match(text, start)
    return match.end() if match else start


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise JSONError(f"the key {key!r} is given twice")
            seen.add(key)
    return value


def _constant(name: str) -> NoReturn:
    raise JSONError(f"{name} is not a JSON value")


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise JSONError(f"the number {digits[:40]} is too large")
    return value


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        children = [node.values() if isinstance(node, dict) else node for node in level]
        level = [node for items in children for node in items if isinstance(node, dict | list)]
        if not level:
            return False
    return True


def _has_lone_surrogate(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


_STRICT_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_float=_float)
