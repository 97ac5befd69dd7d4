"""Sandboxes whose first process is a supervisor of ours: calls, files, start and end."""

from __future__ import annotations

import asyncio
import base64
import codecs
import contextlib
import errno
import fcntl
import io
import logging
import os
import socket
import tempfile
import weakref
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Unpack

from strands.sandbox import StreamChunk
from strands.sandbox.types import StreamType

from strands_sglang.exceptions import check_positive, refuse_unknown

from ..contract import (
    MAX_FILE_BYTES,
    MIB,
    ExecLimits,
    ExecOptions,
    ExecResult,
    Outcome,
    Sandbox,
    SandboxError,
    SandboxLimits,
    SandboxLostError,
    SandboxUnavailableError,
    wall_seconds,
)
from .command import require_linux
from .guest.protocol import write_all
from .process import SandboxProcess

logger = logging.getLogger(__name__)

MAX_STDIN_BYTES = 16 << 20
"""Longest standard input of a call."""
MAX_ARGUMENT_BYTES = 128_000
"""Longest argument or environment variable: Linux allows 128 KiB."""
MACHINE_ERRORS = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EROFS))
"""Of copies from a sandbox: this machine has no room, or no descriptors. All others are the doing of code inside."""
FILE_SECONDS = 600.0
"""Time that copying files in or out may take."""


class SandboxSlots:
    """A bound on the sandboxes running in each event loop. Share one among environments.

    Others wait for their first call to start. Each takes about 7 MiB, 15 with an interpreter.
    """

    def __init__(self, limit: int = 128) -> None:
        check_positive("sandboxes", whole=True, limit=limit)
        self.limit = limit
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            weakref.WeakKeyDictionary()
        )

    def semaphore(self) -> asyncio.Semaphore:
        """The semaphore of the running event loop."""
        return self._by_loop.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.limit))


default_slots = SandboxSlots()
"""The slots of all sandboxes that name no others."""


