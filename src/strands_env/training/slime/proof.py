"""The proof of a reward in slime's training: on a sample of the data in the first step, then on each new task."""

from __future__ import annotations

import asyncio
import json
import logging
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from strands_env.core import Action
from strands_env.rewards.proof import RewardProof, TaskProof, TaskVerdict, asks_models, prove_reward
from strands_env.training.slime.prompt import read_prompt
from strands_env.training.slime.session import SESSION
from strands_env.training.slime.settings import SlimeConfigError, SlimeSettings

logger = logging.getLogger(__name__)

DATA_ROWS = 2000
"""Rows of `--prompt-data` of which the first proof takes its sample."""
FAILED_AT_MOST = 64
"""Tasks that fail without a sound one among them, after which there is nothing to train."""


async def why_left_out(args: Any, settings: SlimeSettings, reward_fn: Any, action: Action) -> str | None:
    """The reason a task must not be trained, None where it may: its reward is proven, or says nothing of answers.

    Raises:
        SlimeConfigError: Many tasks failed and none was sound.
    """
    if not settings.proof_seconds or reward_fn is None or asks_models(reward_fn):
        return None
    proofs = SESSION.proofs.setdefault(asyncio.get_running_loop(), TaskProofs())
    return await proofs.look_up(args, settings.proof_seconds, reward_fn, action)


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
                tasks.append(read_prompt(sample)[0])
            except (ValueError, KeyError, AttributeError, TypeError):  # slime says what is wrong with its data
                continue
    return tasks
