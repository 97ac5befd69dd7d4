"""One rollout as a task of its own, so that it can outlive slime's call: suspended by an abort, resumed later."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from strands_env.core import StepResult
from strands_env.training.slime._client import CallRecord, RolloutControl, RolloutCounters

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.2
"""How often a rollout that runs a tool looks whether slime is stopping."""
MAX_SUSPENDED = 4096
"""Suspended rollouts that are kept; the oldest are cancelled, for slime may never ask for them again."""


@dataclass(slots=True, kw_only=True, eq=False)
class Episode:
    """A rollout in progress.

    Attributes:
        task: Runs `Environment.rollout`.
        control: Its abort, budget and suspension.
        models: The models it has made.
        records: Top-p data of its calls.
        counters: Sums over its calls.
        suspensions: How often it was suspended.
    """

    task: asyncio.Task[StepResult]
    control: RolloutControl
    models: list[Any] = field(default_factory=list)
    records: list[CallRecord] = field(default_factory=list)
    counters: RolloutCounters = field(default_factory=RolloutCounters)
    suspensions: int = 0

    async def run(self) -> StepResult | None:
        """Wait for the end; None when the rollout was suspended or stopped because slime is stopping.

        Cancelling this call ends the rollout, its cleanup included.
        """
        self.control.resume.set()
        self.control.suspended.clear()
        try:
            while not self.task.done():
                if self.control.is_aborted():
                    return await self._stop()
                waiter = asyncio.ensure_future(self.control.suspended.wait())
                await asyncio.wait({self.task, waiter}, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                waiter.cancel()
        except asyncio.CancelledError:
            await self.cancel()
            raise
        return self.task.result()

    async def _stop(self) -> StepResult | None:
        if self.control.suspends:
            self.suspensions += 1
            return None
        await self.cancel()
        return None

    async def cancel(self) -> None:
        """End the rollout; its environment cleans up."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class SuspendedEpisodes:
    """Rollouts that wait for slime to ask for them again, by the key of their sample."""

    def __init__(self) -> None:
        self._episodes: OrderedDict[Any, Episode] = OrderedDict()

    def __len__(self) -> int:
        return len(self._episodes)

    def put(self, key: Any, episode: Episode) -> None:
        """Keep a rollout; too many cancel the oldest."""
        self._episodes[key] = episode
        while len(self._episodes) > MAX_SUSPENDED:
            old, dropped = self._episodes.popitem(last=False)
            logger.warning("sample=<%s> | suspended rollout dropped, there are too many", old)
            dropped.task.cancel()

    def take(self, key: Any) -> Episode | None:
        """The rollout of that key, if one waits on the running event loop; it is no longer kept."""
        episode = self._episodes.pop(key, None)
        if episode is None or episode.task.get_loop() is not asyncio.get_running_loop():
            return None
        return episode


SUSPENDED = SuspendedEpisodes()
