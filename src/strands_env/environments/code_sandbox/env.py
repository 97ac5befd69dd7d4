"""Upstream's path for `CodeSandboxEnv`."""

from . import CodeMode, CodeSandboxEnv

__all__ = ["CodeMode", "CodeSandboxEnv"]
