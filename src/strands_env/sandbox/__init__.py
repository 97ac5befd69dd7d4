"""Sandboxes for code of unknown origin: on this machine with bubblewrap. See `docs/sandbox.md`."""

from __future__ import annotations

from .bubblewrap.sandbox import DEFAULT_MAX_SANDBOXES, CodeSandbox, Sandbox, SandboxSlots
from .contract import ExecutionResult, Isolation, Outcome, SandboxError, SandboxLimits, SandboxUnavailableError
from .judging import Verdict, judge

__all__ = [
    "DEFAULT_MAX_SANDBOXES",
    "CodeSandbox",
    "ExecutionResult",
    "Isolation",
    "Outcome",
    "Sandbox",
    "SandboxError",
    "SandboxLimits",
    "SandboxSlots",
    "SandboxUnavailableError",
    "Verdict",
    "judge",
]
