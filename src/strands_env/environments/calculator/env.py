"""Upstream's path for `CalculatorEnv`."""

from . import CalculatorEnv

__all__ = ["CalculatorEnv"]