class SupervisedSandbox(Sandbox):
    """Base of sandboxes whose first process is a supervisor of ours.

    Attributes:
        is_waiting: Its call waits for one of the slots, or was cancelled while it did.
    """

    starts_again = True
    """A sandbox that ended during a call starts again with the next call.

    Otherwise every call raises `SandboxLostError` until `close`: without its files an episode cannot go on."""

    def __init__(self, limits: SandboxLimits, slots: SandboxSlots | None) -> None:
        require_linux()
        self.limits = limits
        self._slots = slots or default_slots
        self._taken: asyncio.Semaphore | None = None
        self._process: SandboxProcess | None = None
        self._lock = asyncio.Lock()
        self._is_lost = False
        self.is_waiting = False

    @abstractmethod
    async def _start_process(self) -> SandboxProcess:
        """Start the supervisor and its surroundings."""

    @property
    def is_running(self) -> bool:
        """True if it has processes now."""
        return self._process is not None

    @property
    def is_lost(self) -> bool:
        """True if it ended by itself and has not been closed since."""
        return self._is_lost or (self._process is not None and not self._process.is_alive)

    async def start(self) -> None:
        """Start it now rather than with the first call; `SandboxUnavailableError` if it does not start."""
        async with self._lock:
            await self._ready()

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        user: str | int | None = None,
        on_output: Callable[[StreamChunk], None] | None = None,
        **options: Unpack[ExecOptions],
    ) -> ExecResult:
        """Run a command; see `Sandbox`. The shell is bash where there is one.

        Standard input has at most 16 MiB.

        Args:
            user: User to run as, where the sandbox has several, in place of its own: a name, a number, or `user:group`.
            on_output: Gets all output as it comes; see `exec_streaming`.

        Raises:
            SandboxUnavailableError: The sandbox does not start.
            SandboxLostError: It ended, in this call or an earlier one, and does not start again.
        """
        refuse_unknown("exec", options, ExecOptions.__annotations__)
        env, stdin = dict(options.get("env") or {}), options.get("stdin", "")
        words: list[str] = [command] if isinstance(command, str) else [*command]
        code_bytes = self.limits.code_bytes if isinstance(command, str) else MAX_ARGUMENT_BYTES
        refused = "" if words else "the command is empty"
        for text in words:
            refused = refused or refusal(text, "code", code_bytes)
        for name, value in env.items():
            refused = refused or refusal(f"{name}={value}", "environment", MAX_ARGUMENT_BYTES)
        refused = refused or refusal(stdin, "standard input", MAX_STDIN_BYTES)
        request: dict[str, Any] = {"kind": "exec", "cwd": options.get("cwd"), "env": env, "user": user}
        request["command"] = command if isinstance(command, str) else words
        data = b"" if refused else stdin.encode() if isinstance(stdin, str) else bytes(stdin)
        with _sealed_file(data) if data else contextlib.nullcontext() as file:
            return await self._run(request, options.get("timeout"), options.get("limits"), refused, file, on_output)

    async def exec_streaming(
        self, command: str | Sequence[str], on_output: Callable[[StreamChunk], None], **options: Unpack[ExecOptions]
    ) -> ExecResult:
        """`exec`, with its output as it comes; see `Sandbox`."""
        return await self.exec(command, on_output=on_output, **options)

    async def read_file(
        self, path: str, *, max_bytes: int = MAX_FILE_BYTES, user: str | int | None = None, **kwargs: Any
    ) -> bytes:
        """Contents of a file; see `Sandbox`.

        Args:
            user: User to read as, where the sandbox has several.
        """
        try:
            with tempfile.TemporaryFile() as file:  # not in memory, where it would count as the code's
                await self._request({"kind": "read", "path": path, "max_bytes": max_bytes, "user": user}, file)
                file.seek(0)
                return file.read()
        except OSError as error:
            if error.errno in MACHINE_ERRORS:
                raise _no_room(error) from error
            raise

    async def write_file(
        self, path: str, content: str | bytes, *, user: str | int | None = None, **kwargs: Any
    ) -> None:
        """Make a file, or replace it; see `Sandbox`.

        Args:
            user: User to write as, where the sandbox has several.
        """
        with _sealed_file(content.encode() if isinstance(content, str) else content) as file:
            await self._request({"kind": "write", "path": path, "mode": None, "user": user}, file)

    async def listen(self, port: int, host: str = "127.0.0.1") -> socket.socket:
        """A socket that listens in the sandbox's own network; see `Sandbox`."""
        async with self._lock:
            await self._request_locked({"kind": "listen", "port": port, "host": host})
            assert self._process is not None
            return socket.socket(fileno=self._process.received_descriptor())

    async def close(self) -> None:
        """End all its processes and forget its state. Leaves nothing behind; may be called twice."""
        async with self._lock:
            self._is_lost = False
            await self._end()

    # ---- calls -------------------------------------------------------------------------------------------------------

    async def _run(
        self,
        request: dict[str, Any],
        timeout: float | None,
        limits: ExecLimits | None,
        refused: str,
        file: IO[bytes] | None = None,
        on_output: Callable[[StreamChunk], None] | None = None,
    ) -> ExecResult:
        used: dict[str, Any] = {"wall_seconds": wall_seconds(timeout, limits, self.limits.wall_seconds)}
        if refused:
            return ExecResult(outcome=Outcome.REFUSED, note=refused)
        for name in ("cpu_seconds", "output_bytes", "flood_bytes"):
            used[name] = getattr(limits, name, None) or getattr(self.limits, name)
        decoders: dict[StreamType, codecs.IncrementalDecoder] = {
            name: codecs.getincrementaldecoder("utf-8")("backslashreplace") for name in ("stdout", "stderr")
        }

        def emit(name: StreamType, data: bytes, is_last: bool = False) -> None:
            if on_output is not None and (text := decoders[name].decode(data, is_last)):
                on_output(StreamChunk(text, name))

        async with self._lock:
            try:
                answer = await self._ask({**request, **used}, file, None if on_output is None else emit)
            except SandboxLostError as error:
                if not self.starts_again:
                    raise
                return ExecResult(outcome=Outcome.SANDBOX_LOST, note=str(error))
            for name in decoders:
                emit(name, b"", is_last=True)
            result = self._result(request["kind"], answer, used)
            if result.outcome is Outcome.TOO_MANY_FILES and self.starts_again:
                await self._end()  # the files would break the limit again
            return result

    async def _ask(
        self, request: dict[str, Any], file: IO[bytes] | None, on_output: Callable[..., None] | None = None
    ) -> dict[str, Any]:
        """The supervisor's answer to a request; `SandboxLostError` if the sandbox is gone."""
        process = await self._ready()
        kills = process.oom_kills
        try:
            answer = await process.request(request, file, on_output)
        except (EOFError, OSError, TimeoutError, SandboxError) as error:
            raise await self._lose(error) from None  # its cause would pass for a lost connection to the model
        except BaseException:  # cancelled: the code still runs, and the next request would get its answer
            await asyncio.shield(self._after_cancel(process))
            raise
        # A parent sees only that a process was killed; the control group's counter says why.
        if answer["outcome"] in ("ok", "error", "died") and answer["exit"] != 0 and process.oom_kills > kills:
            answer["outcome"] = Outcome.OUT_OF_MEMORY.value
        return answer

    async def _lose(self, error: Exception | None) -> SandboxLostError:
        """Clean up after a sandbox that ended by itself."""
        logger.warning("error=<%r> | sandbox lost", error)
        self._is_lost = True
        await self._end()
        if self.starts_again:
            return SandboxLostError(
                "the sandbox ended unexpectedly; the next call starts a new one, with an empty work directory"
            )
        return SandboxLostError("the sandbox ended unexpectedly, with all that was in it")

    async def _after_cancel(self, process: SandboxProcess) -> None:
        """End the processes of a cancelled request, and them alone."""
        try:
            await process.take_back()
        except (EOFError, OSError, TimeoutError, SandboxError) as error:
            await self._lose(error)

    async def _request(self, request: dict[str, Any], file: IO[bytes] | None = None) -> None:
        """Have the supervisor do work without foreign code, such as a copy of a file; `OSError` if it cannot."""
        async with self._lock:
            await self._request_locked(request, file)

    async def _request_locked(self, request: dict[str, Any], file: IO[bytes] | None = None) -> None:
        path = request.get("path", "/")
        if not path or "\0" in path:
            raise ValueError(f"the path of a file must be text without NUL characters, got {path!r}")
        limits = {"wall_seconds": FILE_SECONDS, "cpu_seconds": 10 * FILE_SECONDS, "output_bytes": 4096}
        answer = await self._ask({**request, **limits, "flood_bytes": MIB}, file)
        if (outcome := answer["outcome"]) != "ok":
            code = answer["exit"] or 0
            is_errno = outcome == "error" and code > 0
            why = os.strerror(code) if is_errno else f"it could not be done: {outcome}, exit {code}"
            raise OSError(code if is_errno else errno.EIO, answer["detail"] or why, path)

    def _result(self, kind: str, answer: dict[str, Any], used: Mapping[str, Any]) -> ExecResult:
        outcome, code = Outcome(answer["outcome"]), answer["exit"]
        stdout, dropped_out = _stream(answer["stdout"])
        stderr, dropped_err = _stream(answer["stderr"])
        how = f"with exit code {code}" if code is None or code >= 0 else f"by signal {-code}"
        if self.starts_again:
            anew = "the next call starts a new sandbox, with an empty work directory"
            files = f"stopped for having more than {self.limits.files} files; {anew}"
        else:
            most = self.limits.disk_bytes // MIB
            files = f"everything was stopped for having written more than {most} MiB of files; they are still there"
        notes = {
            Outcome.TIMEOUT: f"stopped after the time limit of {used['wall_seconds']:g} s",
            Outcome.CPU_LIMIT: f"stopped after {used['cpu_seconds']:g} s of CPU time",
            Outcome.OUT_OF_MEMORY: f"stopped for using more than {self.limits.memory_bytes // MIB} MiB of memory",
            Outcome.REFUSED: answer["detail"],
            Outcome.OUTPUT_FLOOD: f"stopped after {used['flood_bytes']} bytes of output",
            Outcome.TOO_MANY_FILES: files,
            Outcome.DIED: answer["detail"] or f"the Python interpreter ended {how}",
        }
        note = [notes.get(outcome)]
        if answer["lost"] and outcome is not Outcome.TOO_MANY_FILES:
            ended = "" if outcome is Outcome.DIED else "the Python interpreter was ended: "
            note.append(f"{ended}its variables are lost, files in the work directory remain")
        elif outcome is Outcome.TIMEOUT and kind == "python":
            note.append("it was interrupted, variables set so far remain")
        return ExecResult(
            outcome=outcome,
            exit_code=code,
            stdout=stdout,
            stderr=stderr,
            dropped_bytes=dropped_out + dropped_err,
            note="; ".join(filter(None, note)),
            seconds=answer["seconds"],
        )

    # ---- its process -------------------------------------------------------------------------------------------------

    async def _ready(self) -> SandboxProcess:
        if self._process is not None and not self._process.is_alive:
            lost = await self._lose(None)
            if not self.starts_again:
                raise lost
        if self._is_lost and not self.starts_again:
            raise SandboxLostError("the sandbox ended unexpectedly in an earlier call, with all that was in it")
        if self._process is None:
            semaphore = self._slots.semaphore()
            self.is_waiting = True
            await semaphore.acquire()
            self.is_waiting = False
            self._taken = semaphore
            try:
                self._process = await self._start_process()
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


