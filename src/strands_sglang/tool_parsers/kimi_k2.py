"""Upstream's module of this name."""

from .sections import KimiK2ToolParser

__all__ = ["KimiK2ToolParser"]
