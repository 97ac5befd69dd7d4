"""Sandboxes on this machine, by bubblewrap."""

from __future__ import annotations

from .command import Isolation
from .sandbox import BubblewrapSandbox
from .supervised import DEFAULT_MAX_SANDBOXES, SandboxSlots

__all__ = ["DEFAULT_MAX_SANDBOXES", "BubblewrapSandbox", "Isolation", "SandboxSlots"]
