"""Mathematical problems with a verified answer."""

from __future__ import annotations

from .env import MathEnv

__all__ = ["MathEnv"]
