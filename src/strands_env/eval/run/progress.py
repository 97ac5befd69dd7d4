"""The progress of a run, for displays."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, Protocol

from strands_env.core import Outcome
from strands_env.eval.sample import EvalSample

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class ProgressState:
    """The counters of a run, for displays, commands and the run itself.

    Attributes:
        total: Samples of the whole run, None while only the data set knows.
        resumed: Samples found in the results file.
        done: Samples finished in this run and in the file.
        failures: Unscored samples of this run by termination reason.
        retries: Rollouts that were run again in this run.
        finished, busy_s: Samples that ran to their end in this run, and the seconds that they took together.
        stopping: The run takes no new samples.
        lost: Samples lost for good in this run; `last_loss` is the reason the last of them was, in words.
    """

    name: str = ""
    total: int | None = None
    resumed: int = 0
    done: int = 0
    running: int = 0
    scored: int = 0
    reward_sum: float = 0.0
    retries: int = 0
    finished: int = 0
    busy_s: float = 0.0
    stopping: bool = False
    lost: int = 0
    last_loss: str | None = None
    failures: Counter[str] = field(default_factory=Counter)
    started: float = field(default_factory=time.monotonic)

    @property
    def mean_reward(self) -> float:
        """Mean reward of all scored samples so far; NaN before the first."""
        return self.reward_sum / self.scored if self.scored else math.nan

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    @property
    def rate(self) -> float:
        """Samples a second, by which `eta` is told: of those that run now, else of this run so far."""
        if self.running and self.finished and self.busy_s:
            # By the time of a sample, for the first ones to finish say little of how many run side by side.
            running = self.running if self.total is None else min(self.running, self._left)
            return max(running, 1) * self.finished / self.busy_s
        return self.done / self.elapsed if self.done and self.elapsed > 0 else 0.0

    @property
    def eta(self) -> float | None:
        """Seconds to go; None while unknown."""
        return None if self.total is None or not self.rate else self._left / self.rate

    @property
    def _left(self) -> int:
        return max(0, (self.total or 0) - self.resumed - self.done)

    def count(self, sample: EvalSample) -> None:
        """Take a sample's reward, or its failure, into account."""
        reward = sample.reward
        if reward is None:
            end = sample.step_result.end
            is_policys = end.reason.outcome(end.error) is Outcome.POLICY
            self.failures["no_reward" if is_policys else end.reason.value] += 1
        else:
            self.scored += 1
            self.reward_sum += reward


class Progress(Protocol):
    """A display. Called on the event loop; must not block."""

    def start(self, state: ProgressState) -> None:
        """The run begins; the state changes while it goes on."""

    def update(self, state: ProgressState) -> None:
        """Something changed."""

    def finish(self, state: ProgressState) -> None:
        """The run ended, however it did."""


class GuardedProgress:
    """Displays that cannot end a run: what one raises is logged once, and it is not drawn again."""

    def __init__(self, *displays: Progress | None) -> None:
        self._displays = [display for display in displays if display is not None]
        self._broken: set[int] = set()

    def __call__(self, name: Literal["start", "update", "finish"], state: ProgressState) -> None:
        """Call this method of each; a broken one still gets `finish`, so that it can restore the terminal."""
        for place, display in enumerate(self._displays):
            if place in self._broken and name != "finish":
                continue
            try:
                getattr(display, name)(state)
            except Exception:
                if place not in self._broken:
                    logger.exception("call=<%s> | a display of the progress raised and is left out", name)
                self._broken.add(place)
