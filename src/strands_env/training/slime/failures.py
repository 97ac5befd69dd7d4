"""Ends a run in which every rollout fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from strands_env.core.termination import ErrorRecord, TerminationReason


class FailureStreakError(RuntimeError):
    """Too many rollouts in a row failed; the run ends instead of sampling forever.

    Attributes:
        count: How many.
        error: The last error.
    """

    def __init__(self, count: int, error: ErrorRecord) -> None:
        super().__init__(count, error)
        self.count = count
        self.error = error

    def __str__(self) -> str:
        return (
            f"{self.count} rollouts in a row failed, the last with {self.error.type} in {self.error.where.value}: "
            f"{self.error.message!r}; fix the cause, or raise strands_env_max_failures (0 for no limit)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A rollout that cannot be trained.

    Attributes:
        error: What went wrong.
        reason: How the rollout ended.
        successes: Training rollouts that had succeeded when it began; None for the number when slime called.
        has_waited: It was suspended meanwhile.
    """

    error: ErrorRecord
    reason: TerminationReason
    successes: int | None = None
    has_waited: bool = False

    @property
    def is_worth_another_attempt(self) -> bool:
        """Whether another attempt may succeed: not after a limit or a time-out."""
        return not self.reason.is_limit and self.reason is not TerminationReason.TIMEOUT


class FailureStreak:
    """Counts failures of rollouts that began after the last good one.

    Rollouts run concurrently and failures come fast. So a failure does not count if another rollout has succeeded
    since it began, and the run does not end before all rollouts that ran beside the first failure have ended.

    Attributes:
        successes: Rollouts that succeeded so far. A rollout keeps the number at its start.
    """

    def __init__(self) -> None:
        self.successes = 0
        self._count = 0
        self._running: set[object] = set()
        self._beside_first: set[object] = set()

    @contextmanager
    def running(self, rollout: object) -> Iterator[None]:
        """A rollout runs for the length of a `with` block."""
        self._running.add(rollout)
        try:
            yield
        finally:
            self._running.discard(rollout)
            self._beside_first.discard(rollout)

    def reset(self) -> None:
        """A rollout succeeded."""
        self.successes += 1
        self._count = 0

    def add(self, rollout: object, error: ErrorRecord, limit: int, *, successes: int) -> None:
        """Count a failure.

        Args:
            rollout: What failed.
            error: Its error.
            limit: Number of failures in a row that end the run; 0 for none.
            successes: Rollouts that had succeeded when this one began.

        Raises:
            FailureStreakError: The limit is reached; the count starts again.
        """
        if successes != self.successes:
            return
        if not self._count:
            self._beside_first = set(self._running)
        self._count += 1
        self._beside_first.discard(rollout)
        if limit and self._count >= limit and not self._beside_first:
            count, self._count = self._count, 0
            raise FailureStreakError(count, error)


def is_swallowed() -> bool:
    """Whether an exception of this call would be logged and forgotten: slime's fully asynchronous worker does that."""
    return threading.current_thread().name == "fully-async-rollout"


def raise_in_the_run(sample: Any, error: Exception) -> Any:
    """Make a sample raise an error where slime's run, not its worker, looks at it.

    The worker puts finished groups into a queue, which the run sorts by the indices of samples.
    """
    sample.status, sample.reward = type(sample).Status.COMPLETED, 0.0

    def index(self: Any) -> Any:
        raise error

    sample.__class__ = type("FailedRun", (type(sample),), {"index": property(index)})
    return sample


STREAK = FailureStreak()
"""Of the training rollouts of this process."""

SCORING = FailureStreak()
"""Of the calls of `reward_func` for training: they come after rollouts that went well."""
