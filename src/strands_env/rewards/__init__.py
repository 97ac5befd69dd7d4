"""Reward functions: mathematics, matching, format and tool use, judges, evaluators, turns, sums; and their proof."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strands_sglang.compat import names_on_use

if TYPE_CHECKING:
    from .choice_reward import ChoiceReward
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
    "ChoiceReward",
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

# The process that verifies mathematics imports a module of this package and nothing beside it.
__getattr__, __dir__ = names_on_use(
    __name__,
    {
        ".choice_reward": ("ChoiceReward",),
        ".evaluators": ("actions_from_cases", "from_evaluator"),
        ".llm_judge_reward": ("CorrectnessJudgeReward", "LLMJudgeReward"),
        ".matching": ("ExactMatchReward", "FormatReward", "NumberReward", "RegexMatchReward"),
        ".math_reward": ("MathRewardFunction", "close_math_workers"),
        ".proof": ("RewardExamples", "RewardProof", "TaskProof", "TaskVerdict", "prove_reward"),
        ".turns": ("AgentTurn", "Aggregate", "Placement", "ToolUseReward", "TurnReward", "token_rewards", "turns_of"),
        ".weighted": ("AbstainPolicy", "WeightedReward"),
    },
)
