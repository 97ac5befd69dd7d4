"""Conversations of several turns with a simulated user."""

from __future__ import annotations

from .env import ChatEnv
from .user import ModelUser, ScriptedUser, SimulatedUser

__all__ = ["ChatEnv", "ModelUser", "ScriptedUser", "SimulatedUser"]
