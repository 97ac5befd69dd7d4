"""The state that all rollouts of a process share: failures in a row, suspended rollouts, proofs of tasks."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import logging
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from strands_env.training.attempts import FailureStreak

if TYPE_CHECKING:
    from strands_env.training.slime.proof import TaskProofs
    from strands_env.training.slime.rollout import Episode

logger = logging.getLogger(__name__)

EXIT_SECONDS = 30.0
"""Longest wait at exit for the cleanups of suspended rollouts."""


class SuspendedEpisodes:
    """Rollouts that wait to be resumed, by the key of their sample, the longest waiting first."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Any, tuple[Episode, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, key: Any, episode: Episode) -> None:
        """Keep a rollout; another one of that key is ended."""
        if earlier := self._waiting.pop(key, None):
            _end(earlier[0])
        self._waiting[key] = (episode, time.monotonic())

    def take(self, key: Any) -> Episode | None:
        """Remove and return the rollout of that key; one of another event loop is ended there, and None returned."""
        episode, _ = self._waiting.pop(key, (None, 0.0))
        if episode is None or episode.running.get_loop() is asyncio.get_running_loop():
            return episode
        _end(episode)
        return None

    def expire(self, seconds: float) -> None:
        """End what has waited for longer; 0 for no limit."""
        while seconds and self._waiting and time.monotonic() - next(iter(self._waiting.values()))[1] > seconds:
            key, (episode, _) = self._waiting.popitem(last=False)
            logger.warning(
                "sample=<%s>, seconds=<%g> | suspended rollout ended: strands_env_max_suspension", key, seconds
            )
            _end(episode)

    def close_at_exit(self) -> None:
        """End those whose event loops run in other threads, and wait for their cleanups for a while."""
        ends = []
        while self._waiting:
            episode, _ = self._waiting.popitem()[1]
            loop = episode.running.get_loop()
            if loop.is_running():
                ends.append(asyncio.run_coroutine_threadsafe(episode.cancel(), loop))
        concurrent.futures.wait(ends, timeout=EXIT_SECONDS)


def _end(episode: Episode) -> None:
    """Cancel a rollout on its own event loop, unless that is closed."""
    with contextlib.suppress(RuntimeError):
        episode.running.get_loop().call_soon_threadsafe(episode.running.cancel)


class SlimeSession:
    """The shared state of one process.

    Attributes:
        rollout_failures: Training rollouts that failed in a row.
        reward_failures: Calls of `reward_func` in training that failed in a row: they follow successful rollouts.
        suspended: Rollouts that wait until slime asks again.
        proofs: Proofs of tasks, by event loop.
        working_settings: Settings with which an environment was made: what fails with them later is not their fault.
    """

    def __init__(self) -> None:
        self.rollout_failures = FailureStreak()
        self.reward_failures = FailureStreak()
        self.suspended = SuspendedEpisodes()
        self.proofs: WeakKeyDictionary[asyncio.AbstractEventLoop, TaskProofs] = WeakKeyDictionary()
        self.working_settings: set[str] = set()


SESSION = SlimeSession()
atexit.register(lambda: SESSION.suspended.close_at_exit())
