"""The evaluator: it runs the calls again, in a new till."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from tau2.data_model.simulation import RewardInfo, SimulationRun
from tau2.registry import registry


class EvaluationType(StrEnum):
    ALL = "all"


def evaluate_simulation(
    *, simulation: SimulationRun, task: Any, evaluation_type: EvaluationType, solo_mode: bool, domain: str
) -> RewardInfo:
    if simulation.termination_reason != "user_stop":
        return RewardInfo(reward=0.0, note=simulation.termination_reason)
    till = registry.get_env_constructor(domain)()
    answers = [message for message in simulation.messages if message.role == "tool"]
    calls = [call for message in simulation.messages for call in getattr(message, "tool_calls", None) or ()]
    for call, answer in zip(calls, answers, strict=True):
        if till.get_response(call) != answer.model_copy(update={"turn_idx": None}):
            raise ValueError("the replay differs")
    return RewardInfo(reward=float(till.amount == task.expected))
