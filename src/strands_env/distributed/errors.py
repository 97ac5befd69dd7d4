"""Errors of `strands_env.distributed`.

- `WorkerLostError`: also a `ConnectionError`; a worker ended, its rollouts may run again
- `QuarantinedTaskError`: a task ended every worker that ran it alone
- `WorkerSetupError`: no worker can make the environment factory
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass


class WorkerLostError(ConnectionError):
    """A worker ended. Its rollouts may be run again; executors do, each alone, and the evaluator does.

    Attributes:
        rollouts: Rollouts it was running; 0 where it ended before one began.
        was_stuck: It did not respond and was killed.
    """

    def __init__(self, worker: str, reason: str, rollouts: int = 0, was_stuck: bool = False) -> None:
        super().__init__(worker, reason, rollouts, was_stuck)
        self.worker = worker
        self.reason = reason
        self.rollouts = rollouts
        self.was_stuck = was_stuck

    def __str__(self) -> str:
        return f"{self.worker} was lost: {self.reason}"


@dataclass(eq=False, repr=False)
class QuarantinedTaskError(RuntimeError):
    """A task ended or blocked every worker that ran it alone, and is not run again by this executor.

    An evaluation counts its sample as lost: it has no reward, whatever the reason was.

    Attributes:
        task: Its id.
        deaths: Workers that ended with it.
        reason: The end of the last one.
    """

    task: str
    deaths: int
    reason: str

    def __str__(self) -> str:
        workers = "a worker" if self.deaths == 1 else f"{self.deaths} workers"
        return (
            f"the task {self.task!r} ended {workers} that ran nothing else, and is not run again; "
            f"the last one: {self.reason}"
        )


class WorkerSetupError(RuntimeError):
    """A worker could not make the environment factory, so no rollout can run. A note shows where it was raised.

    It `is_fatal`: an evaluation ends with it instead of failing sample by sample.
    """

    is_fatal = True

    def __init__(self, message: str, where: str = "") -> None:
        super().__init__(message, where)
        self.message = message
        if where:
            self.add_note(where)

    @classmethod
    def from_exception(cls, error: BaseException) -> WorkerSetupError:
        """The report of a worker; unlike the exception, it can always be sent."""
        where = "".join(traceback.format_exception(error, limit=-3))
        return cls(f"{type(error).__name__}: {error}", f"In the worker:\n{where}")

    def __str__(self) -> str:
        return f"a worker cannot make the environment factory: {self.message}"
