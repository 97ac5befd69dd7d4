"""Upstream's module of this name up to 0.3; the view is in `strands_sglang.trajectory`."""

from .trajectory import Token, TokenManager

__all__ = ["Token", "TokenManager"]
