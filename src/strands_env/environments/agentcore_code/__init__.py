"""Python and shell code in a hosted sandbox of AWS."""

from __future__ import annotations

from .env import AgentCoreCodeEnv

__all__ = ["AgentCoreCodeEnv"]
