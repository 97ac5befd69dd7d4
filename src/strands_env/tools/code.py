"""Tools that run code in a sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from strands import tool

from strands_env.core.scope import fail_step
from strands_env.sandbox import ExecResult, Outcome, PythonSandbox, Sandbox, SandboxError, SandboxUnavailableError
from strands_sglang.exceptions import check_positive

from .results import error_result, text_result

DEFAULT_MAX_OUTPUT_CHARS = 10_000
"""Characters of each output stream a tool result keeps."""


class SandboxTools:
    """Base of tools over one sandbox: results, and failures of the sandbox itself.

    Whatever code does is a tool result. When the sandbox itself fails, the result says so, and the step ends with the
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
        """Run Python code and get what it prints and the value of its last expression.

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
