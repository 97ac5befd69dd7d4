"""Upstream's module of this name since 0.4; the view is `strands_sglang.trajectory.TokenManager`."""

from .trajectory import TokenManager

Rollout = TokenManager

__all__ = ["Rollout"]
