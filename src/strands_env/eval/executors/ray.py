"""`RayExecutor`: rollouts in Ray actors, on one machine or a cluster (extra `ray`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from strands_env.eval.executors.pool import STUCK_SECONDS, Link, WorkerPool
from strands_env.eval.executors.worker import RolloutHost
from strands_sglang.exceptions import install_command

MAX_ROLLOUTS = 1000
"""Rollouts an actor runs at a time."""


class RayExecutor(WorkerPool):
    """Runs rollouts in Ray actors. Joins the cluster one is connected to, or starts Ray on this machine.

    A new rollout goes to the actor with the fewest. When an actor or its node dies another takes its place, and each of
    its rollouts is run again on its own actor; a task that ends two of those is quarantined (`WorkerPool`).
    Code that holds an actor's interpreter stops all its rollouts: an actor that does not respond for `stuck_after`
    seconds is killed, and a task that blocks one of its own is quarantined. Closing ends these actors, and Ray only if
    this executor started it.

    Args:
        make: `module:function` or a function that pickles; called in each actor with `arguments`, it returns the
            environment factory.
        arguments: Keyword arguments that pickle.
        n_workers: Number of actors.
        actor_options: Ray's options of an actor, such as `num_cpus`, `resources`, `runtime_env`.
        stuck_after: Seconds without a sign of life after which an actor is killed; None waits without a limit. Make it
            longer than whatever blocks the event loop on purpose, such as loading a model in the environment factory.

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
        self.dumps = ray.cloudpickle.dumps
        self._options = {"num_cpus": 0, "max_concurrency": MAX_ROLLOUTS + 1, **dict(actor_options or {})}  # 1: `alive`
        self._joining = asyncio.Lock()
        self._started_ray = False
        super().__init__(make, arguments, n_workers=n_workers, stuck_after=stuck_after)

    async def close(self) -> None:
        """End the actors this executor made, and Ray if it started it."""
        await super().close()
        if self._started_ray:
            await asyncio.to_thread(self._ray.shutdown)
            self._started_ray = False

    async def open_link(self) -> _ActorLink:
        """Start an actor."""
        async with self._joining:  # actors are made side by side, Ray is started once
            if not self._ray.is_initialized():
                await asyncio.to_thread(self._ray.init, include_dashboard=False, log_to_driver=False)
                self._started_ray = True
        # Ray gives an actor with async methods its own event loop.
        return _ActorLink(self._ray, self._ray.remote(RolloutHost).options(**self._options).remote())


class _ActorLink(Link):
    """A Ray actor."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor

    async def ask(self, method: str, *arguments: bytes) -> Any:
        reference = getattr(self._actor, method).remote(*arguments)
        try:
            return await reference
        except asyncio.CancelledError:
            with suppress(Exception):  # the actor may be gone: there is nothing left to cancel
                self._ray.cancel(reference)
            raise
        except self._ray.exceptions.RayTaskError:
            raise  # the actor answers whatever a rollout raises, so this is our own bug
        except self._ray.exceptions.RayError as error:  # the actor, its node or the answer on the way is lost
            raise ConnectionError(str(error).partition("\n")[0]) from error

    async def kill(self) -> None:
        with suppress(Exception):
            self._ray.kill(self._actor)

    async def close(self, seconds: float = 0.0) -> None:
        await self.kill()
