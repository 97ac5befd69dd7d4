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
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Any

from strands_env.core import Action, StepResult
from strands_env.core.termination import user_lines
from strands_env.distributed.errors import WorkerLostError
from strands_env.distributed.messages import Recipe, read_message, unpack, write_message
from strands_env.distributed.pool import STUCK_SECONDS, Worker, WorkerPool
from strands_env.distributed.worker import BEAT_SECONDS, DUMP_SIGNAL, SHUTDOWN_SECONDS

logger = logging.getLogger(__name__)

DUMP_SECONDS = 1.0
"""Seconds in which a stuck worker writes its stacks."""
MAX_STACKS = 1 << 16
"""Bytes of stacks that are read."""


class ProcessExecutor(WorkerPool):
    """Runs rollouts in worker processes. An agent loop is bound by one core, so this is how to use several.

    A worker takes any number of rollouts at once; a new one goes to the worker with the fewest. When a worker dies
    another takes its place, and each of its rollouts is run again with a worker of its own; a task that ends two of
    those is quarantined (`WorkerPool`).

    Code that holds the interpreter, such as a regular expression that backtracks for ever, stops every rollout of its
    process, and no deadline inside can pass. A worker that is silent for `stuck_after` seconds is killed, and a task
    that blocks a worker of its own is quarantined: its sample is lost to infrastructure, with the line that held the
    interpreter in its error. When this process dies, however it does, the workers clean up and end; one that cannot is
    killed with its process group.

    Args:
        make: `module:function` or a function that pickles; called in each worker with `arguments`, it returns the
            environment factory.
        arguments: Keyword arguments that pickle.
        n_workers: Number of processes; the number of cores if None.
        stuck_after: Seconds without a sign of life after which a worker is killed; None waits for ever. Make it longer
            than whatever blocks the event loop on purpose, such as loading a model in the environment factory.

    Raises:
        ValueError: `n_workers` or `stuck_after` is not positive, or `make` is not a dotted path.
    """

    def __init__(
        self,
        make: str | Callable[..., Any],
        arguments: Mapping[str, Any] | None = None,
        *,
        n_workers: int | None = None,
        stuck_after: float | None = STUCK_SECONDS,
    ) -> None:
        n_workers = (os.cpu_count() or 1) if n_workers is None else n_workers
        super().__init__(Recipe(make=make, arguments=dict(arguments or {})), n_workers, stuck_after)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that run."""
        return [worker.pid for worker in self.workers if isinstance(worker, _Worker) and worker.pid is not None]

    def _worker(self, number: int) -> _Worker:
        return _Worker(self._recipe, f"worker {number}", self._stuck_after, self.environments)


class _Worker(Worker):
    """One process, started at its first rollout and again after its death."""

    def __init__(self, recipe: Recipe, *shared: Any) -> None:
        super().__init__(*shared)
        self._recipe = recipe
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[StepResult]] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._life: int | None = None
        self._stacks: IO[bytes] | None = None
        self._silent_beats = 0
        self._was_stuck = False

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
            await self._end()

    async def _start(self) -> None:
        self._forget()
        ours, theirs = socket.socketpair()
        life, self._life = os.pipe()
        self._stacks = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        passed = [theirs.fileno(), life, self._stacks.fileno()]
        try:
            ours.setblocking(False)
            # No stdin: Ctrl-C is the parent's business, and a worker ends when the socket closes.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "strands_env.distributed.worker",
                *map(str, passed),
                str(logging.getLogger().getEffectiveLevel()),
                pass_fds=passed,
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(life)
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            write_message(writer, self._recipe)
            kind, _, failure = await read_message(reader)
        except BaseException as error:
            writer.close()
            await self._end()
            if isinstance(error, EOFError):
                raise WorkerLostError(self._name, f"it ended at its start, {self._status()}") from error
            raise
        if kind == "setup_error":
            writer.close()
            await self._end()
            raise failure
        self._writer = writer
        self._silent_beats, self._was_stuck = 0, False
        self._reading = asyncio.create_task(self._read(reader, writer))
        logger.debug("worker=<%s>, pid=<%d> | worker started", self._name, self._process.pid)

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        watching = asyncio.create_task(self._watch())
        try:
            while True:
                kind, number, payload = await read_message(reader)
                self._silent_beats = 0
                if kind == "alive":
                    continue
                if kind == "environment":  # comes before every answer of the worker
                    self._note(pickle.loads(payload))
                    continue
                future = self._waiting.get(number)  # cancelled ones have left: their late answer is dropped
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
            watching.cancel()
            writer.close()
            if self._process is not None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._process.wait(), 1.0)
            waiting = [future for future in self._waiting.values() if not future.done()]
            lost = WorkerLostError(self._name, self._status(), len(waiting), self._was_stuck)
            if waiting:
                logger.warning(
                    "worker=<%s>, rollouts=<%d>, status=<%s> | worker lost", self._name, len(waiting), lost.reason
                )
            for future in waiting:
                future.set_exception(lost)

    async def _watch(self) -> None:
        """Kill the worker when it is silent for too long.

        Silence is counted in beats of this event loop: while it is held up itself, messages wait unread.
        """
        while self._stuck_after is None or self._silent_beats * BEAT_SECONDS < self._stuck_after:
            await asyncio.sleep(BEAT_SECONDS)
            self._silent_beats += 1
        assert self._process is not None
        self._was_stuck = True
        logger.warning("worker=<%s>, pid=<%d> | it does not respond: killing it", self._name, self._process.pid)
        with suppress(ProcessLookupError):
            self._process.send_signal(DUMP_SIGNAL)  # its stacks are written even while the interpreter is held
            await asyncio.sleep(DUMP_SECONDS)
        self._kill()

    def _kill(self) -> None:
        """Kill the process group."""
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)  # it leads its own session, and so the group

    async def _end(self) -> None:
        """Wait for the process, and kill it when it takes too long."""
        self._writer = None
        if self._process is not None and self._process.returncode is None:
            try:
                await asyncio.wait_for(self._process.wait(), SHUTDOWN_SECONDS)
            except TimeoutError:
                logger.warning("worker=<%s>, pid=<%d> | it does not end: killing it", self._name, self._process.pid)
                self._kill()
                await self._process.wait()
        if self._reading is not None:
            await asyncio.wait({self._reading})
            self._reading = None
        self._forget()

    def _forget(self) -> None:
        """Free what belongs to the last process; what one that did not clean up left behind is killed."""
        if self._process is not None and self._process.returncode != 0:
            self._kill()
        self._process = None
        if self._stacks is not None:
            self._stacks.close()
            self._stacks = None
        if self._life is not None:
            os.close(self._life)
            self._life = None

    def _status(self) -> str:
        """The end of the process in words, with the lines of the user's code that it was in, if it left them."""
        code = None if self._process is None else self._process.returncode
        if self._was_stuck:
            how = f"it did not respond for {self._stuck_after:g} s and was killed"
        elif code is None:
            how = "the connection to it broke"
        else:
            how = f"killed by signal {-code}" if code < 0 else f"it ended with status {code}"
        if self._stacks is not None:
            self._stacks.seek(0)
            if lines := user_lines(self._stacks.read(MAX_STACKS).decode(errors="replace")):
                how += f", at {'; '.join(lines)}"
        return how
