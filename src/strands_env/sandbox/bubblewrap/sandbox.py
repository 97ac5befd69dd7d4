"""`BubblewrapSandbox`: Python and shell code of unknown origin on this machine, with state that lasts an episode."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from ..contract import ExecResult, Isolation, Outcome, SandboxError, SandboxLimits, SandboxUnavailableError
from .cgroup import remove_stale_groups
from .process import Blueprint, SandboxProcess, isolation_from, make_blueprint

logger = logging.getLogger(__name__)

DEFAULT_MAX_SANDBOXES = 128
"""Sandboxes that run at the same time, if nothing else is said; each takes about 7 MiB, 15 with an interpreter."""
MAX_OUTPUT_BYTES = 2 << 20
"""Most bytes of one output stream that a call can keep."""
MAX_STDIN_BYTES = 16 << 20
"""Longest standard input of a call."""


class Sandbox(Protocol):
    """A place to run code, here or hosted."""

    async def run_python(self, code: str, *, timeout: float | None = None, fresh: bool = False) -> ExecResult:
        """Run Python code in an interpreter that keeps its state between calls; `fresh` in one of its own."""

    async def exec(self, command: str, *, timeout: float | None = None) -> ExecResult:
        """Run a shell command in the work directory."""

    async def close(self) -> None:
        """End it; it starts afresh when it is used again."""


class SandboxSlots:
    """A bound on the sandboxes that run at the same time. Share one among environments.

    Args:
        limit: Sandboxes that run at the same time, in each event loop. Others wait for their first call to start.
    """

    def __init__(self, limit: int = DEFAULT_MAX_SANDBOXES) -> None:
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ValueError(f"limit must be a positive number of sandboxes, got {limit!r}")
        self.limit = limit
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            weakref.WeakKeyDictionary()
        )

    def semaphore(self) -> asyncio.Semaphore:
        """The semaphore of the running event loop."""
        return self._by_loop.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.limit))


default_slots = SandboxSlots()
"""The slots of all sandboxes that name no others."""


class BubblewrapSandbox:
    """Python and shell code in an isolated place of this machine.

    It starts with its first call. One call runs at a time; parallel ones wait in order. The work directory
    `/workspace` and the Python interpreter's variables last until `close`; a shell is fresh for every call. Processes
    that a call leaves running end with it. A call that breaks a limit gives a result that says so. When the interpreter
    had to be ended its variables are lost, and the result says that too.

    Args:
        limits: What code may use.
        isolation: What stands between code and this machine. Without isolation nothing does, hence its name.
        python: Interpreter for the code, also one of a virtual environment. None takes the one that runs this process,
            with the standard library and what is installed beside it, but without packages of a virtual environment.
        packages: Folders of further Python packages, shown read-only and put on the path.
        read_only: Further files and folders of this machine to show, read-only, under their own paths.
        environment: Environment variables of the code. None of this process' own are passed on.
        slots: Bound on running sandboxes; that of the process if None.

    Attributes:
        is_waiting: Its call waits for one of the slots, or was cancelled while it did.

    Raises:
        SandboxUnavailableError: Isolation is unavailable on this machine; the message says how to get it.
        ValueError: An argument is out of range.
    """

    def __init__(
        self,
        *,
        limits: SandboxLimits | None = None,
        isolation: Isolation | str = Isolation.BUBBLEWRAP,
        python: str | None = None,
        packages: Sequence[str | os.PathLike[str]] = (),
        read_only: Sequence[str | os.PathLike[str]] = (),
        environment: Mapping[str, str] | None = None,
        slots: SandboxSlots | None = None,
    ) -> None:
        blueprint = make_blueprint(
            limits=limits or SandboxLimits(),
            isolation=isolation_from(isolation),
            python=python,
            read_only=read_only,
            packages=packages,
            environment=environment or {},
        )
        if blueprint.isolation is Isolation.NONE:
            logger.warning("isolation=<none> | code will run as the current user, with its files and network")
        self._set_up(blueprint, slots or default_slots)

    @classmethod
    def from_blueprint(cls, blueprint: Blueprint, slots: SandboxSlots) -> Self:
        """A sandbox like another one, with its `blueprint`."""
        sandbox = cls.__new__(cls)
        sandbox._set_up(blueprint, slots)
        return sandbox

    def _set_up(self, blueprint: Blueprint, slots: SandboxSlots) -> None:
        self.blueprint = blueprint
        self.limits = blueprint.limits
        self._slots = slots
        self._taken: asyncio.Semaphore | None = None
        self._process: SandboxProcess | None = None
        self._lock = asyncio.Lock()
        self.is_waiting = False

    @property
    def is_running(self) -> bool:
        """Whether it has processes now."""
        return self._process is not None

    async def start(self) -> None:
        """Start it now rather than with the first call.

        Raises:
            SandboxUnavailableError: It does not start.
        """
        async with self._lock:
            await self._ready()

    async def run_python(self, code: str, *, timeout: float | None = None, fresh: bool = False) -> ExecResult:
        """Run Python code; the value of a last expression is printed, as a notebook does.

        Args:
            code: The code.
            timeout: Seconds for this call; at most the limit's.
            fresh: Run it in a new interpreter, which shares only the files with the other calls and ends with this one.
                Earlier code may have changed the lasting interpreter to claim anything. For hidden tests use `judge`.

        Raises:
            SandboxUnavailableError: The sandbox does not start. Whatever the code does raises nothing.
        """
        return await self._run("fresh" if fresh else "python", code, timeout)

    async def run_trusted(self, code: str, *, timeout: float, output_bytes: int) -> ExecResult:
        """Run Python code of any length, for code of our own that carries data."""
        return await self._call("python", code, timeout, "", output_bytes)

    async def exec(
        self, command: str, *, timeout: float | None = None, stdin: str = "", output_bytes: int | None = None
    ) -> ExecResult:
        """Run a command in a fresh shell in the work directory.

        Args:
            command: A command line or a script, for bash where there is one.
            timeout: Seconds for this call; at most the limit's.
            stdin: Its standard input, at most 16 MiB; it takes room on `/tmp`.
            output_bytes: Kept of each output stream, at most 2 MiB; the limit's if None.

        Raises:
            SandboxUnavailableError: The sandbox does not start. Whatever the command does raises nothing.
        """
        return await self._run("shell", command, timeout, stdin=stdin, output_bytes=output_bytes)

    async def close(self) -> None:
        """End all its processes and forget its state. Leaves nothing behind; may be called twice."""
        async with self._lock:
            await self._end()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(
        self, kind: str, code: str, timeout: float | None, *, stdin: str = "", output_bytes: int | None = None
    ) -> ExecResult:
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout must be a positive number of seconds or None, got {timeout!r}")
        if output_bytes is not None and not 0 < output_bytes <= MAX_OUTPUT_BYTES:
            raise ValueError(f"output_bytes must be from 1 to {MAX_OUTPUT_BYTES} or None, got {output_bytes!r}")
        refusal = _refusal(code, "code", self.limits.code_bytes) or _refusal(stdin, "standard input", MAX_STDIN_BYTES)
        if refusal:
            return ExecResult(outcome=Outcome.REFUSED, note=refusal)
        return await self._call(kind, code, timeout, stdin, output_bytes or self.limits.output_bytes)

    async def _call(self, kind: str, code: str, timeout: float | None, stdin: str, output_bytes: int) -> ExecResult:
        wall = self.limits.wall_seconds if timeout is None else min(timeout, self.limits.wall_seconds)
        async with self._lock:
            process = await self._ready()
            kills = process.oom_kills
            try:
                answer = await process.request(
                    kind, code, wall=wall, cpu=self.limits.cpu_seconds, output_bytes=output_bytes, stdin=stdin
                )
            except (EOFError, OSError, TimeoutError, SandboxError) as error:
                logger.warning("error=<%r> | sandbox lost", error)
                await self._end()
                note = "the sandbox ended unexpectedly; the next call starts a new one, with an empty work directory"
                return ExecResult(outcome=Outcome.SANDBOX_LOST, note=note)
            except BaseException:  # cancelled: the code still runs, and the next request would get its answer
                await asyncio.shield(self._end())
                raise
            if answer["outcome"] in ("ok", "error", "died") and answer["exit"] != 0 and process.oom_kills > kills:
                answer["outcome"] = Outcome.OUT_OF_MEMORY.value
            result = self._result(kind, answer, wall)
            if result.outcome is Outcome.TOO_MANY_FILES:
                await self._end()  # the files would break the limit again
            return result

    def _result(self, kind: str, answer: dict[str, Any], wall: float) -> ExecResult:
        outcome = Outcome(answer["outcome"])
        stdout, dropped_out = _stream(answer["stdout"])
        stderr, dropped_err = _stream(answer["stderr"])
        notes = [self._limit_note(outcome, answer, wall)]
        if outcome is Outcome.TOO_MANY_FILES:
            notes.append("the next call starts a new sandbox, with an empty work directory")
        elif answer["lost"]:
            ended = "" if outcome is Outcome.DIED else "the Python interpreter was ended: "
            notes.append(f"{ended}its variables are lost, files in the work directory remain")
        elif outcome is Outcome.TIMEOUT and kind == "python":
            notes.append("it was interrupted, variables set so far remain")
        return ExecResult(
            outcome=outcome,
            exit_code=answer["exit"],
            stdout=stdout,
            stderr=stderr,
            dropped_bytes=dropped_out + dropped_err,
            note="; ".join(note for note in notes if note),
            seconds=answer["seconds"],
        )

    def _limit_note(self, outcome: Outcome, answer: dict[str, Any], wall: float) -> str:
        limits = self.limits
        match outcome:
            case Outcome.TIMEOUT:
                return f"stopped after the time limit of {wall:g} s"
            case Outcome.CPU_LIMIT:
                return f"stopped after {limits.cpu_seconds:g} s of CPU time"
            case Outcome.OUT_OF_MEMORY:
                return f"stopped for using more than {limits.memory_bytes // (1 << 20)} MiB of memory"
            case Outcome.OUTPUT_FLOOD:
                return f"stopped after {limits.flood_bytes} bytes of output"
            case Outcome.TOO_MANY_FILES:
                return f"stopped for having more than {limits.files} files"
            case Outcome.DIED:
                code = answer["exit"]
                how = f"with exit code {code}" if code is None or code >= 0 else f"by signal {-code}"
                return answer["detail"] or f"the Python interpreter ended {how}"
        return ""

    async def _ready(self) -> SandboxProcess:
        if self._process is not None and not self._process.is_alive:
            await self._end()
        if self._process is None:
            semaphore = self._slots.semaphore()
            self.is_waiting = True
            await semaphore.acquire()
            self.is_waiting = False
            self._taken = semaphore
            try:
                _sweep_once()
                self._process = await SandboxProcess.start(self.blueprint)
                self._process.when_abandoned(semaphore.release)
            except BaseException as error:
                self._release()
                if isinstance(error, SandboxError) or not isinstance(error, Exception):
                    raise
                # no descriptors left, no room for a folder: the machine lacks something; the code is not at fault
                what = f"{type(error).__name__}: {error}"
                raise SandboxUnavailableError(f"the sandbox could not be started: {what}") from error
        return self._process

    async def _end(self) -> None:
        process, self._process = self._process, None
        try:
            if process is not None:
                await process.end()
        finally:
            self._release()

    def _release(self) -> None:
        if self._taken is not None:
            self._taken.release()
            self._taken = None


def _refusal(text: str, what: str, max_bytes: int) -> str:
    """Why this text cannot be handed to a process; empty if it can."""
    if not isinstance(text, str) or (what == "code" and "\0" in text):
        return f"the {what} must be text without NUL characters"
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return f"the {what} must be valid Unicode text; it has lone surrogates"
    if size > max_bytes:
        return f"the {what} has {size} bytes, at most {max_bytes} are allowed; write files in several calls"
    return ""


def _stream(answer: dict[str, Any]) -> tuple[str, int]:
    """The text of a captured stream, and the number of bytes that were dropped from its middle."""
    head, tail = (base64.b64decode(answer[part]).decode(errors="backslashreplace") for part in ("head", "tail"))
    dropped = int(answer["dropped"])
    return (f"{head}\n... [{dropped} bytes left out] ...\n{tail}" if dropped else head + tail), dropped


_swept = False


def _sweep_once() -> None:
    global _swept
    if not _swept:
        _swept = True
        remove_stale_groups()
