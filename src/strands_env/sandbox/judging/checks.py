"""Runs hidden tests in a sandbox of their own; the code they judge runs in another one.

`Checks` is the judge's side of a conversation that the host leads: it resumes the checks with an answer and gets the
next thing they ask for, until they end. The checks run in a thread, so that they can wait between two calls of the
host. `solution` is how they reach the judged code: every run of it is a process in the other sandbox, and what comes
back is text or plain data.
"""

from __future__ import annotations

import json
import linecache
import queue
import secrets
import threading
import traceback
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from .call import decode, encode


class SolutionError(Exception):
    """The judged code did not give an answer: it raised, ended, broke a limit, or returned what is not plain data."""


class CommandRun(NamedTuple):
    """One run of a command beside the judged code."""

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
        marker = secrets.token_hex(16)
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

    def __init__(self, source: str, *, python: str, file: str, caller: str) -> None:
        self._source = source
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._solution = Solution(self._ask, python, file, caller)
        self._thread: threading.Thread | None = None

    def resume(self, answer: Any) -> str:
        """The next event as JSON: `run`, what is to be run; or `end`, None for passed, else why not."""
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