def refusal(text: str | bytes, what: str, max_bytes: int) -> str:
    """The reason why this text cannot be handed to a process; empty if it can. Standard input may be any bytes."""
    if what != "standard input" and (not isinstance(text, str) or "\0" in text):
        return f"the {what} must be text without NUL characters"
    try:
        size = len(text.encode() if isinstance(text, str) else text)
    except UnicodeEncodeError:
        return f"the {what} must be valid Unicode text; it has lone surrogates"
    if size > max_bytes:
        return f"the {what} has {size} bytes, at most {max_bytes} are allowed; write files in several calls"
    return ""


def _stream(answer: dict[str, Any]) -> tuple[str, int]:
    """The text of a captured stream, and the number of bytes that were dropped from its middle."""
    head, tail, dropped = base64.b64decode(answer["head"]), base64.b64decode(answer["tail"]), int(answer["dropped"])
    if not dropped:
        return (head + tail).decode(errors="backslashreplace"), 0
    parts = (part.decode(errors="backslashreplace") for part in (head, tail))
    return f"\n... [{dropped} bytes left out] ...\n".join(parts), dropped


def _sealed_file(data: bytes) -> io.FileIO:
    """An open file in memory with these bytes, which nobody can change once it is handed on."""
    try:
        file = io.FileIO(os.memfd_create("data", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "r+")
        write_all(file.fileno(), data)
        file.seek(0)
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
        return file
    except OSError as error:
        raise _no_room(error) from error


def _no_room(error: OSError) -> SandboxUnavailableError:
    """This machine's failure, which code must not be blamed for."""
    return SandboxUnavailableError(f"this machine has no room for a file on its way: {error}")
