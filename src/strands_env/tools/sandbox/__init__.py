"""Sandboxes for code of unknown origin: on this machine with bubblewrap. See `docs/sandbox.md`."""

from __future__ import annotations

from ._local import DEFAULT_MAX_SANDBOXES, CodeSandbox, Sandbox, SandboxSlots
from ._types import ExecutionResult, Isolation, Outcome, SandboxLimits
from .exceptions import SandboxError, SandboxUnavailableError

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
]
