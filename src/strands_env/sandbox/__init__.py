"""Sandboxes for code of unknown origin: the contract, and its implementations. See `docs/sandbox.md`."""

from __future__ import annotations

from .bubblewrap.bubblewrap_sandbox import BubblewrapSandbox
from .bubblewrap.command import Isolation
from .bubblewrap.supervised import SandboxSlots
from .contract import (
    ExecLimits,
    ExecOptions,
    ExecResult,
    Network,
    Outcome,
    PythonSandbox,
    Sandbox,
    SandboxCapabilities,
    SandboxError,
    SandboxLimits,
    SandboxLostError,
    SandboxUnavailableError,
    SandboxUnsupportedError,
)
from .judging import Verdict, judge

__all__ = [
    "BubblewrapSandbox",
    "ExecLimits",
    "ExecOptions",
    "ExecResult",
    "Isolation",
    "Network",
    "Outcome",
    "PythonSandbox",
    "Sandbox",
    "SandboxCapabilities",
    "SandboxError",
    "SandboxLimits",
    "SandboxLostError",
    "SandboxSlots",
    "SandboxUnavailableError",
    "SandboxUnsupportedError",
    "Verdict",
    "judge",
]
