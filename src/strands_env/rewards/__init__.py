"""Reward functions: mathematics, matching, format and tool use, judges, evaluators, turns, sums; and their proof."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

# The module of each name.
_HOMES = {
    "ChoiceReward": ".choice_reward",
    **dict.fromkeys(("actions_from_cases", "from_evaluator"), ".evaluators"),
    **dict.fromkeys(("CorrectnessJudgeReward", "LLMJudgeReward"), ".llm_judge_reward"),
    **dict.fromkeys(("ExactMatchReward", "FormatReward", "NumberReward", "RegexMatchReward"), ".matching"),
    **dict.fromkeys(("MathRewardFunction", "close_math_workers"), ".math_reward"),
    **dict.fromkeys(("RewardExamples", "RewardProof", "TaskProof", "TaskVerdict", "prove_reward"), ".proof"),
    **dict.fromkeys(
        ("AgentTurn", "Aggregate", "Placement", "ToolUseReward", "TurnReward", "token_rewards", "turns_of"), ".turns"
    ),
    **dict.fromkeys(("AbstainPolicy", "WeightedReward"), ".weighted"),
}


def __getattr__(name: str) -> Any:
    # The process that verifies mathematics imports a module of this package and nothing beside it.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(_HOMES[name], __name__), name)
    return value
