"""Errors of sandboxes.

SandboxError
└── SandboxUnavailableError   isolation is unavailable here, or a sandbox did not start
"""

from __future__ import annotations

from strands.types.exceptions import ToolProviderException


class SandboxError(ToolProviderException):
    """A failure of the sandbox itself, never of the code in it. Ends an episode as `TOOL_ERROR`."""


class SandboxUnavailableError(SandboxError):
    """Isolation is unavailable on this machine, or a sandbox could not be started; the message says what to do."""
