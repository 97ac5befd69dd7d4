"""Rollouts that wait, sandboxes included, for slime to ask for them again, and the end of those it never asks for."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from strands_env.training.slime.episode import Episode

logger = logging.getLogger(__name__)

MAX_SUSPENDED = 4096
"""Suspended rollouts that are kept; beyond that the oldest are ended."""

EXIT_SECONDS = 30.0
"""How long the process waits at exit for their cleanups."""


class SuspendedEpisodes:
    """Rollouts that wait, by the key of their sample, the longest waiting first."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Any, tuple[Episode, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, key: Any, episode: Episode) -> None:
        """Keep a rollout; another one of that key is ended, and the oldest if there are too many."""
        if earlier := self._waiting.pop(key, None):
            _end(earlier[0])
        self._waiting[key] = (episode, time.monotonic())
        while len(self._waiting) > MAX_SUSPENDED:
            self._drop_oldest("there are too many")

    def take(self, key: Any) -> Episode | None:
        """The rollout of that key, no longer kept; one of another event loop is ended there, and None returned."""
        episode, _ = self._waiting.pop(key, (None, 0.0))
        if episode is None or episode.task.get_loop() is asyncio.get_running_loop():
            return episode
        _end(episode)
        return None

    def expire(self, seconds: float) -> None:
        """End what has waited for longer; 0 for no limit."""
        while seconds and self._waiting and time.monotonic() - next(iter(self._waiting.values()))[1] > seconds:
            self._drop_oldest(f"it waited for more than {seconds:g} s (strands_env_max_suspension)")

    async def close(self) -> None:
        """End all, and wait for their cleanups."""
        ends = [asyncio.wrap_future(end) for end in self._end_all()]
        await asyncio.gather(*ends, return_exceptions=True)

    def close_at_exit(self) -> None:
        """End those whose event loops run in other threads, and wait for their cleanups for a while."""
        concurrent.futures.wait(list(self._end_all()), timeout=EXIT_SECONDS)

    def _drop_oldest(self, reason: str) -> None:
        key, (episode, _) = self._waiting.popitem(last=False)
        logger.warning("sample=<%s> | suspended rollout ended, %s", key, reason)
        _end(episode)

    def _end_all(self) -> Iterator[concurrent.futures.Future[None]]:
        while self._waiting:
            episode, _ = self._waiting.popitem()[1]
            loop = episode.task.get_loop()
            if loop.is_running():
                yield asyncio.run_coroutine_threadsafe(episode.cancel(), loop)


def _end(episode: Episode) -> None:
    """Cancel a rollout on its own event loop, unless that is closed."""
    with contextlib.suppress(RuntimeError):
        episode.task.get_loop().call_soon_threadsafe(episode.task.cancel)


SUSPENDED = SuspendedEpisodes()
"""Of this process."""

atexit.register(SUSPENDED.close_at_exit)


async def close() -> None:
    """End the rollouts that wait for slime to resume them (`--partial-rollout`), their cleanups included."""
    await SUSPENDED.close()
