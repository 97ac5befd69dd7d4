"""The state that all rollouts of a process share: failures in a row, suspended rollouts, proofs of tasks."""

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
from strands_env.rewards.proof import RewardProof, TaskProof, TaskVerdict, asks_models, prove_reward
from strands_env.training.attempts import FailureStreak
from strands_env.training.slime.prompt import read_prompt
from strands_env.training.slime.rollout import Episode
from strands_env.training.slime.settings import SlimeConfigError, SlimeSettings

logger = logging.getLogger(__name__)

EXIT_SECONDS = 30.0
"""Longest wait at exit for the cleanups of suspended rollouts."""
DATA_ROWS = 2000
"""Rows of `--prompt-data` of which the first proof takes its sample."""
FAILED_AT_MOST = 64
"""Tasks that fail without a sound one among them, after which there is nothing to train."""


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


# ---- proofs ---------------------------------------------------------------------------------------------------------


class TaskProofs:
    """The proofs of one process, each made once, whoever waits for it."""

    def __init__(self) -> None:
        self._first: asyncio.Task[None] | None = None
        self._running: dict[str, asyncio.Task[RewardProof]] = {}
        self._proofs: dict[str, TaskProof | None] = {}
        self._failed: set[str] = set()
        self._has_sound = self._decides = self._has_warned = self._is_slow = False

    async def look_up(self, args: Any, seconds: float, reward_fn: Any, action: Action) -> str | None:
        """Prove the task if that is new; why it is left out, if it is."""
        if self._first is None:
            self._first = asyncio.create_task(self._prove_data(args, seconds, reward_fn))
        # Shielded: others wait for the same proof.
        await asyncio.shield(self._first)
        key = _task_key(action)
        if key not in self._proofs and not self._is_slow:
            if key not in self._running:
                self._running[key] = asyncio.create_task(self._prove([action], seconds, reward_fn))
            await asyncio.shield(self._running[key])
            self._running.pop(key, None)
        proof = self._proofs.setdefault(key, None)
        if proof is None or proof.verdict is TaskVerdict.SOUND or not self._decides:
            return None
        self._failed.add(key)
        if not self._has_warned:
            self._has_warned = True
            words = "task=<%s>, reason=<%s> | it fails the proof of its reward, and is left out of training"
            logger.warning(words, proof.id, proof.reason)
        if len(self._failed) >= FAILED_AT_MOST and not self._has_sound:
            raise SlimeConfigError(
                f"the first {len(self._failed)} tasks all fail the proof of their reward, the last for {proof.reason}: "
                "fix the reward or the labels, or set strands_env_proof_seconds to 0 to train them unproven"
            )
        return f"{proof.verdict}: {proof.reason}"

    async def _prove_data(self, args: Any, seconds: float, reward_fn: Any) -> None:
        tasks = await asyncio.to_thread(_read_tasks, args)
        proof = await self._prove(tasks, seconds, reward_fn, seed=getattr(args, "rollout_seed", None) or 0)
        proof.warn(f"and they are {'' if self._decides else 'not '}left out of training")
        self._has_warned = self._decides and not proof.ok

    async def _prove(self, tasks: list[Action], seconds: float, reward_fn: Any, seed: int = 0) -> RewardProof:
        proof = await prove_reward(tasks, reward_fn, seconds=seconds, seed=seed)
        if proof.is_late and not self._is_slow:
            self._is_slow = True  # every new task would wait for nothing
            words = "seconds=<%g> | too short for the proof of the reward on one task: tasks are trained unproven"
            logger.warning(words, seconds)
        keys = {task.task_context.id: _task_key(task) for task in tasks}
        self._proofs |= {keys[row.id]: row for row in proof.rows}
        self._has_sound |= any(row.verdict is TaskVerdict.SOUND for row in proof.rows)
        # A reward that gives every answer the same reads something else.
        self._decides |= proof.decides and proof.loses
        return proof


def _task_key(action: Action) -> str:
    """The content of a task: slime numbers samples, not tasks."""
    return json.dumps([action.prompt, action.task_context.ground_truth], sort_keys=True, default=str)


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
        working_settings: Settings with which an environment was made: what fails with them later is not their fault.
    """

    def __init__(self) -> None:
        self.rollout_failures = FailureStreak()
        self.reward_failures = FailureStreak()
        self.suspended = SuspendedEpisodes()
        self.working_settings: set[str] = set()
        self._proofs: WeakKeyDictionary[asyncio.AbstractEventLoop, TaskProofs] = WeakKeyDictionary()

    async def why_left_out(self, args: Any, settings: SlimeSettings, reward_fn: Any, action: Action) -> str | None:
        """The reason a task must not be trained, None where it may: its reward is proven, or says nothing of answers.

        Raises:
            SlimeConfigError: Many tasks failed and none was sound.
        """
        if not settings.proof_seconds or reward_fn is None or asks_models(reward_fn):
            return None
        proofs = self._proofs.setdefault(asyncio.get_running_loop(), TaskProofs())
        return await proofs.look_up(args, settings.proof_seconds, reward_fn, action)


SESSION = SlimeSession()
atexit.register(lambda: SESSION.suspended.close_at_exit())
