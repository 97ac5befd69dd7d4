"""Rollouts as training data: the neutral sample, and one small module for each trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strands_sglang.compat import names_on_use

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

# What looks at the log of a training needs neither numpy nor the SDK.
__getattr__, __dir__ = names_on_use(
    __name__,
    {
        "strands_sglang.trajectory": ("SamplingMask",),
        ".advantages": ("group_advantages", "turn_advantages", "weigh_rollouts"),
        ".build": ("samples_from_model", "samples_from_step"),
        ".driver": ("collect_rollouts",),
        ".export": ("image_inputs",),
        ".log": ("TrainingLogError", "read_training"),
        ".sample": ("InvalidSampleError", "TrainingSample", "load_samples", "save_samples"),
        ".teacher": ("score_with_teacher",),
        ".tree": ("RolloutTree", "TreeNode"),
    },
)
