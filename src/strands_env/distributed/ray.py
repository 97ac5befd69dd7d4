"""`RayExecutor`: rollouts in Ray actors, on one machine or a cluster (extra `ray`)."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from strands_env.core import Action, StepResult
from strands_env.core.deadline import escaped
from strands_env.core.rollout import LocalExecutor
from strands_env.distributed.answers import pack, unpack
from strands_env.distributed.errors import WorkerLostError, WorkerSetupError
from strands_env.distributed.recipe import Recipe, make_runner

logger = logging.getLogger(__name__)


class _RolloutActor:
    """What runs in an actor. Ray gives an actor with async methods an event loop of its own.

    Making the factory may fail, and the constructor must not: its failure looks to Ray like the actor's death.
    """

    def __init__(self, recipe: bytes) -> None:
        self._recipe = recipe
        self._runner: LocalExecutor | None = None
        self._environment: dict[str, Any] | None = None

    async def ready(self) -> WorkerSetupError | None:
        """Make the environment factory; what went wrong, or None."""
        try:
            self._runner = make_runner(pickle.loads(self._recipe), self._describe)
        except BaseException as error:
            return WorkerSetupError.told_by(error)
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
            answer = pack(escaped(error))
        return answer, self._environment

    async def _describe(self, description: dict[str, Any]) -> None:
        self._environment = description


class RayExecutor:
    """Runs rollouts in Ray actors. Joins the cluster one is connected to, or starts Ray on this machine.

    A new rollout goes to the actor with the fewest. When an actor dies its rollouts raise `WorkerLostError`, and
    another actor takes its place. Closing ends these actors, and Ray only if this executor started it.

    Args:
        make: `module:function` or a function that pickles; called in each actor with `arguments`, it returns the
            environment factory.
        arguments: Keyword arguments that pickle.
        n_workers: Number of actors.
        actor_options: Ray's options of an actor, such as `num_cpus`, `resources`, `runtime_env`.
        max_concurrency: Rollouts an actor runs at a time.
        init_options: Arguments of `ray.init` when it has to be called.

    Raises:
        ImportError: Ray is not installed.
        ValueError: `n_workers` is not positive.

    Attributes:
        environments: Descriptions of the environments the actors make, each once; an evaluation compares them.
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
    ) -> None:
        if n_workers < 1:
            raise ValueError(f"n_workers must be at least 1, got {n_workers!r}")
        try:
            import ray
        except ImportError as error:
            raise ImportError("RayExecutor needs Ray: pip install 'strands-rollout[ray]'") from error
        self._ray: Any = ray
        self._recipe = Recipe(make=make, arguments=dict(arguments or {}))
        self._options = {"num_cpus": 0, **dict(actor_options or {}), "max_concurrency": max_concurrency}
        self._init_options = dict(init_options or {})
        self.environments: list[dict[str, Any]] = []
        self._actors: list[Any] = [None] * n_workers
        self._loads = [0] * n_workers
        self._locks = [asyncio.Lock() for _ in range(n_workers)]
        self._joining = asyncio.Lock()
        self._started_ray = False
        self._closed = False

    @property
    def env_factory_name(self) -> str:
        """The function that makes the environment factory, with its arguments; part of a run's configuration."""
        return self._recipe.name

    async def rollout(self, action: Action, *, timeout: float | None = None) -> StepResult:
        """Run one rollout on the least busy actor.

        Args:
            action: The task.
            timeout: Seconds for everything before the cleanup.

        Raises:
            EpisodeTimeoutError: They passed.
            WorkerLostError: The actor died meanwhile.
            WorkerSetupError: The environment factory cannot be made there.
        """
        if self._closed:
            raise RuntimeError("this executor is closed: make another one")
        place = min(range(len(self._actors)), key=self._loads.__getitem__)
        self._loads[place] += 1
        try:
            actor = await self._actor(place)
            reference = actor.rollout.remote(self._ray.cloudpickle.dumps(action), timeout)
            try:
                answer, environment = await reference
            except asyncio.CancelledError:
                with suppress(Exception):
                    self._ray.cancel(reference)
                raise
            except self._ray.exceptions.RayTaskError:
                raise  # the actor answers whatever the rollout raises, so this is a fault of ours
            except self._ray.exceptions.RayError as error:  # the actor, its node or the answer on the way is lost
                if self._actors[place] is actor:
                    self._actors[place] = None
                    with suppress(Exception):
                        self._ray.kill(actor)
                raise WorkerLostError(f"actor {place}", str(error).partition("\n")[0]) from error
            if environment is not None and environment not in self.environments:
                self.environments.append(environment)
            return unpack(answer)
        finally:
            self._loads[place] -= 1

    async def close(self) -> None:
        """End the actors this executor made, and Ray if it started it."""
        self._closed = True
        for place, actor in enumerate(self._actors):
            if actor is not None:
                with suppress(Exception):
                    self._ray.kill(actor)
                self._actors[place] = None
        if self._started_ray:
            await asyncio.to_thread(self._ray.shutdown)
            self._started_ray = False

    async def __aenter__(self) -> RayExecutor:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _actor(self, place: int) -> Any:
        async with self._locks[place]:
            if self._actors[place] is None:
                async with self._joining:  # places are filled side by side, Ray is started once
                    await asyncio.to_thread(self._init)
                recipe = self._ray.cloudpickle.dumps(self._recipe)
                actor = self._ray.remote(_RolloutActor).options(**self._options).remote(recipe)
                try:
                    if (failure := await actor.ready.remote()) is not None:
                        raise failure
                except BaseException as error:
                    with suppress(Exception):
                        self._ray.kill(actor)
                    if isinstance(error, self._ray.exceptions.RayError):  # died at its start; another may live
                        raise WorkerLostError(f"actor {place}", str(error).partition("\n")[0]) from error
                    raise
                self._actors[place] = actor
            return self._actors[place]

    def _init(self) -> None:
        if not self._ray.is_initialized():
            options = {"include_dashboard": False, "log_to_driver": False, **self._init_options}
            self._ray.init(**options)
            self._started_ray = True
