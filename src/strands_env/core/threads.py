"""Runs sync functions in daemon threads, so that one that never returns can be left behind.

The SDK runs sync tools in asyncio's default pool of `min(32, cores + 4)` threads, shared by everything in the process:
many rollouts queue there, a tool that never returns occupies a thread forever, and the process waits for it at exit.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import math
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, TypeVar

from strands_sglang.exceptions import check_positive

T = TypeVar("T")

DEFAULT_MAX_THREADS = 256
"""Sync tools that run at the same time."""


TURN_SECONDS = 0.001
_turns = threading.Lock()  # of the two below
_blocks, _seconds_before = 0, 0.0


@contextlib.contextmanager
def short_turns() -> Iterator[None]:
    """Let a thread wait for the interpreter a millisecond for a while, not five, as after each call of the system.

    The setting is the process's. Blocks may overlap: the last to end restores it, unless somebody changed it meanwhile.
    """
    global _blocks, _seconds_before
    with _turns:
        if _blocks == 0 and (_seconds_before := sys.getswitchinterval()) > TURN_SECONDS:
            sys.setswitchinterval(TURN_SECONDS)
        _blocks += 1
    try:
        yield
    finally:
        with _turns:
            _blocks -= 1
            if _blocks == 0 and math.isclose(sys.getswitchinterval(), TURN_SECONDS):
                sys.setswitchinterval(_seconds_before)


class DaemonThreads:
    """Runs calls in daemon threads. One that is free takes the next call; a new one starts where none is free.

    Args:
        max_threads: Threads at the same time. Further calls wait for one.

    Attributes:
        running: Calls that run now, stuck ones included.
    """

    def __init__(self, max_threads: int = DEFAULT_MAX_THREADS) -> None:
        check_positive(whole=True, max_threads=max_threads)
        self.max_threads = max_threads
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.RLock()  # a finalizer may close it anywhere
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.running = self._threads = 0
        self._free = 0  # threads without a call, less the calls that wait for one

    async def run(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call the function in a thread, in a copy of the current context.

        A cancelled call that has not begun never begins. One that has begun keeps its thread until the function
        returns, and its result is lost.
        """
        # No variable for the future, which holds the function's error: core/garbage.py
        return await self._submit(functools.partial(contextvars.copy_context().run, function, *args, **kwargs))

    def _submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if self._process != os.getpid():  # a forked process has none of the threads
            self._begin()
        with self._lock:
            starts = self._free <= 0 and self._threads < self.max_threads
            if starts:
                threading.Thread(target=self._serve, args=(self._calls,), name="strands-env", daemon=True).start()
            self._threads += starts
            self._free += starts - 1
            self._calls.put((call, loop, future))
        return future

    def _serve(self, calls: queue.SimpleQueue[Any]) -> None:
        while (work := calls.get()) is not None:
            self._work(calls, *work)
            del work

    def _work(
        self, calls: Any, call: Callable[[], T], loop: asyncio.AbstractEventLoop, future: asyncio.Future[T]
    ) -> None:
        value = error = None
        runs = not future.cancelled()
        with self._lock:
            self.running += runs
        try:
            value = call() if runs else None
        except BaseException as raised:  # any error belongs to the caller, SystemExit included
            error = raised
        with self._lock:
            self.running -= runs
            self._free += calls is self._calls  # otherwise this thread is closed
        with contextlib.suppress(RuntimeError):  # the caller's loop is gone
            loop.call_soon_threadsafe(_settle, future, value, error)
        del future, error  # a frame of the error leads to this one: core/garbage.py


class OneThread(DaemonThreads):
    """Runs every call in the same daemon thread, one after the other: for objects bound to a thread.

    The thread starts with the first call; `close` ends it behind the calls that wait.
    """

    def __init__(self) -> None:
        super().__init__(1)

    def close(self) -> None:
        """End the thread after the calls that wait. A later call starts another one."""
        with self._lock:
            self._calls.put(None)
            self._calls, self._threads, self._free = queue.SimpleQueue(), 0, 0


def _settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    elif isinstance(error, StopIteration):  # a future cannot hold it
        future.set_exception(RuntimeError("the function raised StopIteration"))
    else:
        future.set_exception(error)


class OwnClock:
    """Seconds in which processes ran, or waited for anything but a processor: a busy machine does not make them pass.

    Linux says how long each thread has been runnable without a processor, also where a control group holds it back: the
    second number of `/proc/PID/task/TID/schedstat`, in nanoseconds. Where the system does not say, every second counts.

    Args:
        pids: Finds the processes at each reading, so that children may come and go; by default this one alone.
    """

    def __init__(self, pids: Callable[[], Iterable[int]] = lambda: (os.getpid(),)) -> None:
        self._pids = pids
        self._queued = self._read()
        self._last = time.monotonic()
        self._seconds = 0.0

    def seconds(self) -> float:
        """The time since this clock was made. It is the more exact the more often it is read."""
        queued, now = self._read(), time.monotonic()
        # Of threads that waited side by side the longest wait counts: their sum may be more than the time that passed.
        waited = max((value - self._queued.get(task, 0) for task, value in queued.items()), default=0) / 1e9
        self._seconds += max(0.0, now - self._last - waited)
        self._queued, self._last = queued, now
        return self._seconds

    def _read(self) -> dict[str, int]:
        found = {}
        for file in (file for pid in self._pids() for file in Path(f"/proc/{pid}/task").glob("*/schedstat")):
            with contextlib.suppress(OSError):  # the thread has ended
                found[file.parent.name] = int(file.read_text(encoding="ascii").split()[1])
        return found


class LoopBlockedError(TimeoutError):
    """Code holds up its event loop."""


def run_watched(work: Coroutine[Any, Any, T], seconds: float) -> T:
    """`asyncio.run` in its own thread, which is left behind if the work holds up its event loop for so long.

    A loop that waits for a processor is not held up: the seconds are those of `OwnClock`.

    Raises:
        LoopBlockedError: The loop has not run for these seconds.
    """
    future: Future[T] = Future()
    beats = [0]
    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = []

    async def watch() -> T:
        task = asyncio.create_task(work)
        started.append((asyncio.get_running_loop(), task))
        while not task.done():
            beats[0] += 1
            await asyncio.wait([task], timeout=min(seconds / 4, 1.0))
        return task.result()

    def run() -> None:
        try:
            future.set_result(asyncio.run(watch()))
        except BaseException as error:  # it belongs to the thread that waits
            future.set_exception(error)

    threading.Thread(target=contextvars.copy_context().run, args=(run,), name="strands-env-loop", daemon=True).start()
    clock, seen, beat_at = OwnClock(), 0, 0.0
    try:
        # A reading of the clock looks at every thread: rarely, where there is time.
        while not wait([future], timeout=min(0.5, max(0.1, seconds / 60))).done:
            now = clock.seconds()
            if seen != beats[0]:
                seen, beat_at = beats[0], now
            elif now - beat_at > seconds:
                raise LoopBlockedError(
                    f"the event loop has been held up for {seconds:g} s: an 'async def' of the environment or reward "
                    "must wait with 'await'; a plain 'def' runs in a thread"
                )
    except KeyboardInterrupt:  # the work cleans up, as in `asyncio.run`
        for loop, task in started:
            loop.call_soon_threadsafe(task.cancel)
        wait([future], timeout=seconds)
        raise
    return future.result()


default_threads = DaemonThreads()
"""The threads of all wrapped tools of the process that name no others."""

reward_threads = DaemonThreads()
"""The threads of synchronous rewards. Not those of the tools: a tool that hangs must not take a reward's place."""
