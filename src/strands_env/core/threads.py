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
from weakref import WeakKeyDictionary

T = TypeVar("T")

DEFAULT_MAX_THREADS = 256
"""Sync tools that run at the same time on one event loop."""


class DaemonThreads:
    """Runs each call in a new daemon thread; a thread costs about 50 microseconds, and none idles.

    Args:
        max_threads: Threads at the same time, for the calls of one event loop. Further calls wait for a place.
    """

    def __init__(self, max_threads: int = DEFAULT_MAX_THREADS) -> None:
        if isinstance(max_threads, bool) or not isinstance(max_threads, int) or max_threads < 1:
            raise ValueError(f"max_threads must be a positive number, got {max_threads!r}")
        self.max_threads = max_threads
        # A semaphore belongs to an event loop.
        self._places: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
        self._running: set[Callable[[], Any]] = set()

    @property
    def running(self) -> int:
        """Calls that run now, stuck ones included."""
        return len(self._running)

    async def run(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call the function in a thread, in a copy of the current context.

        Cancelling this leaves the thread behind: it keeps its place until the function returns, and its result is lost.
        """
        places = self._places.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.max_threads))
        await places.acquire()
        call = functools.partial(contextvars.copy_context().run, function, *args, **kwargs)
        # No variable for the future, which holds the function's error: core/garbage.py
        return await self._submit(call, places.release)

    def _submit(self, call: Callable[[], T], leave: Callable[[], None] = lambda: None) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._running.add(call)
        try:
            self._hand_over(call, loop, future, leave)
        except BaseException:
            self._running.discard(call)
            leave()
            raise
        return future

    def _hand_over(self, *work: Any) -> None:
        threading.Thread(target=self._work, args=work, name="strands-env-tool", daemon=True).start()

    def _work(
        self,
        call: Callable[[], T],
        loop: asyncio.AbstractEventLoop,
        future: asyncio.Future[T],
        leave: Callable[[], None],
    ) -> None:
        value = error = None
        try:
            value = call()
        except BaseException as raised:  # whatever it raises belongs to the caller, SystemExit included
            error = raised
        self._running.discard(call)
        with contextlib.suppress(RuntimeError):  # the caller's loop is gone
            loop.call_soon_threadsafe(leave)
            loop.call_soon_threadsafe(_settle, future, value, error)
        del future, error  # a frame of the error leads to this one: core/garbage.py


class OneThread(DaemonThreads):
    """Runs every call in the same daemon thread, one after the other: for objects bound to a thread.

    The thread starts with the first call; `close` ends it behind the calls that wait.
    """

    def __init__(self) -> None:
        super().__init__(1)
        self._calls: queue.SimpleQueue[Any] | None = None

    async def run(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call the function in the thread, in a copy of the current context.

        A cancelled call that has not begun never begins; one that has begun delays the calls queued after it.
        """
        return await self._submit(functools.partial(contextvars.copy_context().run, function, *args, **kwargs))

    def _hand_over(self, *work: Any) -> None:
        if self._calls is None:
            self._calls = queue.SimpleQueue()
            threading.Thread(target=self._serve, args=(self._calls,), name="strands-env-own", daemon=True).start()
        self._calls.put(work)

    def close(self) -> None:
        """End the thread after the calls that wait. A later call starts another one."""
        calls, self._calls = self._calls, None
        if calls is not None:
            calls.put(None)

    def _serve(self, calls: queue.SimpleQueue[Any]) -> None:
        while (work := calls.get()) is not None:
            call, _, future, _ = work
            if future.cancelled():
                self._running.discard(call)
            else:
                self._work(*work)
            del work, call, _, future  # as in `_work`


def _settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    elif isinstance(error, StopIteration):  # a future cannot hold it
        future.set_exception(RuntimeError("the function raised StopIteration"))
    else:
        future.set_exception(error)


default_threads = DaemonThreads()
"""The threads of all wrapped tools of the process that name no others."""

reward_threads = DaemonThreads()
"""The threads of synchronous rewards. Not those of the tools: a tool that hangs must not take a reward's place."""
