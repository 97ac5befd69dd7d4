"""The contract of a sandbox: run a command, read a file, write a file, close. How calls end is data.

`Sandbox` is what judges, code tools, harnesses and tasks use. It is a sandbox of the Strands SDK, which
`Agent(sandbox=...)` and the tools of the SDK take, and adds typed ends, limits, standard input, an end.
`strands_env.testing.SandboxContract` tests an implementation, and `SandboxCapabilities` says what it can do beyond it.

SandboxError                      a failure of the sandbox, never of the code in it
├── SandboxUnavailableError       it could not be started, or isolation is unavailable here
├── SandboxUnsupportedError       it has no such ability: its capabilities say so
└── SandboxLostError              it ended under a call, and its files are gone
"""

from __future__ import annotations

import asyncio
import socket
from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Self, TypedDict, Unpack

from strands.sandbox import ExecutionResult, PosixShellSandbox, StreamChunk
from strands.sandbox.errors import SandboxTimeoutError
from strands.sandbox.posix_shell import validate_env_keys
from strands.types.exceptions import ToolProviderException
from strands.types.tools import AgentTool

from strands_env.core.limits import shorten
from strands_sglang.exceptions import check_positive

MIB = 1 << 20
MAX_FILE_BYTES = 64 * MIB
"""Longest file that `read_file` returns by default."""


class SandboxError(ToolProviderException):
    """A failure of the sandbox itself, never of the code in it. Ends an episode as `TOOL_ERROR`."""


class SandboxUnavailableError(SandboxError):
    """Isolation is unavailable on this machine, or a sandbox could not be started; the message says what to do."""


class SandboxUnsupportedError(SandboxError):
    """The sandbox has no such ability, as its capabilities say."""


class SandboxLostError(SandboxError):
    """The sandbox ended under a call, and its files are gone.

    Where the next call starts a new sandbox, a command raises nothing: its outcome is `SANDBOX_LOST`.
    """


class Outcome(StrEnum):
    """The end of a call."""

    OK = "ok"
    """Ran to its end."""
    ERROR = "error"
    """Ended with an exception or an exit code other than 0."""
    TIMEOUT = "timeout"
    """Ran longer than its time limit."""
    CPU_LIMIT = "cpu_limit"
    """All its processes together used more than their CPU time."""
    OUT_OF_MEMORY = "out_of_memory"
    """All its processes together used more than their memory, or the kernel ended one for it."""
    OUTPUT_FLOOD = "output_flood"
    """Wrote more output than allowed."""
    TOO_MANY_FILES = "too_many_files"
    """Made more or larger files than allowed."""
    DIED = "died"
    """The lasting Python interpreter ended or was killed during the call."""
    REFUSED = "refused"
    """Not run: too long, or not text that a program can be."""
    SANDBOX_LOST = "sandbox_lost"
    """The sandbox itself ended during the call; the next call gets a new one, with no files."""


