"""The outcome of a task: its rewards, or why there are none.

TaskFailedError           the task could not be run; nothing was measured
└── NotMeasuredError      it was run, and its verifier gave no reward
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


class TaskFailedError(RuntimeError):
    """The task could not be run: it cannot be read, or its container failed."""


class NotMeasuredError(TaskFailedError):
    """The task was run, and its verifier gave no reward: it says nothing about the agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReward:
    """The verifier's rewards, by name; all are finite."""

    rewards: Mapping[str, float]

    def value(self, name: str | None = None) -> float:
        """The reward to train on: `name`, else `reward`, else the only one.

        Raises:
            NotMeasuredError: There is no such reward, or several and none of that name.
        """
        if name is not None:
            if name not in self.rewards:
                raise NotMeasuredError(f"the verifier gave the rewards {sorted(self.rewards)}, and none named {name!r}")
            return self.rewards[name]
        if "reward" in self.rewards:
            return self.rewards["reward"]
        if len(self.rewards) == 1:
            return next(iter(self.rewards.values()))
        raise NotMeasuredError(
            f"the verifier gave the rewards {sorted(self.rewards)} and none named 'reward': name one as reward_key"
        )
