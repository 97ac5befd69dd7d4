"""Core of the environment layer: types, `Environment`, and factories of models."""

from __future__ import annotations

from .environment import Environment
from .models import ModelFactory
from .types import (
    Action,
    EpisodeTimeoutError,
    ErrorRecord,
    FunctionReward,
    Metrics,
    Observation,
    Phase,
    RewardCallable,
    RewardFunction,
    RewardResult,
    SpanReward,
    StepResult,
    TaskContext,
    TerminationReason,
    TokenObservation,
    ToolMetrics,
    Trajectory,
    WeightVersionSpan,
)

__all__ = [
    "Action",
    "Environment",
    "EpisodeTimeoutError",
    "ErrorRecord",
    "FunctionReward",
    "Metrics",
    "ModelFactory",
    "Observation",
    "Phase",
    "RewardCallable",
    "RewardFunction",
    "RewardResult",
    "SpanReward",
    "StepResult",
    "TaskContext",
    "TerminationReason",
    "TokenObservation",
    "ToolMetrics",
    "Trajectory",
    "WeightVersionSpan",
]
