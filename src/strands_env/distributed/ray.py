"""`RayExecutor`: rollouts in Ray actors, on one machine or a cluster (extra `ray`)."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from strands_env.core import Action, StepResult
from strands_env.core.rollout import LocalExecutor
from strands_env.distributed.errors import WorkerLostError, WorkerSetupError
from strands_env.distributed.messages import Recipe, make_runner, run_packed, unpack
from strands_env.distributed.pool import STUCK_SECONDS, Worker, WorkerPool
from strands_env.distributed.worker import BEAT_SECONDS
from strands_sglang.exceptions import install_command

logger = logging.getLogger(__name__)

MAX_ROLLOUTS = 1000
"""Rollouts an actor runs at a time."""


class _RolloutActor:
    """The body of an actor. Ray gives an actor with async methods an event loop of its own.

    The factory is made in `ready`, because to Ray a failing constructor looks like the actor's death.
    """

    def __init__(self, recipe: bytes) -> None:
        self._recipe = recipe
        self._runner: LocalExecutor | None = None
        self._environment: dict[str, Any] | None = None

    async def ready(self) -> WorkerSetupError | None:
        """Make the environment factory; its error, or None."""
        try:
            self._runner = make_runner(pickle.loads(self._recipe), self._describe)
        except BaseException as error:
            return WorkerSetupError.from_exception(error)
        return None

    async def rollout(self, request: bytes) -> tuple[bytes, dict[str, Any] | None]:
        """The packed answer of a whole episode, and the description of the first environment."""
        assert self._runner is not None
        return await run_packed(self._runner, request), self._environment

    async def alive(self) -> None:
        """Answers as soon as the event loop runs."""

    async def _describe(self, description: dict[str, Any]) -> None:
        self._environment = description


class RayExecutor(WorkerPool):
    """Runs rollouts in Ray actors. Joins the cluster one is connected to, or starts Ray on this machine.

    A new rollout goes to the actor with the fewest. When an actor or its node dies another takes its place, and each of
    its rollouts is run again with an actor of its own; a task that ends two of those is quarantined (`WorkerPool`).
    Code that holds an actor's interpreter stops all its rollouts: an actor that does not respond for `stuck_after`
    seconds is killed, and a task that blocks one of its own is quarantined. Closing ends these actors, and Ray only if
    this executor started it.

    Args:
        make: `module:function` or a function that pickles; called in each actor with `arguments`, it returns the
            environment factory.
        arguments: Keyword arguments that pickle.
        n_workers: Number of actors.
        actor_options: Ray's options of an actor, such as `num_cpus`, `resources`, `runtime_env`.
        stuck_after: Seconds without a sign of life after which an actor is killed; None waits for ever. Make it longer
            than whatever blocks the event loop on purpose, such as loading a model in the environment factory.

    Raises:
        ImportError: Ray is not installed.
        ValueError: `n_workers` or `stuck_after` is not positive.
    """

    def __init__(
        self,
        make: str | Callable[..., Any],
        arguments: Mapping[str, Any] | None = None,
        *,
        n_workers: int = 2,
        actor_options: Mapping[str, Any] | None = None,
        stuck_after: float | None = STUCK_SECONDS,
    ) -> None:
        try:
            import ray
        except ImportError as error:
            raise ImportError(f"RayExecutor needs Ray: {install_command('ray')}") from error
        self._ray: Any = ray
        self._options = {"num_cpus": 0, "max_concurrency": MAX_ROLLOUTS + 1, **dict(actor_options or {})}  # 1: `alive`
        self._joining = asyncio.Lock()
        self._started_ray = False
        super().__init__(Recipe(make=make, arguments=dict(arguments or {})), n_workers, stuck_after)

    async def close(self) -> None:
        """End the actors this executor made, and Ray if it started it."""
        await super().close()
        if self._started_ray:
            await asyncio.to_thread(self._ray.shutdown)
            self._started_ray = False

    def _worker(self, number: int) -> _Actor:
        return _Actor(self._ray, self._make_actor, f"actor {number}", self._stuck_after, self.environments)

    async def _make_actor(self) -> Any:
        async with self._joining:  # actors are made side by side, Ray is started once
            if not self._ray.is_initialized():
                await asyncio.to_thread(self._ray.init, include_dashboard=False, log_to_driver=False)
                self._started_ray = True
        return (
            self._ray.remote(_RolloutActor).options(**self._options).remote(self._ray.cloudpickle.dumps(self._recipe))
        )


class _Actor(Worker):
    """One actor, started at its first rollout and again after its death."""

    def __init__(self, ray: Any, make: Callable[[], Awaitable[Any]], *shared: Any) -> None:
        super().__init__(*shared)
        self._ray = ray
        self._make = make
        self._life: _Life | None = None
        self._watching: asyncio.Task[None] | None = None

    async def rollout(self, action: Action, timeout: float | None) -> StepResult:
        self.load += 1
        try:
            async with self._starting:
                life = self._life = self._life or await self._start()
            return await self._run(life, self._ray.cloudpickle.dumps((action, timeout)))
        finally:
            self.load -= 1

    async def close(self) -> None:
        async with self._starting:
            if self._life is not None:
                self._kill(self._life.actor)
            self._life = None
            if self._watching is not None:
                self._watching.cancel()

    async def _start(self) -> _Life:
        actor = await self._make()
        try:
            if (failure := await actor.ready.remote()) is not None:
                raise failure
        except BaseException as error:
            self._kill(actor)
            if isinstance(error, self._ray.exceptions.RayError):  # died at its start; another may live
                raise WorkerLostError(self._name, _first_line(error)) from error
            raise
        life = _Life(actor=actor)
        if self._stuck_after is not None:
            self._watching = asyncio.create_task(self._watch(life, self._stuck_after))
        return life

    async def _watch(self, life: _Life, stuck_after: float) -> None:
        """Kill the actor when it does not respond for too long.

        The time is counted in beats of this event loop: while it is held up itself, answers wait unread.
        """
        silent_beats = 0
        answer: asyncio.Future[None] | None = None
        try:
            while silent_beats * BEAT_SECONDS < stuck_after:
                answer = answer or asyncio.ensure_future(life.actor.alive.remote())
                await asyncio.wait({answer}, timeout=BEAT_SECONDS)
                if not answer.done():
                    silent_beats += 1
                elif answer.exception() is not None:  # the actor is lost: its rollouts say so themselves
                    return
                else:
                    silent_beats, answer = 0, None
                    await asyncio.sleep(BEAT_SECONDS)
        finally:
            if answer is not None:
                answer.cancel()
        life.was_stuck = True
        logger.warning("actor=<%s> | it does not respond: killing it", self._name)
        self._kill(life.actor)

    async def _run(self, life: _Life, request: bytes) -> StepResult:
        life.running += 1
        reference = life.actor.rollout.remote(request)
        try:
            answer, environment = await reference
        except asyncio.CancelledError:
            with suppress(Exception):  # the actor may be gone: there is nothing left to cancel
                self._ray.cancel(reference)
            raise
        except self._ray.exceptions.RayTaskError:
            raise  # the actor answers whatever the rollout raises, so this is our own bug
        except self._ray.exceptions.RayError as error:  # the actor, its node or the answer on the way is lost
            life.at_death = life.at_death or life.running
            if self._life is life:
                self._life = None
                self._kill(life.actor)
            silent = f"it did not respond for {self._stuck_after} s and was killed"
            why = silent if life.was_stuck else _first_line(error)
            raise WorkerLostError(self._name, why, life.at_death, life.was_stuck) from error
        finally:
            life.running -= 1
        self._note(environment)
        return unpack(answer)

    def _kill(self, actor: Any) -> None:
        with suppress(Exception):
            self._ray.kill(actor)


@dataclass(slots=True)
class _Life:
    """An actor from its start to its death; `at_death` counts the rollouts it had when it was lost."""

    actor: Any
    running: int = 0
    at_death: int = 0
    was_stuck: bool = False


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
