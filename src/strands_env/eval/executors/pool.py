"""Placement of rollouts: beside others on the least busy worker, and alone once a worker was lost with it."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Self

from strands_env.core import Action, StepResult
from strands_env.core.jsonable import call_name, identity, name_of
from strands_env.core.seeds import FIELD as SEED_FIELD
from strands_env.eval.executors.worker import SHUTDOWN_SECONDS, QuarantinedTaskError, WorkerLostError, unpack
from strands_sglang.exceptions import check_positive

logger = logging.getLogger(__name__)

MAX_DEATHS = 2
"""Workers that a task may end while it runs alone, before it is quarantined."""
STUCK_SECONDS = 60.0
"""Seconds without a sign of life after which a worker is killed."""
BEAT_SECONDS = 1.0
"""Seconds between two signs of life."""
MAX_STARTS = 3
"""Workers that may end one after the other before a rollout began on them."""


class Link(ABC):
    """A process or an actor from its start to its death, as the `RolloutHost` that runs there.

    Attributes:
        running: Rollouts it has now.
        at_death: Rollouts it had when it was lost.
        was_stuck: It did not respond, and was killed.
        is_lost: Its loss was noticed while nothing was asked.
    """

    running = at_death = 0
    was_stuck = is_lost = False

    @abstractmethod
    async def ask(self, method: str, *arguments: bytes) -> Any:
        """Call a method of the host; `ConnectionError` with the reason if the other side is lost."""

    @abstractmethod
    async def kill(self) -> None:
        """End it at once, whatever it does."""

    @abstractmethod
    async def close(self, seconds: float = SHUTDOWN_SECONDS) -> None:
        """End it, killed after so many seconds: running rollouts are cancelled and their environments cleaned up."""

    def user_lines(self) -> list[str]:
        """Lines of the user's code that it was in when it was lost, where it left them."""
        return []


class Worker:
    """A process or an actor, started at its first rollout and again after its death.

    Attributes:
        load: Rollouts it has now.
        link: The running one.
    """

    def __init__(self, name: str, pool: WorkerPool) -> None:
        self._name, self._pool = name, pool
        self._starting = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self.link: Link | None = None
        self.load = 0

    async def rollout(self, action: Action, timeout: float | None) -> StepResult:
        """Run a rollout; `WorkerLostError` if the worker ended."""
        self.load += 1
        try:
            request = self._pool.dumps((action, timeout))
            return await self._run(await self._running_link(), request)
        finally:
            self.load -= 1

    async def describe(self, action: Action | None) -> dict[str, Any] | None:
        """`LocalExecutor.describe` there; None also where the worker ended."""
        try:
            link = await self._running_link()
            description: dict[str, Any] | None = await link.ask("describe", self._pool.dumps(action))
            return description
        except ConnectionError:  # a rollout counts such ends, if one is left to run
            return None

    async def _running_link(self) -> Link:
        async with self._starting:
            if self.link is None or self.link.is_lost:
                await self._end(0.0)
                self.link = await self._start()
            return self.link

    async def close(self) -> None:
        """End it: running rollouts are cancelled and their environments cleaned up."""
        async with self._starting:
            await self._end(SHUTDOWN_SECONDS)

    async def _end(self, seconds: float) -> None:
        link, self.link = self.link, None
        if self._watching is not None:
            self._watching.cancel()
        if link is not None:
            await link.close(seconds)
        if self._ending is not None:  # of a link that was lost
            await asyncio.wait({self._ending})

    async def _start(self) -> Link:
        link = await self._pool.open_link()
        try:
            failure = await link.ask("ready", self._pool.dumps((self._pool.make, self._pool.arguments)))
        except BaseException as error:
            await link.close(0.0)
            if isinstance(error, ConnectionError):  # another one may live
                raise WorkerLostError(self._name, f"it ended at its start, {error}") from error
            raise
        if failure is not None:
            await link.close()
            raise failure
        if self._pool.stuck_after is not None:
            self._watching = asyncio.create_task(self._watch(link, self._pool.stuck_after))
        return link

    async def _run(self, link: Link, request: bytes) -> StepResult:
        link.running += 1
        try:
            answer, environment = await link.ask("rollout", request)
        except ConnectionError as error:
            link.at_death = link.at_death or link.running
            reason = (
                f"it did not respond for {self._pool.stuck_after:g} s and was killed" if link.was_stuck else str(error)
            )
            if lines := link.user_lines():
                reason += f", at {'; '.join(lines)}"
            if self.link is link:  # the first of its rollouts to notice
                self.link = None
                words = "worker=<%s>, rollouts=<%d>, status=<%s> | worker lost"
                logger.warning(words, self._name, link.running, reason)
                self._ending = asyncio.create_task(link.close(0.0))  # also if this rollout is cancelled meanwhile
                await asyncio.shield(self._ending)
            raise WorkerLostError(self._name, reason, link.at_death, link.was_stuck) from error
        finally:
            link.running -= 1
        if environment is not None and environment not in self._pool.environments:
            self._pool.environments.append(environment)
        return unpack(answer)

    async def _watch(self, link: Link, stuck_after: float) -> None:
        """Kill the worker when it does not respond for too long.

        The time is counted in beats of this event loop: while it is held up itself, answers wait unread.
        """
        silent_beats = 0
        answer: asyncio.Future[None] | None = None
        try:
            while silent_beats * BEAT_SECONDS < stuck_after:
                answer = answer or asyncio.ensure_future(link.ask("alive"))
                await asyncio.wait({answer}, timeout=BEAT_SECONDS)
                if not answer.done():
                    silent_beats += 1
                elif answer.exception() is not None:  # it is lost: its rollouts say so themselves
                    return
                else:
                    silent_beats, answer = 0, None
                    await asyncio.sleep(BEAT_SECONDS)
        finally:
            if answer is not None:
                answer.cancel()
        link.was_stuck = True
        logger.warning("worker=<%s> | it does not respond: killing it", self._name)
        await link.kill()


