"""Tools that run code in a sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from strands import tool

from strands_env.core.episode import fail_step
from strands_env.sandbox import ExecResult, Outcome, PythonSandbox, Sandbox, SandboxError, SandboxUnavailableError
from strands_sglang.exceptions import check_positive

from .results import error_result, text_result

DEFAULT_MAX_OUTPUT_CHARS = 10_000
"""Characters of each output stream a tool result keeps."""


class SandboxTools:
    """Base of tools over one sandbox: results, and failures of the sandbox itself.

    Any outcome of code is a tool result. When the sandbox itself fails, the result says so, and the step ends with the
    error, which `failure` keeps.

    Args:
        max_output_chars: Characters of each output stream in a result; a longer one keeps its beginning and end.

    Attributes:
        lost: Calls during which the sandbox ended.
    """

    def __init__(self, sandbox: Sandbox, *, max_output_chars: int | None = DEFAULT_MAX_OUTPUT_CHARS) -> None:
        check_positive("characters", optional=True, max_output_chars=max_output_chars)
        self.sandbox = sandbox
        self.max_output_chars = max_output_chars
        self.forget()

    def forget(self) -> None:
        """Begin another episode."""
        self.failure: SandboxError | None = None
        self.lost = 0

    async def _run(self, call: Awaitable[ExecResult]) -> dict[str, Any]:
        try:
            result = await call
        except SandboxError as error:
            self._fail(error)
            return error_result("the sandbox is not available.")
        except asyncio.CancelledError:
            # The deadline of the tool passed before its code began.
            if getattr(self.sandbox, "is_waiting", False):
                why = "no sandbox became free in the time of the tool call: allow more of them at the same time "
                self._fail(SandboxUnavailableError(f"{why}(SandboxSlots), or fewer episodes"))
            raise
        self.lost += result.outcome is Outcome.SANDBOX_LOST
        text = result.to_text(self.max_output_chars)
        return {**text_result(text), "status": "error" if result.is_error else "success"}

    def _fail(self, error: SandboxError) -> None:
        self.failure = error
        fail_step(error)


class CodeTools(SandboxTools):
    """`execute_code` and `execute_command` over one sandbox; for `execute_code` its Python interpreter must last."""

    @property
    def has_python(self) -> bool:
        """`execute_code` can be used."""
        return isinstance(self.sandbox, PythonSandbox)

    @tool
    async def execute_code(self, code: str) -> dict[str, Any]:
        """Run Python code and get its output and the value of its last expression.

        Variables, imports and files stay for later calls. The network is unavailable.

        Args:
            code: The Python code to run.
        """
        if not isinstance(self.sandbox, PythonSandbox):
            raise TypeError(
                f"execute_code needs a sandbox whose Python interpreter lasts, got {type(self.sandbox).__name__}"
            )
        return await self._run(self.sandbox.run_python(code))

    @tool
    async def execute_command(self, command: str) -> dict[str, Any]:
        """Run a shell command in the work directory and get its output and exit code.

        Files stay for later calls; each call gets a fresh shell. The network is unavailable.

        Args:
            command: The shell command to run.
        """
        return await self._run(self.sandbox.exec(command))


# ---- in a container --------------------------------------------------------------------------------------------------


MAX_COMMAND_SECONDS = 24 * 3600.0
_MAX_VIEW_LINES = 400  # the rest costs context, and the model can ask for it


class ContainerTools(SandboxTools):
    """`execute_command` and `edit_file` in a container, where background processes live on.

    Args:
        sandbox: The container.
        max_output_chars: Characters of each output stream in a result; a longer one keeps its beginning and end.
        command_seconds: Seconds of a command, where the call names none.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        max_output_chars: int | None = DEFAULT_MAX_OUTPUT_CHARS,
        command_seconds: float = 180.0,
    ) -> None:
        super().__init__(sandbox, max_output_chars=max_output_chars)
        self.command_seconds = command_seconds

    @tool
    async def execute_command(self, command: str, timeout_seconds: float | None = None) -> dict[str, Any]:
        """Run a shell command in the container and get its output and exit code.

        Files and background processes stay for later calls; each call gets a fresh shell in the work directory.

        Args:
            command: The shell command to run.
            timeout_seconds: Seconds after which the command is stopped.
        """
        seconds = self.command_seconds if timeout_seconds is None else timeout_seconds
        if not 0 < seconds <= MAX_COMMAND_SECONDS:
            return error_result(
                f"timeout_seconds must be between 0 and {MAX_COMMAND_SECONDS:g}, got {timeout_seconds!r}"
            )
        return await self._run(self.sandbox.exec(command, timeout=seconds))

    @tool
    async def edit_file(
        self,
        command: str,
        path: str,
        text: str | None = None,
        old_text: str | None = None,
        first_line: int | None = None,
        last_line: int | None = None,
    ) -> dict[str, Any]:
        """View, create or change a text file in the container.

        Args:
            command: "view" shows lines with their numbers; "create" writes `text` as the whole file; "replace" puts
                `text` in place of `old_text`, which must occur exactly once; "insert" puts `text` after `first_line`
                (0: at the beginning).
            path: Absolute path of the file.
            text: New text.
            old_text: Text to replace, exactly as in the file.
            first_line: First line to view, or the line to insert after.
            last_line: Last line to view.
        """
        if not path.startswith("/"):
            return error_result(f"path must be absolute, got {path!r}")
        try:
            if command == "create":
                await self.sandbox.write_file(path, text or "")
                return text_result(f"{path}: written.")
            # Bytes that are not UTF-8 survive a change elsewhere in the file.
            content = (await self.sandbox.read_file(path)).decode("utf-8", "surrogateescape")
            if command == "view":
                return text_result(_number_lines(content, first_line, last_line))
            changed = _change(command, content, text or "", old_text, first_line)
            await self.sandbox.write_file(path, changed.encode("utf-8", "surrogateescape"))
        except (OSError, ValueError) as error:
            return error_result(f"{path}: {getattr(error, 'strerror', None) or error}")
        return text_result(f"{path}: changed.")


def _number_lines(content: str, first: int | None, last: int | None) -> str:
    lines = content.splitlines()
    begin = max(1, first or 1)
    end = min(len(lines), last or begin + _MAX_VIEW_LINES - 1, begin + _MAX_VIEW_LINES - 1)
    numbered = [f"{number:6}\t{lines[number - 1]}" for number in range(begin, end + 1)]
    rest = [f"... {len(lines) - end} more lines"] if end < len(lines) else []
    return "\n".join([*numbered, *rest]).encode("utf-8", "replace").decode() or "(empty)"


def _change(command: str, content: str, text: str, old: str | None, line: int | None) -> str:
    if command == "replace":
        if not old:
            raise ValueError("replace needs old_text")
        if (count := content.count(old)) != 1:
            raise ValueError(f"old_text occurs {count} times, and must occur exactly once: give more of its lines")
        return content.replace(old, text)
    if command == "insert":
        lines = content.splitlines(keepends=True)
        if line is None or not 0 <= line <= len(lines):
            raise ValueError(f"insert needs first_line between 0 and {len(lines)}, got {line!r}")
        if line and not lines[line - 1].endswith("\n"):
            lines[line - 1] += "\n"
        return "".join([*lines[:line], text if text.endswith("\n") else f"{text}\n", *lines[line:]])
    raise ValueError(f'command must be "view", "create", "replace" or "insert", got {command!r}')
