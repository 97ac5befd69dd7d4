"""The agent's part in a task, and the outcome: its rewards, or why there are none.

TaskFailedError           the task could not be run; nothing was measured
└── NotMeasuredError      it was run, and its verifier gave no reward
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

REPORT = "report.json"
"""File in the folder that `strands-env check -o` writes."""

if TYPE_CHECKING:
    from harbor.environments.base import BaseEnvironment
    from harbor.models.agent.context import AgentContext


class TaskFailedError(RuntimeError):
    """The task could not be run: it cannot be read, or its container failed."""


class NotMeasuredError(TaskFailedError):
    """The task was run, and its verifier gave no reward: it says nothing about the agent."""


def choose_reward(rewards: Mapping[str, float], name: str | None = None) -> float:
    """The reward to train on, of those that a verifier gave: `name`, otherwise `reward` or the only one.

    Raises:
        NotMeasuredError: There is no such reward, or several and none of that name.
    """
    key = name or (next(iter(rewards)) if len(rewards) == 1 else "reward")
    if key not in rewards:
        way = "" if name else ": name one as reward_key"
        raise NotMeasuredError(f"the verifier gave the rewards {sorted(rewards)}, and none named {key!r}{way}")
    return rewards[key]


def read_work(report: str | Path) -> dict[str, list[str] | None]:
    """Files that each task's solution changed, by the task's name, from the report of `strands-env check`.

    Raises:
        ValueError: There is no such report.
    """
    place = Path(report)
    try:
        document = json.loads((place / REPORT if place.is_dir() else place).read_text(encoding="utf-8"))
        return {task["task"]: task["work"] for task in document["tasks"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"work must be a list of paths or the folder that 'strands-env check -o' wrote, got {str(report)!r}: "
            f"{type(error).__name__}: {error}"
        ) from error


class Part(NamedTuple):
    """The agent's part in one step of a task: an instruction, and the container to work in."""

    instruction: str
    environment: BaseEnvironment
    context: AgentContext
