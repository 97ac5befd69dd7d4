"""Python values as JSON and back, for values that travel between a judge and the code it judges.

Nothing but data comes back: no class of the other side, no code. Lists, tuples, sets, dictionaries, text, bytes,
numbers, truth values and None keep their types; `NaN` and infinities are allowed.
"""

from __future__ import annotations

import base64
import json
from typing import Any


def encode(value: Any) -> str:
    """The value as JSON.

    Raises:
        TypeError: A part of it is not plain data.
        RecursionError: It is nested too deeply.
    """
    return json.dumps(_tagged(value))


def decode(text: str) -> Any:
    """The value that `encode` wrote.

    Raises:
        ValueError: The text is not such JSON, or is nested too deeply.
    """
    try:
        return _untagged(json.loads(text))
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"not plain data: {type(error).__name__}: {error}") from error


def _tagged(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | bytearray):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, list):
        return [_tagged(item) for item in value]
    if isinstance(value, dict):
        return {"dict": [[_tagged(key), _tagged(item)] for key, item in value.items()]}
    for kind in (tuple, set, frozenset):
        if isinstance(value, kind):
            return {kind.__name__: [_tagged(item) for item in value]}
    raise TypeError(f"{type(value).__name__} is not plain data")


def _untagged(value: Any) -> Any:
    if isinstance(value, list):
        return [_untagged(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((tag, content),) = value.items()
    match tag:
        case "bytes":
            return base64.b64decode(content, validate=True)
        case "dict":
            return {_untagged(key): _untagged(item) for key, item in content}
        case "tuple":
            return tuple(map(_untagged, content))
        case "set":
            return set(map(_untagged, content))
        case "frozenset":
            return frozenset(map(_untagged, content))
    raise ValueError(f"not plain data: unknown tag {tag!r}")
