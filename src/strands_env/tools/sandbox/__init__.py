"""Sandboxes for code of unknown origin: on this machine with bubblewrap. See `docs/sandbox.md`."""

from __future__ import annotations

from .judgment import Verdict, judge
from .local import DEFAULT_MAX_SANDBOXES, CodeSandbox, Sandbox, SandboxSlots
from .values import ExecutionResult, Isolation, Outcome, SandboxError, SandboxLimits, SandboxUnavailableError

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
