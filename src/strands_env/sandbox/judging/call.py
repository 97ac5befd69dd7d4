"""Calls one function of a Python file, with values as JSON: a separate program beside the judged code.

It runs as `python -c` with the source of this file, which imports the standard library only. The request comes on
standard input, as `encode` wrote it: `file`, `function`, `args`, `kwargs`, `marker`. The answer is the last line of the
output, after the marker. All of this runs beside the judged code, so nothing here is trusted.

Nothing but data comes back: no class of the other side, no code. Lists, tuples, sets, dictionaries, text, bytes,
numbers, truth values and None keep their types; `NaN` and infinities are allowed.
"""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import os
import sys
import traceback
from typing import Any


def main() -> None:
    """Answer one request."""
    getattr(sys, "set_int_max_str_digits", int)(0)  # answers may be long numbers; the sandbox bounds their time
    request = decode(sys.stdin.read())
    sys.stdin = io.StringIO()  # judged code that reads finds the end of its input
    folder = os.path.dirname(os.path.abspath(request["file"]))
    sys.path.insert(0, folder)
    try:
        spec = importlib.util.spec_from_file_location("solution", request["file"])
        if spec is None or spec.loader is None:
            raise ImportError(f"{request['file']!r} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules["solution"] = module
        spec.loader.exec_module(module)
        target: Any = module
        for name in request["function"].split("."):
            target = target() if isinstance(target, type) else target
            target = getattr(target, name)
        answer = {"returned": target(*request["args"], **request["kwargs"])}
        line = encode(answer)
    except BaseException as error:
        line = encode({"raised": "".join(traceback.format_exception(error, limit=-10))[-4000:]})
    sys.stdout.flush()
    # Below sys.stdout, which the judged code may have replaced.
    os.write(1, f"\n{request['marker']}{line}\n".encode())


def encode(value: Any) -> str:
    """The value as JSON; `TypeError` for what is not plain data, `RecursionError` for too deep nesting."""
    return json.dumps(_tag(value))


def decode(text: str) -> Any:
    """The value that `encode` wrote; `ValueError` for any other text, or one nested too deeply."""
    try:
        return _untag(json.loads(text))
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"not plain data: {type(error).__name__}: {error}") from error


def _tag(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | bytearray):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, list):
        return [_tag(item) for item in value]
    if isinstance(value, dict):
        return {"dict": [[_tag(key), _tag(item)] for key, item in value.items()]}
    for kind in (tuple, set, frozenset):
        if isinstance(value, kind):
            return {kind.__name__: [_tag(item) for item in value]}
    raise TypeError(f"{type(value).__name__} is not plain data")


def _untag(value: Any) -> Any:
    if isinstance(value, list):
        return [_untag(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((tag, content),) = value.items()
    match tag:
        case "bytes":
            return base64.b64decode(content, validate=True)
        case "dict":
            return {_untag(key): _untag(item) for key, item in content}
        case "tuple":
            return tuple(map(_untag, content))
        case "set":
            return set(map(_untag, content))
        case "frozenset":
            return frozenset(map(_untag, content))
    raise ValueError(f"not plain data: unknown tag {tag!r}")


if __name__ == "__main__":
    main()
