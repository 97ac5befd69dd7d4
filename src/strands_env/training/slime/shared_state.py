"""The state that all rollouts of a process share: failures in a row, suspended rollouts, the proof of the reward."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import json
import logging
import time
from collections import OrderedDict
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

from strands_env.core import Action
from strands_env.rewards.proof import asks_models, prove_reward
from strands_env.training.driver import FailureStreak
from strands_env.training.slime.live_rollout import Episode
from strands_env.training.slime.prompt import read_prompt
from strands_env.training.slime.settings import SlimeConfigError, SlimeSettings

logger = logging.getLogger(__name__)

EXIT_SECONDS = 30.0
"""Longest wait at exit for the cleanups of suspended rollouts."""
DATA_ROWS = 2000
"""Rows of `--prompt-data` of which the proof takes its sample."""
FAILED_AT_LEAST = 8
"""Tasks that must have been tried before it counts that all of them fail."""


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
        """End rollouts that have waited for longer; 0 for no limit."""
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


# ---- the proof ------------------------------------------------------------------------------------------------------


async def _prove_data(args: Any, seconds: float, reward_fn: Any) -> None:
    """Prove a reward on a sample of slime's data, and warn of tasks that fail.

    Raises:
        SlimeConfigError: All tasks of the sample fail, so that there is nothing to train.
    """
    tasks = await asyncio.to_thread(_read_tasks, args)
    if not tasks:
        return
    proof = await prove_reward(tasks, reward_fn, seconds=seconds, seed=getattr(args, "rollout_seed", None) or 0)
    if proof.is_late:
        logger.warning("seconds=<%g> | too short for the proof of the reward on one task: nothing is proven", seconds)
    # A reward that is the same for every answer does not read the answer.
    if proof.decides and proof.loses and len(proof.ids()) == len(proof.rows) >= FAILED_AT_LEAST:
        raise SlimeConfigError(
            f"all {len(proof.rows)} tasks that were tried fail the proof of their reward, the last for "
            f"{proof.rows[-1].reason}: fix the reward or the labels, or set strands_env_proof_seconds to 0 to train "
            "them unproven"
        )
    proof.warn("and they are trained")


def _read_tasks(args: Any) -> list[Action]:
    """The first tasks of slime's data; none where it is not a `.jsonl` file."""
    path = Path(str(getattr(args, "prompt_data", None) or ""))
    if path.suffix != ".jsonl" or not path.is_file():
        return []
    question, label = getattr(args, "input_key", None) or "input", getattr(args, "label_key", None)
    tasks = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(islice(lines, DATA_ROWS), 1):
            try:
                row = json.loads(line)
                metadata = row.get(getattr(args, "metadata_key", None) or "metadata")
                sample = SimpleNamespace(index=f"row {number}", prompt=row[question], metadata=metadata)
                sample.label = None if label is None else row.get(label)
                tasks.append(read_prompt(sample))
            except (ValueError, KeyError, AttributeError, TypeError):  # slime says what is wrong with its data
                continue
    return tasks


# ---- the session ----------------------------------------------------------------------------------------------------


class SlimeSession:
    """The shared state of one process.

    Attributes:
        rollout_failures: Training rollouts that failed in a row.
        reward_failures: Calls of `reward_func` in training that failed in a row: they follow successful rollouts.
        suspended: Rollouts that wait until slime asks again.
        working_settings: Settings with which an environment was made: they are not at fault for later failures.
    """

    def __init__(self) -> None:
        self.rollout_failures = FailureStreak()
        self.reward_failures = FailureStreak()
        self.suspended = SuspendedEpisodes()
        self.working_settings: set[str] = set()
        self._proofs: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[None]] = WeakKeyDictionary()

    async def prove_data(self, args: Any, settings: SlimeSettings, reward_fn: Any) -> None:
        """Prove the reward, once, at the first call, for which calls beside it wait.

        Raises:
            SlimeConfigError: There is nothing to train, at each call.
        """
        if not settings.proof_seconds or reward_fn is None or asks_models(reward_fn):
            return
        loop = asyncio.get_running_loop()
        if loop not in self._proofs:
            self._proofs[loop] = loop.create_task(_prove_data(args, settings.proof_seconds, reward_fn))
        await asyncio.shield(self._proofs[loop])


SESSION = SlimeSession()
atexit.register(lambda: SESSION.suspended.close_at_exit())
