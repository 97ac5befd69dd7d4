"""Limits of a sandbox, what a call in it gives, and the errors of sandboxes.

SandboxError
└── SandboxUnavailableError   isolation is unavailable here, or a sandbox did not start
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

from strands.types.exceptions import ToolProviderException

from strands_env.core.limits import shorten

MIB = 1 << 20


class SandboxError(ToolProviderException):
    """A failure of the sandbox itself, never of the code in it. Ends an episode as `TOOL_ERROR`."""


class SandboxUnavailableError(SandboxError):
    """Isolation is unavailable on this machine, or a sandbox could not be started; the message says what to do."""


class Isolation(StrEnum):
    """What stands between foreign code and this machine."""

    BUBBLEWRAP = "bubblewrap"
    """Linux namespaces by bubblewrap: no network, a private file system, own processes, limits on everything."""
    NONE = "none-i-accept-the-risk"
    """Nothing: code runs as the current user, with its files and network. Limits are best effort."""


class Outcome(StrEnum):
    """How a call ended."""

    OK = "ok"
    """It ran to its end."""
    ERROR = "error"
    """It ended with an exception or an exit code other than 0."""
    TIMEOUT = "timeout"
    """It ran longer than `wall_seconds`."""
    CPU_LIMIT = "cpu_limit"
    """All its processes together used more than `cpu_seconds`."""
    OUT_OF_MEMORY = "out_of_memory"
    """All its processes together used more than `memory_bytes`, or the kernel ended one for it."""
    OUTPUT_FLOOD = "output_flood"
    """It wrote more than `flood_bytes`."""
    TOO_MANY_FILES = "too_many_files"
    """It made more than `files` files."""
    DIED = "died"
    """The Python interpreter ended or was killed during the call."""
    REFUSED = "refused"
    """The code was not run: it is too long, or not text that a program can be."""
    SANDBOX_LOST = "sandbox_lost"
    """The sandbox itself ended during the call; the next call gets a new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """What code in a sandbox may use. Times hold for one call, the rest for all of the sandbox's processes together.

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
            value = getattr(self, field.name)
            kinds = (int, float) if field.type == "float" else (int,)
            if isinstance(value, bool) or not isinstance(value, kinds) or not value > 0:
                what = "a positive number" if field.type == "float" else "a positive whole number"
                raise ValueError(f"{field.name} must be {what}, got {value!r}")
        if self.code_bytes > 128_000:
            raise ValueError(
                f"code_bytes={self.code_bytes!r} is more than Linux lets one argument have: at most 128000"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    r"""One call in a sandbox.

    Attributes:
        outcome: How it ended.
        exit_code: Exit code; negative for the number of a signal; None if it did not exit.
        stdout: Standard output; invalid UTF-8 is shown as `\xNN`.
        stderr: Standard error, likewise.
        dropped_bytes: Bytes of both streams that were not kept.
        note: For the one who wrote the code: which limit was met, whether state was lost. Empty if all is well.
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

    def to_text(self, max_chars: int | None = None) -> str:
        """The call as a tool result: output, error output, exit code, note.

        Args:
            max_chars: Characters of each stream; None for all that was kept.
        """

        def shown(text: str) -> str:
            return text.rstrip("\n") if max_chars is None else shorten(text.rstrip("\n"), max_chars)

        parts = [shown(self.stdout)] if self.stdout.strip("\n") else []
        if self.stderr.strip("\n"):
            parts.append(f"[stderr]\n{shown(self.stderr)}" if parts or not self.is_error else shown(self.stderr))
        if self.outcome is Outcome.ERROR and self.exit_code != 0 and not (self.exit_code == 1 and parts):
            parts.append(f"[exit code {self.exit_code}]")
        if self.note:
            parts.append(f"[{self.note}]")
        return "\n".join(parts) or ("(no output)" if not self.is_error else f"[{self.outcome.value}]")
