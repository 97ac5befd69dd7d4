"""Tools that run code in a sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from strands import tool

from strands_env.sandbox import ExecResult, Sandbox, SandboxError, SandboxUnavailableError

DEFAULT_MAX_OUTPUT_CHARS = 10_000
"""Characters of each output stream a tool result keeps."""


class CodeTools:
    """`execute_code` and `execute_command` over one sandbox.

    Whatever code does is a tool result. When the sandbox itself fails, the result says so, and
    `failure` keeps the error for the environment.

    Args:
        sandbox: Where code runs.
        max_output_chars: Characters of each output stream in a result; a longer one keeps its beginning and end.

    Attributes:
        failure: The last error of the sandbox itself, or None.
    """

    def __init__(self, sandbox: Sandbox, *, max_output_chars: int | None = DEFAULT_MAX_OUTPUT_CHARS) -> None:
        if max_output_chars is not None and not max_output_chars > 0:
            raise ValueError(f"max_output_chars must be a positive number or None, got {max_output_chars!r}")
        self.sandbox = sandbox
        self.max_output_chars = max_output_chars
        self.failure: SandboxError | None = None

    @tool
    async def execute_code(self, code: str) -> dict[str, Any]:
        """Run Python code and get what it prints and the value of its last expression.

        Variables, imports and files stay for later calls. The network is unavailable.

        Args:
            code: The Python code to run.
        """
        return await self._run(self.sandbox.run_python, code)

    @tool
    async def execute_command(self, command: str) -> dict[str, Any]:
        """Run a shell command in the work directory and get its output and exit code.

        Files stay for later calls; each call gets a fresh shell. The network is unavailable.

        Args:
            command: The shell command to run.
        """
        return await self._run(self.sandbox.exec, command)

    async def _run(self, run: Callable[[str], Awaitable[ExecResult]], code: str) -> dict[str, Any]:
        try:
            return self._tool_result(await run(code))
        except SandboxError as error:
            self.failure = error
            return {"status": "error", "content": [{"text": "Error: the sandbox is not available."}]}
        except asyncio.CancelledError:
            if getattr(self.sandbox, "is_waiting", False):
                self.failure = SandboxUnavailableError(
                    "no sandbox became free in the time of the tool call: allow more of them at the same time "
                    "(SandboxSlots), or fewer episodes"
                )
            raise

    def _tool_result(self, result: ExecResult) -> dict[str, Any]:
        text = result.to_text(self.max_output_chars)
        return {"status": "error" if result.is_error else "success", "content": [{"text": text}]}