class Network(StrEnum):
    """The reach of programs in a sandbox."""

    NONE = "none"
    """No network."""
    LOOPBACK = "loopback"
    """The loopback addresses of this machine, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxCapabilities:
    """Abilities of a sandbox beyond running commands and keeping files.

    Attributes:
        work: Absolute path of the work directory: where commands start, and relative paths begin.
        python: Command of its Python interpreter.
        background: Processes that a call leaves running live on for the next calls.
        network: Reach of the programs in it.
        listens: Its `listen(port)` gives a socket that listens inside, for a server outside.
        streams: Output can be had while a command runs, by `exec_streaming` and the SDK's `execute_streaming`.
        limits: The ends of calls that it enforces itself, such as `Outcome.CPU_LIMIT`.
    """

    work: str
    python: str = "python3"
    background: bool = False
    network: Network = Network.NONE
    listens: bool = False
    streams: bool = False
    limits: frozenset[Outcome] = frozenset({Outcome.TIMEOUT})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecLimits:
    """Limits of one call in place of the sandbox's own; None keeps those.

    Attributes:
        wall_seconds: Duration.
        cpu_seconds: CPU time of all processes together.
        output_bytes: Kept of each output stream, half from its beginning and half from its end; at most 32 MiB.
        flood_bytes: Output after which the call is ended.
    """

    wall_seconds: float | None = None
    cpu_seconds: float | None = None
    output_bytes: int | None = None
    flood_bytes: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            # Annotations are text here, "int | None" for example.
            check_positive(whole="int" in str(field.type), optional=True, **{field.name: getattr(self, field.name)})
        if (self.output_bytes or 0) > 32 * MIB:  # both streams, in base64, have to fit in one frame
            raise ValueError(f"output_bytes must be at most {32 * MIB}, got {self.output_bytes!r}")


def wall_seconds(timeout: float | None, limits: ExecLimits | None, most: float) -> float:
    """The time limit of a call: that of its limits, otherwise `most`, and less where the call says so.

    Raises:
        ValueError: `timeout` is not positive.
    """
    check_positive("seconds", optional=True, timeout=timeout)
    seconds = (limits and limits.wall_seconds) or most
    return seconds if timeout is None else min(timeout, seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    r"""One call in a sandbox.

    Attributes:
        exit_code: Exit code; negative for the number of a signal; None if it did not exit.
        stdout: Standard output; invalid UTF-8 is shown as `\xNN`.
        stderr: Standard error, likewise.
        dropped_bytes: Bytes of both streams that were not kept.
        note: For the author of the code: the limit that was met, the loss of state. Empty if all is well.
        seconds: Duration.
    """

    outcome: Outcome
    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    dropped_bytes: int = 0
    note: str = ""
    seconds: float = 0.0

    @property
    def is_error(self) -> bool:
        """The code did not run to its end without an error."""
        return self.outcome is not Outcome.OK

    @property
    def shell_status(self) -> int:
        """The exit code as a shell reports it, also of a process that was ended."""
        if self.outcome is Outcome.TIMEOUT:
            return 124  # as the program `timeout`
        if self.outcome is Outcome.OUT_OF_MEMORY:
            return 137
        if self.exit_code is None:
            return 126
        return self.exit_code if self.exit_code >= 0 else 128 - self.exit_code

    @property
    def noted_stderr(self) -> str:
        """Standard error, with the note."""
        return f"{self.stderr}\n[{self.note}]".lstrip("\n") if self.note else self.stderr

    def to_text(self, max_chars: int | None = None) -> str:
        """The call as a tool result: output, error output, exit code, note.

        Args:
            max_chars: Characters of each stream; None for all that was kept.
        """

        def show(text: str) -> str:
            return text.rstrip("\n") if max_chars is None else shorten(text.rstrip("\n"), max_chars)

        parts = [show(self.stdout)] if self.stdout.strip("\n") else []
        if self.stderr.strip("\n"):
            parts.append(f"[stderr]\n{show(self.stderr)}" if parts or not self.is_error else show(self.stderr))
        if self.outcome is Outcome.ERROR and self.exit_code != 0 and not (self.exit_code == 1 and parts):
            parts.append(f"[exit code {self.exit_code}]")
        if self.note:
            parts.append(f"[{self.note}]")
        return "\n".join(parts) or ("(no output)" if not self.is_error else f"[{self.outcome.value}]")


class ExecOptions(TypedDict, total=False):
    """Options of a call of `Sandbox.exec`, all of which may be left out.

    Attributes:
        cwd: Folder to start in; the work directory if None.
        env: Environment variables beside those of the sandbox. None of this process' own are passed on.
        stdin: Standard input.
        timeout: Seconds for this call, where that is less than its limit.
        limits: Limits of this call in place of the sandbox's own.
    """

    cwd: str | None
    env: Mapping[str, str] | None
    stdin: str | bytes
    timeout: float | None
    limits: ExecLimits | None


class Sandbox(PosixShellSandbox):
    """A place to run foreign code: a work directory, and processes that see no more of this machine.

    It starts with its first call and ends with `close`, with everything in it; used again, it starts afresh. Calls may
    overlap: an implementation that cannot run two at a time lets them wait in order. The outcome of code is an
    `ExecResult`; only a failure of the sandbox raises `SandboxError`. A cancelled call leaves nothing running.

    The SDK's methods (`execute`, `execute_code`, their streaming forms, `list_files`, `remove_file`) stand on these;
    `**kwargs` are its own. An `Agent(sandbox=...)` gets a shell and an editor in it, as with the SDK's own sandboxes.
    """

    @property
    @abstractmethod
    def capabilities(self) -> SandboxCapabilities:
        """Its abilities, known before it starts."""

    @abstractmethod
    async def exec(self, command: str | Sequence[str], **options: Unpack[ExecOptions]) -> ExecResult:
        """Run a command and wait for its end.

        Args:
            command: A command line or script for the shell, or a program with its arguments.
            options: See `ExecOptions`.
        """

    async def exec_streaming(
        self, command: str | Sequence[str], on_output: Callable[[StreamChunk], None], **options: Unpack[ExecOptions]
    ) -> ExecResult:
        """`exec`, with all output handed to `on_output` as it comes, where the capabilities say so.

        The result keeps both ends of a long output, as ever. Where the call is cancelled, so is the command.

        Args:
            on_output: It must not raise.
            options: See `ExecOptions`.

        Raises:
            SandboxUnsupportedError: This sandbox cannot.
        """
        raise SandboxUnsupportedError(
            f"{type(self).__name__} cannot stream output: use execute() or exec(), which wait for the end"
        )

    @abstractmethod
    async def read_file(self, path: str, *, max_bytes: int = MAX_FILE_BYTES, **kwargs: Any) -> bytes:
        """Contents of a file.

        Raises:
            FileNotFoundError: There is none.
            OSError: It is a folder, no regular file, unreadable, or longer than `max_bytes`.
            SandboxLostError: The sandbox ended meanwhile.
        """

    @abstractmethod
    async def write_file(self, path: str, content: str | bytes, **kwargs: Any) -> None:
        """Make a file, or replace it; text is written as UTF-8, and missing folders are made.

        Raises:
            OSError: A folder is there, there is no room, or the path cannot be written.
            SandboxLostError: The sandbox ended meanwhile.
        """

    async def listen(self, port: int, host: str = "127.0.0.1") -> socket.socket:
        """A socket that listens inside, for a server on this side, where the capabilities say so.

        Raises:
            OSError: The port is taken.
        """
        raise SandboxUnsupportedError(f"{type(self).__name__} has no sockets that are served from here")

    async def start(self) -> None:
        """Start it now rather than with the first call; `SandboxUnavailableError` if it does not start."""

    @abstractmethod
    async def close(self) -> None:
        """End everything in it. May be called twice."""

    @abstractmethod
    def sibling(self) -> Sandbox:
        """Another sandbox of the same make and limits: not started, nothing shared."""

    # ---- the SDK's methods -------------------------------------------------------------------------------------------

    async def execute_streaming(
        self,
        command: str,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        is_whole: bool = False,
        **kwargs: Any,
    ) -> AsyncGenerator[StreamChunk | ExecutionResult, None]:
        """Run a command as the SDK does: pieces of its output as they come, then its result.

        A limit other than time is a result, with a note in its `stderr`. Closing the generator ends the command.

        Args:
            is_whole: Wait for the end, and yield the result alone; for `execute` and `execute_code`.

        Raises:
            ValueError: A name of `env` cannot be one.
            SandboxTimeoutError: It ran longer than its time limit, or the sandbox's own.
            SandboxUnsupportedError: This sandbox cannot stream.
            SandboxLostError: The sandbox ended meanwhile.
        """
        validate_env_keys(env or {})
        options: ExecOptions = {"timeout": timeout, "cwd": cwd, "env": env}
        pieces: asyncio.Queue[StreamChunk | None] = asyncio.Queue()
        run = self.exec(command, **options) if is_whole else self.exec_streaming(command, pieces.put_nowait, **options)
        running = asyncio.ensure_future(run)
        running.add_done_callback(lambda _: pieces.put_nowait(None))
        try:
            while (piece := await pieces.get()) is not None:
                yield piece
            done = running.result()
        finally:
            running.cancel()
            await asyncio.wait({running})
        if done.outcome is Outcome.SANDBOX_LOST:
            raise SandboxLostError(done.note)
        if done.outcome is Outcome.TIMEOUT:
            error = SandboxTimeoutError(timeout, done.stdout, done.stderr)
            error.args = (f"Execution timed out: {done.note}",)  # the limit may be the sandbox's own
            raise error
        if done.note and not is_whole:
            yield StreamChunk(done.noted_stderr.removeprefix(done.stderr), "stderr")
        yield ExecutionResult(done.shell_status, done.stdout, done.noted_stderr)

    async def execute(self, command: str, **options: Any) -> ExecutionResult:
        """Run a command and wait for its end, in any sandbox; see `execute_streaming`."""
        return await _last(self.execute_streaming(command, is_whole=True, **options))

    async def execute_code(self, code: str, language: str, **options: Any) -> ExecutionResult:
        """Run a program of an interpreter in the sandbox and wait for its end; see `execute_streaming`."""
        return await _last(self.execute_code_streaming(code, language, is_whole=True, **options))

    def get_tools(self) -> list[AgentTool]:
        """The tools of an `Agent(sandbox=...)`: the SDK's shell and editor, under the names of its Docker sandbox."""
        from strands.vended_tools.file_editor import make_file_editor
        from strands.vended_tools.shell import make_shell

        editor = make_file_editor(sandbox=self, name="sandbox_file_editor")
        return [editor, make_shell(sandbox=self, name="sandbox_shell")]

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


