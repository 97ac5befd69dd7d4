"""The driver of rollouts for every trainer: attempts, batches, failures in a row. Adapters only map fields.

An attempt is repeated if it raised, was lost to infrastructure, or gave nothing that the trainer takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

from strands_env.core.attempts import RetryPolicy, run_attempts
from strands_env.core.termination import End, ErrorRecord, Outcome, Phase, TerminationReason
from strands_env.core.types import StepResult
from strands_env.training.sample import InvalidSampleError, TrainingSample

RETRY_PAUSE = 1.0
"""Seconds before the first further attempt of a rollout; `RetryPolicy` has the others."""

RunRollout = Callable[[], Awaitable[Sequence[TrainingSample]]]
"""Runs one rollout and returns its samples."""


NOTHING_SAMPLED = End(
    TerminationReason.UNCLASSIFIED_ERROR,
    error=ErrorRecord(
        type=f"{InvalidSampleError.__module__}.{InvalidSampleError.__qualname__}",
        message="the rollout sampled no tokens, or none that are to be trained",
        traceback="",
        where=Phase.LOOP,
    ),
)
"""The end of a rollout without samples of which nothing else is known."""


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """A rollout after an attempt.

    Attributes:
        samples: One a path; empty where nothing was sampled.
        result: Returned by the environment; None where it raised, or where the user's own loop gave the samples.
        error: Raised by the attempt, or why the trainer cannot take its samples.
        end: Follows from the other fields unless given. Another attempt is due where it is lost, as it is for an
            attempt that raised or has no samples. An end that is not the policy's has an error.
    """

    samples: Sequence[TrainingSample] = ()
    result: StepResult | None = None
    error: Exception | None = None
    end: End = field(default=cast(End, None))

    def __post_init__(self) -> None:
        end: End | None = self.end
        if self.error is not None:
            end = End.from_error(self.error, Phase.LOOP, outcome=Outcome.INFRASTRUCTURE)
        if end is None:
            ends = [] if self.result is None else [self.result.end]
            ends += [sample.end for sample in self.samples] or [NOTHING_SAMPLED]
            end = next((each for each in ends if each.outcome.is_lost), ends[0])
        if end.error is None and end.outcome is not Outcome.POLICY:
            message = f"the rollout ended with {end.reason}"
            record = ErrorRecord(type=end.reason.value, message=message, traceback="", where=Phase.LOOP)
            end = replace(end, error=record)
        object.__setattr__(self, "end", end)


R = TypeVar("R", bound=Rollout)


async def drive_rollout(
    attempt: Callable[[], Awaitable[R]],
    kind: type[R],
    *,
    retries: int,
    pause: float | None = None,
    is_stopping: Callable[[], bool] = lambda: False,
    fatal: tuple[type[Exception], ...] = (),
) -> R:
    """The first attempt that is not lost, otherwise the last one; see `core/attempts.py`.

    Args:
        attempt: Called once for every attempt.
        kind: The class of the rollout, for an attempt that raised.
        retries: Further attempts of a rollout that was lost.
        pause: Seconds before the first further attempt; `RETRY_PAUSE` if None.
        is_stopping: True once the trainer wants no further attempt.
        fatal: Errors that pass, for every attempt would raise them.
    """

    async def try_attempt() -> R:
        try:
            return await attempt()
        except fatal:
            raise
        except Exception as error:  # the boundary of a rollout: the others go on
            return kind(error=error)

    def find_loss(rollout: R) -> str | Exception | None:
        if not rollout.end.outcome.is_lost or is_stopping():
            return None
        return rollout.error or str(rollout.end)

    policy = RetryPolicy(max_attempts=1 + retries, delay=RETRY_PAUSE if pause is None else pause)
    return await run_attempts(try_attempt, find_loss, policy)


async def collect_rollouts(
    runs: Sequence[RunRollout], *, retries: int = 2, pause: float = RETRY_PAUSE
) -> list[Sequence[TrainingSample]]:
    """Run all rollouts concurrently; one that breaks does not break the others.

    A rollout that raises, is lost to infrastructure or gives no sample is run again. The policy's outcomes are not.

    Args:
        runs: One function a rollout, called once for every attempt.
        retries: Further attempts of a rollout that broke.
        pause: Seconds before the first further attempt, twice as long before each next one.

    Returns:
        The samples of every rollout, in order; empty for one that never gave any. Adapters export those as rows
        without loss.

    Raises:
        ExceptionGroup: Every rollout raised, to the last attempt: the configuration is wrong.
    """

    async def drive(run: RunRollout) -> Rollout:
        async def attempt() -> Rollout:
            return Rollout(samples=await run())

        return await drive_rollout(attempt, Rollout, retries=retries, pause=pause)

    rollouts = await asyncio.gather(*map(drive, runs))
    errors = [rollout.error for rollout in rollouts if rollout.error is not None]
    if errors and len(errors) == len(rollouts):
        raise ExceptionGroup(f"all {len(errors)} rollouts of the batch raised", errors)
    return [rollout.samples for rollout in rollouts]


@dataclass(eq=False, repr=False)
class FailureStreakError(RuntimeError):
    """Too many rollouts in a row failed, the last with `error`; the run ends instead of sampling forever."""

    count: int
    error: ErrorRecord

    def __str__(self) -> str:
        return (
            f"{self.count} rollouts in a row failed, the last with {self.error.type} in {self.error.where.value}: "
            f"{self.error.message!r}; fix the cause, or raise strands_env_max_failures (0 for no limit)"
        )


class FailureStreak:
    """Counts failures of rollouts that began after the last good one.

    Rollouts run concurrently and failures come fast. So a failure does not count if another rollout has succeeded
    since it began, and the run does not end before all rollouts that ran beside the first failure have ended.
    """

    def __init__(self) -> None:
        self._successes = 0
        self._count = 0
        self._running: dict[object, int] = {}  # with the number of successes at its start
        self._beside_first: set[object] = set()

    @contextmanager
    def running(self, rollout: object) -> Iterator[None]:
        """A rollout runs for the length of a `with` block."""
        self._running[rollout] = self._successes
        try:
            yield
        finally:
            del self._running[rollout]
            self._beside_first.discard(rollout)

    def reset(self) -> None:
        """A rollout succeeded."""
        self._successes += 1
        self._count = 0

    def add(self, rollout: object, error: ErrorRecord, limit: int) -> None:
        """Count the failure of a running rollout; at `limit` in a row (0 for none) `FailureStreakError`.

        Then the count starts again.
        """
        if self._running[rollout] != self._successes:
            return
        if not self._count:  # those that run beside it may yet succeed, which starts the count again
            self._beside_first = set(self._running)
        self._count += 1
        self._beside_first.discard(rollout)
        if limit and self._count >= limit and not self._beside_first:
            count, self._count = self._count, 0
            raise FailureStreakError(count, error)
