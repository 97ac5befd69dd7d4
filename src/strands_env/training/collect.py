"""Rollouts of a batch, run at once and again where they broke."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from strands_env.training.sample import SampleStatus, TrainingSample

logger = logging.getLogger(__name__)

RunRollout = Callable[[], Awaitable[Sequence[TrainingSample]]]
"""Runs one rollout and returns its samples."""

_BROKEN = frozenset({SampleStatus.FAILED, SampleStatus.ABORTED})


async def collect_rollouts(
    runs: Sequence[RunRollout], *, retries: int = 2, pause: float = 1.0
) -> list[Sequence[TrainingSample]]:
    """Run all rollouts concurrently; one that breaks does not break the others.

    A rollout that raises, fails, is aborted or samples nothing is run again.

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
    outcomes = await asyncio.gather(*(_attempts(run, retries, pause) for run in runs))
    errors = [error for _, error in outcomes if error is not None]
    if errors and len(errors) == len(outcomes):
        raise ExceptionGroup(f"all {len(errors)} rollouts of the batch raised", errors)
    return [samples for samples, _ in outcomes]


async def _attempts(run: RunRollout, retries: int, pause: float) -> tuple[Sequence[TrainingSample], Exception | None]:
    samples: Sequence[TrainingSample] = ()
    error: Exception | None = None
    for attempt in range(1 + retries):
        if attempt:
            await asyncio.sleep(pause * 2 ** (attempt - 1))
        try:
            samples, error = await run(), None
        except Exception as failure:  # the boundary of a rollout: whatever it was, the others go on
            samples, error = (), failure
        if samples and not any(sample.status in _BROKEN for sample in samples):
            break
        logger.warning(
            "attempt=<%d>, attempts=<%d>, error=<%r> | rollout broke or sampled nothing",
            attempt + 1,
            1 + retries,
            error,
        )
    return samples, error
