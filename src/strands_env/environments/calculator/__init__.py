"""An agent with a calculator."""

from __future__ import annotations

from .env import CalculatorEnv

__all__ = ["CalculatorEnv"]
