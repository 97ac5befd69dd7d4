"""Python and shell code in a sandbox."""

from __future__ import annotations

from .env import CodeMode, CodeSandboxEnv

__all__ = ["CodeMode", "CodeSandboxEnv"]
