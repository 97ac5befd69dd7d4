"""Attempts of a rollout: one that is lost is repeated, for the evaluator and every trainer; and of a search.

An attempt is lost if the table in `termination.py` holds infrastructure responsible. The policy's outcomes are never
repeated, slow rollouts among them: sampled again until they are short, they would bias measurement and training.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from strands_sglang.exceptions import check_positive

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Retries of rollouts lost to infrastructure.

    Attributes:
        max_attempts: Rollouts of one sample, the first included.
        delay: Seconds before the second attempt.
        max_delay: Longest pause; pauses double up to it.
        jitter: Share of a pause that is random, so that many samples do not come back at once.
    """

    max_attempts: int = 3
    delay: float = 1.0
    max_delay: float = 30.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        check_positive("rollouts, the first included", whole=True, max_attempts=self.max_attempts)
        check_positive("seconds", zero=True, delay=self.delay, max_delay=self.max_delay)
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter must be between 0 and 1, got {self.jitter!r}")

    def pause(self, attempts: int) -> float:
        """Seconds to wait after the given number of failed attempts."""
        full = min(self.max_delay, self.delay * 2.0 ** min(attempts - 1, 60))
        # Spread out, for all samples that a server refused would come back at one moment.
        return full * (1 - self.jitter * random.random())


async def run_attempts(
    attempt: Callable[[], Awaitable[T]],
    find_loss: Callable[[T], str | Exception | None],
    retry: RetryPolicy,
    name: str = "",
) -> T:
    """The result of the first attempt that is not lost, otherwise of the last one.

    Args:
        find_loss: Why a result is lost; None for one that is not.
        name: Of the rollout or the server, for the log.
    """
    attempts = 1
    while (loss := find_loss(result := await attempt())) is not None:
        words = "name=<%s>, attempt=<%d>, attempts=<%d>, reason=<%s> | attempt lost"
        traceback = loss if isinstance(loss, Exception) else None
        logger.warning(words, name, attempts, retry.max_attempts, loss, exc_info=traceback)
        if attempts >= retry.max_attempts:
            break
        await asyncio.sleep(retry.pause(attempts))
        attempts += 1
    return result
