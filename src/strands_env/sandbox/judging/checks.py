"""Runs hidden tests in one sandbox; the code they judge runs in another.

`Checks` is the judge's side of a conversation that the host leads: it resumes the checks with an answer and gets the
next thing they ask for, until they end. The checks run in a thread, so that they can wait between two calls of the
host. `solution` is how they reach the judged code: every run of it is a process in the other sandbox, and what comes
back is text or plain data: no class of the other side, no code. Lists, tuples, sets, dictionaries, text, bytes,
numbers, truth values and None keep their types; `NaN` and infinities are allowed.

This file runs in both sandboxes, and imports the standard library only.
"""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import linecache
import os
import queue
import sys
import threading
import traceback
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple


class SolutionError(Exception):
    """The judged code did not give an answer: it raised, ended, broke a limit, or returned more than plain data."""


class CommandRun(NamedTuple):
    """A run of a command beside the judged code."""

    exit_code: int | None
    stdout: str
    stderr: str
    outcome: str
    dropped_bytes: int


class Solution:
    """The judged code, seen from the checks.

    `solution.run(command, stdin=...)` runs a command in its sandbox; without one, the file as a program.
    `solution.call("name", *args)`, or `solution.name(*args)`, calls a function of the file in a fresh process; a
    method is `"Class.method"`, of an instance made without arguments.
    """

    def __init__(self, ask: Any, python: str, file: str, caller: str) -> None:
        self._ask = ask
        self._python = python
        self._file = file
        self._caller = caller

    def run(
        self, command: str | Sequence[str] | None = None, *, stdin: str = "", timeout: float | None = None
    ) -> CommandRun:
        """Run a command in the sandbox of the judged code; without one, the file as a program."""
        if command is None:
            command = [self._python, self._file]
        return CommandRun(**self._ask({"command": command, "stdin": stdin, "timeout": timeout}))

    def call(self, function: str, *args: Any, **kwargs: Any) -> Any:
        """Call a function of the judged file, plain data in and out; `SolutionError` if the call gave no answer."""
        marker = os.urandom(16).hex()
        request = {"file": self._file, "function": function, "args": args, "kwargs": kwargs, "marker": marker}
        command = [self._python, "-B", "-P", "-s", "-c", self._caller]
        done = self.run(command, stdin=encode(request))
        # What the judged code printed itself comes before the answer.
        _, separator, line = done.stdout.rpartition(marker)
        if not separator:
            raise SolutionError(f"{function} gave no answer ({done.outcome}): {done.stderr[-1000:]}")
        if done.dropped_bytes:  # the answer may have a hole in its middle
            raise SolutionError(f"{function} gave too much output")
        try:
            answer = decode(line)
            if "returned" in answer:
                return answer["returned"]
            raised = str(answer["raised"])
        except (ValueError, TypeError, KeyError) as error:
            raise SolutionError(f"{function} gave an answer that is not plain data") from error
        raise SolutionError(f"{function} raised\n{raised}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return partial(self.call, name)


class Checks:
    """Hidden tests that can be paused: `resume` runs them until they ask for something, or end."""

    def __init__(self, source: str, *, python: str, file: str) -> None:
        self._source = source
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        with open(__file__, encoding="utf-8") as own:
            self._solution = Solution(self._ask, python, file, own.read())
        self._thread: threading.Thread | None = None

    def resume(self, answer: Any) -> str:
        """The next event as JSON: `run`, the request; or `end`, None for passed, otherwise the reason."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()
        else:
            self._answers.put(answer)
        return json.dumps(self._events.get())

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self._events.put({"run": request})
            answer: dict[str, Any] = self._answers.get()
            return answer

    def _work(self) -> None:
        name = "<checks>"
        # So that tracebacks quote the checks, which are no file.
        linecache.cache[name] = (len(self._source), None, self._source.splitlines(keepends=True), name)
        namespace = {"__name__": "checks", "solution": self._solution, "SolutionError": SolutionError}
        try:
            code = compile(self._source, name, "exec")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            self._events.put({"invalid": f"{type(error).__name__}: {error}"})
            return
        try:
            exec(code, namespace)
        except SystemExit as error:
            self._events.put({"end": None if error.code in (None, 0) else f"SystemExit: {error.code}"})
        except BaseException as error:
            shown = traceback.format_exception(error, limit=-5)
            self._events.put({"end": "".join(shown)[-4000:]})
        else:
            self._events.put({"end": None})


def main() -> None:
    """Call one function of a Python file: this file is a program, too, beside the judged code.

    The request comes on standard input, as `encode` wrote it: `file`, `function`, `args`, `kwargs`, `marker`. The
    answer is the last line of the output, after the marker. All of this runs beside the judged code, so nothing that it
    says is trusted.
    """
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
    """The value as JSON; `TypeError` unless it is plain data, `RecursionError` for too deep nesting."""
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
