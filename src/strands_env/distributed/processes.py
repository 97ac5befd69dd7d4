"""`ProcessExecutor`: rollouts in worker processes of this machine, each with its own event loop.

Not on `concurrent.futures` or loky, whose workers run one call at a time: an agent loop waits most of its time, so a
worker here runs hundreds of rollouts at once, cancels single ones, and never outlives its parent. In those pools a
worker's death also breaks the whole pool, or restarts it with every call in it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import pickle
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from strands_env.core import Action, StepResult
from strands_env.distributed.errors import WorkerLostError
from strands_env.distributed.messages import read_message, unpack, write_message
from strands_env.distributed.pool import PooledExecutor
from strands_env.distributed.recipe import Recipe

logger = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 10.0
"""How long a worker may take to clean up its environments before it is killed."""


class ProcessExecutor(PooledExecutor):
    """Runs rollouts in worker processes. An agent loop is bound by one core, so this is how to use several.

    A worker takes any number of rollouts at once; a new one goes to the worker with the fewest. When a worker dies
    another takes its place, and each of its rollouts is run again with a worker of its own; a task that ends two of
    those is quarantined (`WorkerPool`). When this process dies, however it does, the workers clean up and end.

    Args:
        make: `module:function` or a function that pickles; called in each worker with `arguments`, it returns the
            environment factory.
        arguments: Keyword arguments that pickle.
        n_workers: Number of processes; the number of cores if None.

    Raises:
        ValueError: `n_workers` is not positive, or `make` is not a dotted path.
    """

    def __init__(
        self,
        make: str | Callable[..., Any],
        arguments: Mapping[str, Any] | None = None,
        *,
        n_workers: int | None = None,
    ) -> None:
        if n_workers is not None and n_workers < 1:
            raise ValueError(f"n_workers must be at least 1 or None for one a core, got {n_workers!r}")
        super().__init__(Recipe(make=make, arguments=dict(arguments or {})), n_workers or os.cpu_count() or 1)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that run."""
        return [worker.pid for worker in self._pool.workers if isinstance(worker, _Worker) and worker.pid is not None]

    def _worker(self, number: int) -> _Worker:
        return _Worker(number, self._recipe, self.environments)


class _Worker:
    """One process, started at its first rollout and again after its death."""

    def __init__(self, number: int, recipe: Recipe, environments: list[dict[str, Any]]) -> None:
        self._name = f"worker {number}"
        self._recipe = recipe
        self._environments = environments
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[StepResult]] = {}
        self._starting = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self.load = 0

    @property
    def pid(self) -> int | None:
        """Its process id, None while it does not run."""
        return self._process.pid if self._process is not None and self._writer is not None else None

    async def rollout(self, action: Action, timeout: float | None) -> StepResult:
        self.load += 1
        try:
            payload = pickle.dumps((action, timeout), protocol=pickle.HIGHEST_PROTOCOL)
            async with self._starting:
                if self._writer is None:
                    await self._start()
            number = next(self._numbers)
            future: asyncio.Future[StepResult] = asyncio.get_running_loop().create_future()
            writer = self._writer
            if writer is None:
                raise WorkerLostError(self._name, "it ended before the rollout began")
            self._waiting[number] = future
            write_message(writer, ("run", number, payload))
            try:
                return await future
            except asyncio.CancelledError:
                with suppress(ConnectionError):
                    write_message(writer, ("cancel", number, None))
                raise
            finally:
                self._waiting.pop(number, None)
        finally:
            self.load -= 1

    async def close(self) -> None:
        async with self._starting:
            if self._writer is not None:
                self._writer.close()
            await self._end("it was closed")

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            ours.setblocking(False)
            # No stdin: Ctrl-C is the parent's business, and a worker ends when the socket closes.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "strands_env.distributed.worker",
                str(theirs.fileno()),
                str(logging.getLogger().getEffectiveLevel()),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            write_message(writer, self._recipe)
            kind, _, failure = await read_message(reader)
        except BaseException as error:
            writer.close()
            await self._end("it failed to start")
            if isinstance(error, EOFError):
                raise WorkerLostError(self._name, f"it ended at its start, {self._status()}") from error
            raise
        if kind == "setup_error":
            writer.close()
            await self._end("it failed to start")
            raise failure
        self._writer = writer
        self._reading = asyncio.create_task(self._read(reader, writer))
        logger.debug("worker=<%s>, pid=<%d> | worker started", self._name, self._process.pid)

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                kind, number, payload = await read_message(reader)
                if kind == "environment":  # comes before every answer of the worker
                    self._describe(payload)
                    continue
                future = self._waiting.get(number)
                if future is None or future.done():
                    continue
                try:
                    if kind != "answer":
                        raise WorkerLostError(self._name, f"it gave up the rollout ({kind})")
                    future.set_result(unpack(payload))
                except Exception as error:
                    future.set_exception(error)
        except EOFError:
            pass
        finally:
            self._writer = None
            writer.close()
            if self._process is not None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._process.wait(), 1.0)
            waiting = [future for future in self._waiting.values() if not future.done()]
            lost = WorkerLostError(self._name, self._status(), len(waiting))
            if waiting:
                logger.warning(
                    "worker=<%s>, rollouts=<%d>, status=<%s> | worker lost", self._name, len(waiting), lost.reason
                )
            for future in waiting:
                future.set_exception(lost)

    def _describe(self, payload: bytes) -> None:
        description: dict[str, Any] = pickle.loads(payload)
        if description not in self._environments:
            self._environments.append(description)

    async def _end(self, why: str) -> None:
        """Wait for the process, and kill it when it takes too long."""
        self._writer = None
        if self._process is not None and self._process.returncode is None:
            try:
                await asyncio.wait_for(self._process.wait(), SHUTDOWN_SECONDS)
            except TimeoutError:
                logger.warning("worker=<%s>, pid=<%d>, reason=<%s> | killing it", self._name, self._process.pid, why)
                with suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()
        if self._reading is not None:
            await asyncio.wait({self._reading})
            self._reading = None

    def _status(self) -> str:
        code = None if self._process is None else self._process.returncode
        if code is None:
            return "the connection to it broke"
        return f"killed by signal {-code}" if code < 0 else f"it ended with status {code}"
