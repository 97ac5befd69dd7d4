"""Waiting for a model call while watching the SDK's cancel signal.

The SDK looks at the signal only between chunks, so a provider with one long request has to watch it itself. One task
per event loop polls the signals of all calls in flight: a thousand rollouts cost one wake-up every 50 ms, not a
thousand. Looking at one takes up to 0.3 µs, so with more of them it looks less often.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")

POLL_INTERVAL = 0.05
"""Seconds between two looks at up to a thousand signals, the SDK's own interval; with more it grows in proportion."""


class CallCancelled(Exception):
    """The cancel signal was set while the call was in flight."""


class _Watcher:
    """Polls the signals of one event loop as long as there are any."""

    def __init__(self) -> None:
        self._watched: dict[asyncio.Task[Any], threading.Event] = {}
        self._poller: asyncio.Task[None] | None = None
        self.signalled: set[asyncio.Task[Any]] = set()
        """Tasks cancelled for their signal that have not ended yet."""

    def add(self, task: asyncio.Task[Any], signal: threading.Event) -> None:
        self._watched[task] = signal
        if self._poller is None or self._poller.done():
            # In an empty context, for it may outlive the call by far. A task factory need not take `context=...`.
            self._poller = Context().run(asyncio.create_task, self._poll())

    def remove(self, task: asyncio.Task[Any]) -> None:
        self._watched.pop(task, None)

    @property
    def interval(self) -> float:
        return POLL_INTERVAL * max(1.0, len(self._watched) / 1000)

    async def _poll(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._watched:
                self._look()
                await asyncio.sleep(self.interval)
        finally:
            _forget(loop, self)

    def _look(self) -> None:
        for task, signal in list(self._watched.items()):
            if signal.is_set():
                self.remove(task)
                self.signalled.add(task)
                task.cancel()


_watchers: dict[asyncio.AbstractEventLoop, _Watcher] = {}
# Reentrant: a garbage collection may end an abandoned poller, and so `_forget`, on the thread that is in `_watcher`.
_lock = threading.RLock()


def _watcher() -> _Watcher:
    """The watcher of this event loop, there as long as it has something to watch."""
    running = asyncio.get_running_loop()
    found = _watchers.get(running)
    if found is None:
        with _lock:
            for loop in list(_watchers):
                if loop.is_closed():  # without ending its tasks
                    _watchers.pop(loop, None)
            found = _watchers.setdefault(running, _Watcher())
    return found


def _forget(loop: asyncio.AbstractEventLoop, watcher: _Watcher) -> None:
    # A weak mapping would not do: the watcher's tasks know their loop.
    with _lock:
        if _watchers.get(loop) is watcher:
            del _watchers[loop]


async def run_until_cancelled(call: Coroutine[Any, Any, T], signal: threading.Event | None) -> T:
    """Await a call, but cancel it as soon as the signal is set.

    Raises:
        CallCancelled: The signal was set; the call was cancelled and has finished its clean-up.
        asyncio.CancelledError: The calling task was cancelled; so was the call.
    """
    if signal is None or (task := asyncio.current_task()) is None:
        return await call
    if signal.is_set():
        call.close()
        raise CallCancelled
    watcher = _watcher()
    cancellations = task.cancelling()
    watcher.add(task, signal)
    signalled = False
    try:
        try:
            return await call
        finally:
            watcher.remove(task)
            # As `asyncio.timeout` does: take back the one cancellation that the signal caused.
            if signalled := task in watcher.signalled:
                watcher.signalled.discard(task)
                cancelled_by_others = task.uncancel() > cancellations
    except asyncio.CancelledError:
        # Whoever else cancels this task waits for a CancelledError, also where the signal came first.
        if signalled and not cancelled_by_others:
            raise CallCancelled from None
        raise
