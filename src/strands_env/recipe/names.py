"""Names that a command line offers, as plain values: nothing is imported to list them."""

from __future__ import annotations

from pathlib import Path

EXECUTORS = ("inline", "processes", "ray")
GROUP_POLICIES = ("keep", "drop", "stop")
TRACKERS = ("wandb", "trackio", "tensorboard")
REWARDS = {
    "exact": "strands_env.rewards:ExactMatchReward",
    "math": "strands_env.rewards:MathRewardFunction",
    "number": "strands_env.rewards:NumberReward",
}
"""Reward functions that have a name, and where they are."""
DATA = "data"
"""Name of the benchmark whose tasks are the rows of a file."""
ENVIRONMENTS = {"harbor": "strands_env.environments.harbor"}
"""Environment hooks that have a name, and where they are."""


def benchmark_of_data(path: str) -> str:
    """The benchmark that reads these data where none is named: a folder of container tasks, or the rows of a file."""
    folder = Path(path)
    is_tasks = folder.is_dir() and any(any(folder.glob(f"{depth}task.toml")) for depth in ("", "*/", "tasks/*/"))
    return "harbor" if is_tasks else DATA
