"""Environments, evaluation and training for Strands agents with exact token trajectories."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    from strands_sglang.compat import names_on_use  # upstream's package has no such module
except ImportError as error:
    raise ImportError(
        "the installed strands_sglang does not belong to strands-rollout: pip uninstall strands-sglang strands-env, "
        "then install strands-rollout again, from where it came, with pip's options --force-reinstall --no-deps"
    ) from error

if TYPE_CHECKING:
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

# The SDK alone takes 0.4 s to import, and a command's help needs nothing of it.
__getattr__, __dir__ = names_on_use(__name__, {".core": __all__})
