"""Rollouts as training data: the neutral sample, and one small module for each trainer."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strands_sglang.trajectory import SamplingMask

    from .advantages import group_advantages, turn_advantages, weigh_rollouts
    from .build import samples_from_model, samples_from_step
    from .driver import collect_rollouts
    from .export import image_inputs
    from .log import TrainingLogError, read_training
    from .sample import InvalidSampleError, TrainingSample, load_samples, save_samples
    from .teacher import score_with_teacher
    from .tree import RolloutTree, TreeNode

__all__ = [
    "InvalidSampleError",
    "RolloutTree",
    "SamplingMask",
    "TrainingLogError",
    "TrainingSample",
    "TreeNode",
    "collect_rollouts",
    "group_advantages",
    "image_inputs",
    "load_samples",
    "read_training",
    "samples_from_model",
    "samples_from_step",
    "save_samples",
    "score_with_teacher",
    "turn_advantages",
    "weigh_rollouts",
]

# The module of a name.
_HOMES = {
    "SamplingMask": "strands_sglang.trajectory",
    **dict.fromkeys(("group_advantages", "turn_advantages", "weigh_rollouts"), ".advantages"),
    **dict.fromkeys(("samples_from_model", "samples_from_step"), ".build"),
    "collect_rollouts": ".driver",
    "image_inputs": ".export",
    **dict.fromkeys(("TrainingLogError", "read_training"), ".log"),
    **dict.fromkeys(("InvalidSampleError", "TrainingSample", "load_samples", "save_samples"), ".sample"),
    "score_with_teacher": ".teacher",
    **dict.fromkeys(("RolloutTree", "TreeNode"), ".tree"),
}


def __getattr__(name: str) -> Any:
    # What looks at the log of a training needs neither numpy nor the SDK.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(_HOMES[name], __name__), name)
    return value
