"""Reward functions: mathematics, matching, format and tool use, judges, evaluators, turns, sums; and their proof."""

from __future__ import annotations

from .evaluators import actions_from_cases, from_evaluator
from .llm_judge_reward import CorrectnessJudgeReward, LLMJudgeReward
from .matching import ExactMatchReward, FormatReward, NumberReward, RegexMatchReward
from .math_reward import MathRewardFunction, close_math_workers
from .proof import RewardExamples, RewardProof, TaskProof, TaskVerdict, prove_reward
from .turns import AgentTurn, Aggregate, Placement, ToolUseReward, TurnReward, token_rewards, turns_of
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
    "NumberReward",
    "Placement",
    "RegexMatchReward",
    "RewardExamples",
    "RewardProof",
    "TaskProof",
    "TaskVerdict",
    "ToolUseReward",
    "TurnReward",
    "WeightedReward",
    "actions_from_cases",
    "close_math_workers",
    "from_evaluator",
    "prove_reward",
    "token_rewards",
    "turns_of",
]
