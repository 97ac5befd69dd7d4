"""Another name of `MathRewardFunction`, for existing imports."""

from __future__ import annotations

from .math_reward import MathRewardFunction as MathVerifyReward

__all__ = ["MathVerifyReward"]
