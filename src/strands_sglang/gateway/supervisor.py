"""The parent of several workers: it owns the listening socket, and starts a worker again that died."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ..command_line import CommandError
from .state import lock_folder
from .workers import Worker, readable

logger = logging.getLogger(__name__)

Work = Callable[[Worker, socket.socket, Callable[[Any], None]], None]
"""Serves as a worker until SIGTERM. It tells the model's name when it listens, and at its end how many sessions and
sampled tokens it had in memory only."""

_SECONDS_TO_END = 20.0
_PAUSE = 1.0  # seconds after the first start that fails; the model server, say, may be starting again, too
_LONGEST_PAUSE = 30.0


async def supervise(
    work: Work,
    count: int,
    *,
    listener: socket.socket,
    state: str | None,
    tell: Callable[[Any], None],
    method: str = "spawn",
) -> None:
    """Serve with several workers until SIGINT or SIGTERM.

    Args:
        work: To be pickled.
        tell: Told what a worker tells, of all of them together.
        method: How processes are started. Not forked: threads and what a tokenizer has begun do not live on in a copy.

    Raises:
        CommandError: A worker cannot start.
        StateError: Another gateway uses the state folder.
    """
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="strands-gateway-")))
        # As a connection, a descriptor goes to children that are started with it, which have it as long as they live.
        lock = None if state is None else stack.enter_context(Connection(lock_folder(Path(state))))
        children = [
            _Child(method, work, Worker(index=index, count=count, folder=folder), listener, lock)
            for index in range(count)
        ]
        running: list[asyncio.Task[None]] = []
        try:
            models = await asyncio.gather(*[child.start() for child in children])
            tell(models[0])
            running = [asyncio.create_task(child.keep_alive()) for child in children]
            await stop.wait()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*[child.end() for child in children])
        tell((sum(child.lost[0] for child in children), sum(child.lost[1] for child in children)))


class _Child:
    """A worker's process.

    Attributes:
        lost: Sessions and sampled tokens that it had in memory only, which it tells when it ends.
    """

    def __init__(
        self, method: str, work: Work, worker: Worker, listener: socket.socket, lock: Connection | None
    ) -> None:
        self._context: Any = multiprocessing.get_context(method)
        self._work, self._worker, self._listener, self._lock = work, worker, listener, lock
        self._process: Any = None
        self._pipe: Connection | None = None
        self.lost = 0, 0

    async def start(self) -> str:
        """Start it, and wait until it listens; the model's name."""
        self._pipe, pipe = self._context.Pipe(duplex=False)
        self._process = self._context.Process(
            target=_run_worker, args=(self._work, self._worker, self._listener, self._lock, pipe)
        )
        self._process.start()
        pipe.close()
        message = await self._receive()
        if isinstance(message, CommandError):
            raise message
        if message is None:
            await asyncio.to_thread(self._process.join)
            raise CommandError(f"worker {self._worker.index} ended with status {self._process.exitcode} at its start")
        self.lost = 0, 0
        return str(message)

    async def _receive(self) -> Any:
        """What the process tells next; None when it has ended."""
        assert self._pipe is not None
        await readable(self._pipe)
        try:
            return self._pipe.recv()
        except EOFError:
            return None

    async def _wait_for_end(self) -> None:
        """Wait until it has ended, perhaps by the signal that its parent gets, too, and note what it had."""
        while (message := await self._receive()) is not None:
            self.lost = message if isinstance(message, tuple) else self.lost
        await asyncio.to_thread(self._process.join)

    async def keep_alive(self) -> None:
        """Start it again whenever it dies, as often as that takes: the others serve meanwhile."""
        pause = _PAUSE
        while True:
            await self._wait_for_end()
            status, self._worker.is_again = self._process.exitcode, True
            logger.warning("worker=<%d>, status=<%s> | a worker died and is started again", self._worker.index, status)
            try:
                await self.start()
                pause = _PAUSE
            except CommandError as error:
                logger.warning("worker=<%d> | a worker cannot start: %s", self._worker.index, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def end(self) -> None:
        """End it."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            async with asyncio.timeout(_SECONDS_TO_END):
                await self._wait_for_end()
        except TimeoutError:
            self._process.kill()
            await asyncio.to_thread(self._process.join)


def _run_worker(work: Work, worker: Worker, listener: socket.socket, lock: Connection | None, pipe: Connection) -> None:
    """The life of a worker's process, which holds the folder's `lock`, too, and ends with its parent."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        work(worker, listener, pipe.send)
    except CommandError as error:
        pipe.send(error)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # at once, also while a model is loaded: what has to survive is written down
