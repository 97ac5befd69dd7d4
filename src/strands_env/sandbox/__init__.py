"""Sandboxes for code of unknown origin: on this machine with bubblewrap. See `docs/sandbox.md`."""

from __future__ import annotations

from .bubblewrap.sandbox import DEFAULT_MAX_SANDBOXES, BubblewrapSandbox, Sandbox, SandboxSlots
from .contract import ExecResult, Isolation, Outcome, SandboxError, SandboxLimits, SandboxUnavailableError
from .judging import Verdict, judge

__all__ = [
    "DEFAULT_MAX_SANDBOXES",
    "BubblewrapSandbox",
    "ExecResult",
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
