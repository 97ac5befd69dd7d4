"""Environments, evaluation and training for Strands agents with exact token trajectories."""

from __future__ import annotations

from .core import (
    Action,
    Environment,
    ErrorRecord,
    ModelFactory,
    Observation,
    RewardFunction,
    RewardResult,
    StepResult,
    TaskContext,
    TerminationReason,
    TokenObservation,
)

__all__ = [
    "Action",
    "Environment",
    "ErrorRecord",
    "ModelFactory",
    "Observation",
    "RewardFunction",
    "RewardResult",
    "StepResult",
    "TaskContext",
    "TerminationReason",
    "TokenObservation",
]
