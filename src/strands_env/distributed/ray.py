"""`RayExecutor`: rollouts in Ray actors, on one machine or a cluster (extra `ray`)."""

from __future__ import annotations

import asyncio
import logging
import math
import pickle
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from strands_env.core import Action, StepResult
from strands_env.core.deadline import wrap_exit
from strands_env.core.rollout import LocalExecutor
from strands_env.distributed.errors import WorkerLostError, WorkerSetupError
from strands_env.distributed.messages import Recipe, make_runner, pack, unpack
from strands_env.distributed.pool import STUCK_SECONDS, PooledExecutor, positive_seconds
from strands_env.distributed.worker import BEAT_SECONDS
from strands_sglang.exceptions import install_command

logger = logging.getLogger(__name__)


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

    async def rollout(self, action: bytes, timeout: float | None) -> tuple[bytes, dict[str, Any] | None]:
        """The packed answer of a whole episode, and the description of the first environment."""
        assert self._runner is not None
        try:
            answer = pack(await self._runner.rollout(pickle.loads(action), timeout=timeout))
        except Exception as error:
            answer = pack(error)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            answer = pack(wrap_exit(error))
        return answer, self._environment

    async def alive(self) -> None:
        """Answers as soon as the event loop runs."""

    async def _describe(self, description: dict[str, Any]) -> None:
        self._environment = description


class RayExecutor(PooledExecutor):
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
        max_concurrency: Rollouts an actor runs at a time.
        init_options: Arguments of `ray.init` when it has to be called.
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
        max_concurrency: int = 1000,
        init_options: Mapping[str, Any] | None = None,
        stuck_after: float | None = STUCK_SECONDS,
    ) -> None:
        if n_workers < 1:
            raise ValueError(f"n_workers must be at least 1, got {n_workers!r}")
        self._stuck_after = positive_seconds("stuck_after", stuck_after)
        try:
            import ray
        except ImportError as error:
            raise ImportError(f"RayExecutor needs Ray: {install_command('ray')}") from error
        self._ray: Any = ray
        self._options = {"num_cpus": 0, **dict(actor_options or {}), "max_concurrency": max_concurrency + 1}  # `alive`
        self._init_options = dict(init_options or {})
        self._joining = asyncio.Lock()
        self._started_ray = False
        super().__init__(Recipe(make=make, arguments=dict(arguments or {})), n_workers)

    async def close(self) -> None:
        """End the actors this executor made, and Ray if it started it."""
        await super().close()
        if self._started_ray:
            await asyncio.to_thread(self._ray.shutdown)
            self._started_ray = False

    def _worker(self, number: int) -> _Actor:
        return _Actor(number, self._ray, self._make_actor, self.environments, self._stuck_after)

    async def _make_actor(self) -> Any:
        async with self._joining:  # actors are made side by side, Ray is started once
            if not self._ray.is_initialized():
                options = {"include_dashboard": False, "log_to_driver": False, **self._init_options}
                await asyncio.to_thread(self._ray.init, **options)
                self._started_ray = True
        return (
            self._ray.remote(_RolloutActor).options(**self._options).remote(self._ray.cloudpickle.dumps(self._recipe))
        )


class _Actor:
    """One actor, started at its first rollout and again after its death."""

    def __init__(
        self,
        number: int,
        ray: Any,
        make: Callable[[], Awaitable[Any]],
        environments: list[dict[str, Any]],
        stuck_after: float | None,
    ) -> None:
        self._name = f"actor {number}"
        self._ray = ray
        self._make = make
        self._environments = environments
        self._starting = asyncio.Lock()
        self._actor: Any = None
        self._beside = _Beside()
        self._stuck_after = stuck_after
        self._watching: asyncio.Task[None] | None = None
        self.load = 0

    async def rollout(self, action: Action, timeout: float | None) -> StepResult:
        self.load += 1
        try:
            actor = await self._start_all()
            return await self._run(actor, self._ray.cloudpickle.dumps(action), timeout)
        finally:
            self.load -= 1

    async def close(self) -> None:
        async with self._starting:
            self._kill(self._actor)
            self._actor = None
            if self._watching is not None:
                self._watching.cancel()

    async def _start_all(self) -> Any:
        async with self._starting:
            if self._actor is None:
                actor = await self._make()
                try:
                    if (failure := await actor.ready.remote()) is not None:
                        raise failure
                except BaseException as error:
                    self._kill(actor)
                    if isinstance(error, self._ray.exceptions.RayError):  # died at its start; another may live
                        raise WorkerLostError(self._name, _first_line(error)) from error
                    raise
                self._actor = actor
                self._beside = _Beside()
                if self._stuck_after is not None:
                    self._watching = asyncio.create_task(self._watch(actor, self._beside))
            return self._actor

    async def _watch(self, actor: Any, beside: _Beside) -> None:
        """Kill the actor when it does not respond for too long.

        The time is counted in beats of this event loop: while it is held up itself, answers wait unread.
        """
        assert self._stuck_after is not None
        beats = math.ceil(self._stuck_after / BEAT_SECONDS)
        while True:
            answer = asyncio.ensure_future(self._alive(actor))
            try:
                for _ in range(beats):
                    await asyncio.wait({answer}, timeout=BEAT_SECONDS)
                    if answer.done():
                        break
                else:
                    beside.was_stuck = True
                    logger.warning("actor=<%s> | it does not respond: killing it", self._name)
                    self._kill(actor)
                    return
            finally:
                answer.cancel()
            if not answer.result():
                return
            await asyncio.sleep(BEAT_SECONDS)

    async def _alive(self, actor: Any) -> bool:
        try:
            await actor.alive.remote()
        except self._ray.exceptions.RayError:  # its rollouts say so themselves
            return False
        return True

    async def _run(self, actor: Any, action: bytes, timeout: float | None) -> StepResult:
        beside = self._beside
        beside.running += 1
        reference = actor.rollout.remote(action, timeout)
        try:
            answer, environment = await reference
        except asyncio.CancelledError:
            with suppress(Exception):
                self._ray.cancel(reference)
            raise
        except self._ray.exceptions.RayTaskError:
            raise  # the actor answers whatever the rollout raises, so this is our own bug
        except self._ray.exceptions.RayError as error:  # the actor, its node or the answer on the way is lost
            beside.at_death = beside.at_death or beside.running
            if self._actor is actor:
                self._actor = None
                self._kill(actor)
            why = (
                f"it did not respond for {self._stuck_after:g} s and was killed"
                if beside.was_stuck
                else _first_line(error)
            )
            raise WorkerLostError(self._name, why, beside.at_death, beside.was_stuck) from error
        finally:
            beside.running -= 1
        if environment is not None and environment not in self._environments:
            self._environments.append(environment)
        return unpack(answer)

    def _kill(self, actor: Any) -> None:
        if actor is not None:
            with suppress(Exception):
                self._ray.kill(actor)


@dataclass(slots=True)
class _Beside:
    """Rollouts of one actor: how many run, how many did when it was lost, and whether it was killed for being stuck."""

    running: int = 0
    at_death: int = 0
    was_stuck: bool = False


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
