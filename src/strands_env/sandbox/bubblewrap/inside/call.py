"""Calls one function of a Python file and prints what it returns; a separate program.

The request comes on standard input, as `encode` wrote it: `file`, `function`, `args`, `kwargs`, `marker`. The answer is
the last line of the output, after the marker. All of this runs beside the judged code, so nothing here is trusted.
"""

from __future__ import annotations

import importlib.util
import io
import os
import sys
import traceback
from typing import Any

from .plain import decode, encode


def main() -> None:
    """Answer one request."""
    request = decode(sys.stdin.read())
    sys.stdin = io.StringIO()
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
    os.write(1, f"\n{request['marker']}{line}\n".encode())
