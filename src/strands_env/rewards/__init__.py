"""Reward functions: mathematics, matching, format and tool use, judges, single turns, and weighted sums of all."""

from __future__ import annotations

from .behaviour import FormatReward, ToolUseReward
from .llm_judge_reward import CorrectnessJudgeReward, LLMJudgeReward
from .matching import ExactMatchReward, RegexMatchReward
from .math_reward import MathRewardFunction, close_math_workers
from .turns import AgentTurn, Aggregate, Placement, TurnReward, token_rewards, turns_of
from .weighted import AbstainPolicy, WeightedReward

__all__ = [
    "AbstainPolicy",
    "AgentTurn",
    "Aggregate",
    "CorrectnessJudgeReward",
    "ExactMatchReward",
    "FormatReward",
    "LLMJudgeReward",
    "MathRewardFunction",
    "Placement",
    "RegexMatchReward",
    "ToolUseReward",
    "TurnReward",
    "WeightedReward",
    "close_math_workers",
    "token_rewards",
    "turns_of",
]
