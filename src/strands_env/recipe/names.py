"""Names that a command line offers, as plain values: nothing is imported to list them."""

from __future__ import annotations

EXECUTORS = ("inline", "processes", "ray")
GROUP_POLICIES = ("keep", "drop", "stop")
TRACKERS = ("wandb", "mlflow", "tensorboard", "trackio")
REWARDS = {
    "exact": "strands_env.rewards:ExactMatchReward",
    "math": "strands_env.rewards:MathRewardFunction",
    "number": "strands_env.eval.benchmarks.arithmetic:NumberReward",
}
"""Reward functions that have a name, and where they are."""
DATA = "data"
"""Name of the benchmark whose tasks are the rows of a file."""
