"""Runs each sync function in its own thread, so that one that never returns can be left behind.

The SDK runs sync tools in asyncio's default pool of `min(32, cores + 4)` threads, shared by everything in the process:
many rollouts queue there, a tool that never returns occupies a thread forever, and the process waits for it at exit.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

DEFAULT_MAX_THREADS = 256
"""Sync tools that run at the same time in one process."""


class DaemonThreads:
    """Runs each call in a new daemon thread; a thread costs about 50 microseconds, and none idles.

    Args:
        max_threads: Threads at the same time. Further calls wait for a place.
    """

    def __init__(self, max_threads: int = DEFAULT_MAX_THREADS) -> None:
        if isinstance(max_threads, bool) or not isinstance(max_threads, int) or max_threads < 1:
            raise ValueError(f"max_threads must be a positive number, got {max_threads!r}")
        self.max_threads = max_threads
        self._lock = threading.Lock()
        self._running = 0
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    @property
    def running(self) -> int:
        """Threads that run now, stuck ones included."""
        return self._running

    async def run(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call the function in a thread, in a copy of the current context.

        Cancelling this leaves the thread behind: it keeps its place until the function returns, and its result is lost.
        """
        await self._take_place()
        # No variable for the future, which holds the function's error: core/garbage.py
        return await self._start(functools.partial(contextvars.copy_context().run, function, *args, **kwargs))

    def _start(self, call: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        try:
            name = "strands-env-tool"
            threading.Thread(target=self._work, args=(call, loop, future), name=name, daemon=True).start()
        except BaseException:
            self._leave_place()
            raise
        return future

    def _work(self, call: Callable[[], T], loop: asyncio.AbstractEventLoop, future: asyncio.Future[T]) -> None:
        with contextlib.suppress(RuntimeError):  # the caller's loop is gone
            loop.call_soon_threadsafe(_settle, future, *self._call(call))
        del future  # no cycle with its error: core/garbage.py

    def _call(self, call: Callable[[], T]) -> tuple[T | None, BaseException | None]:
        try:
            return call(), None
        except BaseException as error:  # whatever it raises belongs to the caller, SystemExit included
            return None, error
        finally:
            self._leave_place()

    async def _take_place(self) -> None:
        with self._lock:
            if self._running < self.max_threads:
                self._running += 1
                return
            loop = asyncio.get_running_loop()
            entry = (loop, loop.create_future())
            self._waiting.append(entry)
        try:
            await entry[1]  # the place is handed over by the thread that leaves
        except asyncio.CancelledError:
            with self._lock:
                if entry in self._waiting:
                    self._waiting.remove(entry)
                    raise
            self._leave_place()  # it was handed over meanwhile
            raise

    def _leave_place(self) -> None:
        with self._lock:
            while self._waiting:
                loop, future = self._waiting.pop(0)
                try:
                    loop.call_soon_threadsafe(_wake, future)
                except RuntimeError:
                    continue  # that waiter's loop is gone
                return
            self._running -= 1


class OneThread(DaemonThreads):
    """Runs every call in the same daemon thread, one after the other: for objects bound to a thread.

    The thread starts with the first call; `close` ends it behind the calls that wait.
    """

    def __init__(self) -> None:
        super().__init__(1)
        self._calls: queue.SimpleQueue[Any] | None = None

    async def run(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call the function in the thread, in a copy of the current context.

        A cancelled call that has not begun never begins; one that has begun holds up those behind it.
        """
        return await self._start(functools.partial(contextvars.copy_context().run, function, *args, **kwargs))

    def _start(self, call: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if self._calls is None:
            self._calls = queue.SimpleQueue()
            threading.Thread(target=self._serve, args=(self._calls,), name="strands-env-own", daemon=True).start()
        with self._lock:
            self._running += 1
        self._calls.put((call, loop, future))
        return future

    def close(self) -> None:
        """End the thread after the calls that wait. A later call starts another one."""
        calls, self._calls = self._calls, None
        if calls is not None:
            calls.put(None)

    def _serve(self, calls: queue.SimpleQueue[Any]) -> None:
        while (item := calls.get()) is not None:
            call, loop, future = item
            if future.cancelled():
                self._leave_place()
            else:
                self._work(call, loop, future)
            del item, call, loop, future  # as in `_work`


def _settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    elif isinstance(error, StopIteration):  # a future cannot hold it
        future.set_exception(RuntimeError("the function raised StopIteration"))
    else:
        future.set_exception(error)


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


default_threads = DaemonThreads()
"""The threads of all wrapped tools of the process that name no others."""

reward_threads = DaemonThreads()
"""The threads of synchronous rewards. Not those of the tools: a tool that hangs must not take a reward's place."""