async def _last(events: AsyncGenerator[StreamChunk | ExecutionResult, None]) -> ExecutionResult:
    *_, result = [event async for event in events]  # to its end: one that is left open would be closed at any time
    assert isinstance(result, ExecutionResult)
    return result


class PythonSandbox(Sandbox):
    """A sandbox with a Python interpreter whose variables last from call to call."""

    @abstractmethod
    async def run_python(
        self, code: str, *, timeout: float | None = None, limits: ExecLimits | None = None
    ) -> ExecResult:
        """Run Python code; the value of a last expression is printed, as a notebook does.

        Args:
            timeout: Seconds for this call, where that is less than its limit.
            limits: Limits of this call in place of the sandbox's own.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """Limits of code in a local sandbox. Times hold for one call, the rest for all processes together.

    Attributes:
        wall_seconds: Duration of a call.
        cpu_seconds: CPU time of a call, over all processes.
        memory_bytes: Memory of all processes; also the largest data segment of one.
        disk_bytes: Size of the work directory, and of `/tmp`; both are in memory.
        file_bytes: Size of one file.
        files: Number of files and folders.
        processes: Number of processes and threads.
        open_files: Open files of one process.
        output_bytes: Kept of each output stream, half from its beginning and half from its end.
        flood_bytes: Output after which a call is ended.
        code_bytes: Length of the code of a call.
        start_seconds: Time a sandbox may take to start.
    """

    wall_seconds: float = 30.0
    cpu_seconds: float = 60.0
    memory_bytes: int = 512 * MIB
    disk_bytes: int = 128 * MIB
    file_bytes: int = 64 * MIB
    files: int = 20_000
    processes: int = 64
    open_files: int = 256
    output_bytes: int = 16 * 1024
    flood_bytes: int = 16 * MIB
    code_bytes: int = 100_000
    start_seconds: float = 20.0

    def __post_init__(self) -> None:
        for field in fields(self):
            check_positive(whole=field.type == "int", **{field.name: getattr(self, field.name)})
        if self.code_bytes > 128_000:  # MAX_ARG_STRLEN of Linux, 32 pages
            raise ValueError(
                f"code_bytes={self.code_bytes!r} is more than Linux lets one argument have: at most 128000"
            )
