"""Environments, evaluation and training for Strands agents with exact token trajectories."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

try:
    import strands_sglang.compat  # noqa: F401 - upstream's package has none
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


def __getattr__(name: str) -> Any:
    # The SDK alone takes 0.4 s to import, and a command's help needs nothing of it.
    if name != "core" and name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    core = import_module(f"{__name__}.core")
    return core if name == "core" else getattr(core, name)