class WorkerPool(ABC):
    """Spreads rollouts over workers, whose links a subclass opens, and finds the task that ends them.

    When a worker is lost nobody knows which of its rollouts ended it. So each is run again, on its own worker:
    an innocent one gets its result. A worker that ends while it runs a single rollout counts against that task, and a
    task that ends `MAX_DEATHS` of them is quarantined; a task that blocks one is quarantined at once.

    Args:
        make: `module:function` or a function that pickles; called in each worker with `arguments`, it returns the
            environment factory (sync or async; with the action as argument or without).
        arguments: Keyword arguments that pickle.
        n_workers: Workers that share rollouts, and at most as many that run a single one; the number of cores if None.
        stuck_after: Seconds without a sign of life after which a worker is killed; None waits without a limit.

    Attributes:
        dumps: Pickles what is sent.
        environments: Descriptions of the environments the workers make, each once; an evaluation compares them.
    """

    dumps: Callable[[Any], bytes] = staticmethod(pickle.dumps)

    def __init__(
        self,
        make: str | Callable[..., Any],
        arguments: Mapping[str, Any] | None = None,
        *,
        n_workers: int | None = None,
        stuck_after: float | None = STUCK_SECONDS,
    ) -> None:
        n_workers = (os.cpu_count() or 1) if n_workers is None else n_workers
        if not callable(make) and not isinstance(make, str):
            raise TypeError(f"make must be 'module:function' or a function, got {make!r}")
        if isinstance(make, str) and not all(make.partition(":")):
            raise ValueError(f"an environment factory is named 'module:function', got {make!r}")
        check_positive("workers", whole=True, n_workers=n_workers)
        check_positive("seconds", optional=True, stuck_after=stuck_after)
        self.make, self.arguments, self.stuck_after = make, dict(arguments or {}), stuck_after
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
        name = self.make if isinstance(self.make, str) else name_of(self.make)
        return call_name(name, keywords=self.arguments)

    @abstractmethod
    async def open_link(self) -> Link:
        """Start a process or an actor."""

    def _worker(self, number: int) -> Worker:
        return Worker(f"worker {number}", self)

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

    async def describe(self, action: Action | None) -> dict[str, Any] | None:
        """The description of an environment that a worker makes and does not run; see `LocalExecutor.describe`."""
        return None if self._closed else await self.workers[0].describe(action)

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
    # Ids are random by default, and every sample has its own seed.
    content: Any = action.model_dump(exclude={"task_context": {"id", SEED_FIELD}})
    return identity(content, leaf=repr)
