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
import signal
import socket
import sys
import tempfile
from contextlib import suppress
from typing import IO, Any

from strands_env.core.termination import user_lines
from strands_env.eval.executors.pool import Link, WorkerPool
from strands_env.eval.executors.worker import DUMP_SIGNAL, SHUTDOWN_SECONDS, read_message, write_message

logger = logging.getLogger(__name__)

DUMP_SECONDS = 1.0
"""Seconds in which a stuck worker writes its stacks."""
MAX_STACKS = 1 << 16
"""Bytes of stacks that are read."""


class ProcessExecutor(WorkerPool):
    """Runs rollouts in worker processes. An agent loop is bound by one core, so this is how to use several.

    A worker takes any number of rollouts at once; a new one goes to the worker with the fewest. When a worker dies
    another takes its place, and each of its rollouts is run again on its own worker; a task that ends two of
    those is quarantined (`WorkerPool`).

    Code that holds the interpreter, such as a regular expression that backtracks forever, stops every rollout of its
    process, and no deadline inside can pass. A worker that is silent for `stuck_after` seconds is killed, and a task
    that blocks its own worker is quarantined: its sample is lost to infrastructure, with the line that held the
    interpreter in its error. When this process dies, however it does, the workers clean up and end; one that cannot is
    killed with its process group.

    Args:
        make: `module:function` or a function that pickles; called in each worker with `arguments`, it returns the
            environment factory.
        arguments: Keyword arguments that pickle.
        n_workers: Number of processes; the number of cores if None.
        stuck_after: Seconds without a sign of life after which a worker is killed; None waits without a limit. Make it
            longer than whatever blocks the event loop on purpose, such as loading a model in the environment factory.

    Raises:
        ValueError: `n_workers` or `stuck_after` is not positive, or `make` is not a dotted path.
    """

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that run."""
        links = [worker.link for worker in self.workers]
        return [link.process.pid for link in links if isinstance(link, _ProcessLink) and not link.is_lost]

    async def open_link(self) -> _ProcessLink:
        """Start a process."""
        ours, theirs = socket.socketpair()
        life, parent_end = os.pipe()
        stacks = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        passed = [theirs.fileno(), life, stacks.fileno()]
        try:
            ours.setblocking(False)
            # No stdin: Ctrl-C is the parent's business, and a worker ends when the socket closes.
            process = await asyncio.create_subprocess_exec(
                *(
                    sys.executable,
                    "-c",
                    "from strands_env.eval.executors.worker import main; main()",
                    *map(str, passed),
                ),
                str(logging.getLogger().getEffectiveLevel()),
                pass_fds=passed,
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
            )
        except BaseException:
            ours.close()
            stacks.close()
            os.close(parent_end)
            raise
        finally:
            theirs.close()
            os.close(life)
        return _ProcessLink(process, *await asyncio.open_connection(sock=ours), parent_end, stacks)


class _ProcessLink(Link):
    """A worker process.

    Args:
        life: The end of a pipe that only this process holds; the worker sees it close.
        stacks: The file that takes the worker's stacks.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        life: int,
        stacks: IO[bytes],
    ) -> None:
        self.process = process
        self._writer, self._life, self._stacks = writer, life, stacks
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._reading = asyncio.create_task(self._read(reader))

    async def ask(self, method: str, *arguments: bytes) -> Any:
        if self.is_lost:
            raise ConnectionError(self._status())
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        write_message(self._writer, (number, method, arguments))
        try:
            return await self._waiting[number]
        except asyncio.CancelledError:
            with suppress(ConnectionError):
                write_message(self._writer, (number, "cancel", ()))
            raise
        finally:
            self._waiting.pop(number, None)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                number, value = await read_message(reader)
                future = self._waiting.get(number)  # cancelled ones have left: their late answer is dropped
                if future is not None and not future.done():
                    future.set_result(value)
        except EOFError:
            pass
        finally:
            self.is_lost = True
            self._writer.close()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), 1.0)
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(ConnectionError(self._status()))

    async def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(DUMP_SIGNAL)  # its stacks are written even while the interpreter is held
            await asyncio.sleep(DUMP_SECONDS)
        self._kill_group()

    async def close(self, seconds: float = SHUTDOWN_SECONDS) -> None:
        self._writer.close()
        if self.process.returncode is None:
            try:
                await asyncio.wait_for(self.process.wait(), seconds)
            except TimeoutError:
                if seconds:
                    logger.warning("pid=<%d> | the worker does not end: killing it", self.process.pid)
                self._kill_group()
                await self.process.wait()
        await asyncio.wait({self._reading})
        if self.process.returncode != 0:  # what it left behind without a cleanup
            self._kill_group()
        self._stacks.close()
        os.close(self._life)

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)  # it leads its own session, and so the group

    def _status(self) -> str:
        code = self.process.returncode
        if code is None:
            return "the connection to it broke"
        return f"killed by signal {-code}" if code < 0 else f"it ended with status {code}"

    def user_lines(self) -> list[str]:
        if self._stacks.closed:
            return []
        self._stacks.seek(0)
        return user_lines(self._stacks.read(MAX_STACKS).decode(errors="replace"))
