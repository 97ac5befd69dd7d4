"""Placement of rollouts: beside others on the least busy worker, and alone once a worker was lost with it."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import Any, Self

from strands_env.core import Action, StepResult
from strands_env.core.jsonable import canonical, plain
from strands_env.core.seeds import FIELD as SEED_FIELD
from strands_env.distributed.errors import QuarantinedTaskError, WorkerLostError
from strands_env.distributed.messages import Recipe

logger = logging.getLogger(__name__)

MAX_DEATHS = 2
"""Workers that a task may end while it runs alone, before it is quarantined."""
STUCK_SECONDS = 60.0
"""Seconds without a sign of life after which a worker is killed."""
MAX_STARTS = 3
"""Workers that may end one after the other before a rollout began on them."""


class Worker(ABC):
    """A process or an actor, started at its first rollout and again after its death.

    Attributes:
        load: Rollouts it has now.
    """

    def __init__(self, name: str, stuck_after: float | None, environments: list[dict[str, Any]]) -> None:
        self._name, self._stuck_after, self._environments = name, stuck_after, environments
        self._starting = asyncio.Lock()
        self.load = 0

    @abstractmethod
    async def rollout(self, action: Action, timeout: float | None) -> StepResult:
        """Run a rollout; `WorkerLostError` if the worker ended."""

    @abstractmethod
    async def close(self) -> None:
        """End it: running rollouts are cancelled and their environments cleaned up."""

    def _note(self, environment: dict[str, Any] | None) -> None:
        """Keep the description of an environment, once for all workers."""
        if environment is not None and environment not in self._environments:
            self._environments.append(environment)


class WorkerPool:
    """Spreads rollouts over workers, which a subclass makes, and finds the task that ends them.

    When a worker is lost nobody knows which of its rollouts ended it. So each is run again, with a worker of its own:
    an innocent one gets its result. A worker that ends while it runs a single rollout counts against that task, and a
    task that ends `MAX_DEATHS` of them is quarantined; a task that blocks one is quarantined at once.

    Args:
        recipe: Makes the environment factory in a worker.
        n_workers: Workers that share rollouts, and at most as many that run a single one.
        stuck_after: Seconds without a sign of life after which a worker is killed; None waits for ever.

    Attributes:
        environments: Descriptions of the environments the workers make, each once; an evaluation compares them.
    """

    def __init__(self, recipe: Recipe, n_workers: int, stuck_after: float | None) -> None:
        if n_workers < 1:
            raise ValueError(f"n_workers must be at least 1, got {n_workers!r}")
        if stuck_after is not None and not stuck_after > 0:
            raise ValueError(f"stuck_after must be a positive number of seconds or None, got {stuck_after!r}")
        self._recipe, self._stuck_after = recipe, stuck_after
        self.environments: list[dict[str, Any]] = []
        self.workers = [self._worker(number) for number in range(n_workers)]
        self._made = n_workers
        self._idle: list[Worker] = []
        self._single: set[Worker] = set()
        self._places = asyncio.Semaphore(n_workers)
        self._suspects = 0
        self._deaths: dict[bytes, int] = {}
        self._closed = False

    @property
    def env_factory_name(self) -> str:
        """The function that makes the environment factory, with its arguments; part of a run's configuration."""
        return self._recipe.name

    def _worker(self, number: int) -> Worker:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def rollout(self, action: Action, timeout: float | None = None) -> StepResult:
        """Run one rollout on the least busy worker.

        Args:
            timeout: Seconds for everything before the cleanup.

        Raises:
            EpisodeTimeoutError: They passed.
            WorkerLostError: Workers ended before the rollout began.
            QuarantinedTaskError: The task ends its workers.
            WorkerSetupError: The environment factory cannot be made there.
        """
        if self._closed:
            raise RuntimeError("this executor is closed: make another one")
        # The key costs the JSON of the task.
        deaths = self._deaths.get(_key(action), 0) if self._deaths else 0
        if deaths >= MAX_DEATHS:
            raise QuarantinedTaskError(action.task_context.id, deaths, "it was quarantined before")
        alone = deaths > 0
        starts = 0
        while True:
            try:
                if alone:
                    return await self._alone(action, timeout)
                return await min(self.workers, key=lambda worker: worker.load).rollout(action, timeout)
            except WorkerLostError as error:
                starts += error.rollouts == 0  # none had begun, so no task is to blame
                if self._closed or starts == MAX_STARTS:
                    raise
                if error.rollouts == 1:
                    self._count(action, error)
                alone = alone or error.rollouts > 0

    async def close(self) -> None:
        """End the workers: running rollouts are cancelled and their environments cleaned up."""
        self._closed = True
        await asyncio.gather(*(worker.close() for worker in [*self.workers, *self._single]))
        self._idle, self._single = [], set()

    async def _alone(self, action: Action, timeout: float | None) -> StepResult:
        self._suspects += 1
        try:
            async with self._places:
                if not self._idle:
                    worker = self._worker(self._made)
                    self._made += 1
                    self._idle.append(worker)
                    self._single.add(worker)
                worker = self._idle.pop()
                try:
                    return await worker.rollout(action, timeout)
                finally:
                    self._idle.append(worker)
        finally:
            self._suspects -= 1
            if self._suspects == 0 and not self._closed:
                ending, self._idle = self._idle, []
                self._single.difference_update(ending)
                await asyncio.gather(*(worker.close() for worker in ending))

    def _count(self, action: Action, error: WorkerLostError) -> None:
        key = _key(action)
        deaths = self._deaths.get(key, 0) + 1
        # A worker may end by chance, though hardly stop responding: to wait for a second one would only cost time.
        self._deaths[key] = MAX_DEATHS if error.was_stuck else deaths
        logger.warning(
            "task=<%s>, deaths=<%d>, status=<%s> | a worker ended that ran only this task",
            action.task_context.id,
            deaths,
            error.reason,
        )
        if self._deaths[key] >= MAX_DEATHS:
            raise QuarantinedTaskError(action.task_context.id, deaths, error.reason) from error


def _key(action: Action) -> bytes:
    """Key of a task, equal for all its samples."""
    # Ids are random by default, and every sample has a seed of its own.
    content: Any = action.model_dump(exclude={"task_context": {"id", SEED_FIELD}})
    return canonical(plain(content, leaf=repr))
