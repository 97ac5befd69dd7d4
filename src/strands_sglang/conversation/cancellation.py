"""The SDK's cancel signal, which ends a call in flight.

The SDK looks at the signal only between chunks, so a provider with one long request has to watch it itself. One timer
for each event loop looks at the signals of all calls in flight: a thousand rollouts cost one wake-up every 50 ms, not a
thousand. Looking at one takes up to 0.3 µs, so with more of them it looks less often.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from contextvars import Context
from types import TracebackType
from typing import Any

POLL_INTERVAL = 0.05
"""Seconds between two looks at up to a thousand signals, the SDK's own interval; with more it grows in proportion."""


class CallCancelled(Exception):
    """The cancel signal was set while the call was in flight."""


class _Watcher:
    """Looks at the signals of the calls of one event loop, as long as there are any."""

    def __init__(self) -> None:
        # Weak: tasks know their loop, by which the watcher is kept.
        self.watched: weakref.WeakKeyDictionary[asyncio.Task[Any], threading.Event] = weakref.WeakKeyDictionary()
        self.signalled: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        """Tasks cancelled for their signal that have not ended yet."""
        self._is_looking = False

    @property
    def interval(self) -> float:
        return POLL_INTERVAL * max(1.0, len(self.watched) / 1000)

    def add(self, task: asyncio.Task[Any], signal: threading.Event) -> None:
        self.watched[task] = signal
        if not self._is_looking:
            self._schedule()

    def _schedule(self) -> None:
        self._is_looking = True
        # In an empty context, for the timer may outlive the call by far.
        asyncio.get_running_loop().call_later(self.interval, self._look, context=Context())

    def _look(self) -> None:
        for task, signal in list(self.watched.items()):
            if signal.is_set():
                del self.watched[task]
                self.signalled.add(task)
                task.cancel()
        self._is_looking = False
        if self.watched:
            self._schedule()


_watchers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Watcher] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


class CancelScope:
    """A `with` block that is cancelled as soon as a signal is set, and then raises `CallCancelled`.

    It raises it even if the block has ended by then: the caller throws the answer away. Anyone else who cancels the
    task expects an `asyncio.CancelledError`, and gets it.
    """

    def __init__(self, signal: threading.Event | None) -> None:
        self._signal = signal
        self._task: asyncio.Task[Any] | None = None
        self._watcher: _Watcher | None = None
        self._cancelled_before = 0

    def __enter__(self) -> None:
        if self._signal is None:
            return
        if self._signal.is_set():
            raise CallCancelled
        self._task = asyncio.current_task()
        if self._task is not None:
            loop = asyncio.get_running_loop()
            with _lock:
                self._watcher = _watchers.get(loop) or _watchers.setdefault(loop, _Watcher())
            self._cancelled_before = self._task.cancelling()
            self._watcher.add(self._task, self._signal)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._task is not None and self._watcher is not None:
            self._watcher.watched.pop(self._task, None)
            if self._task in self._watcher.signalled:
                # As `asyncio.timeout` does: take back the one cancellation that the signal caused.
                self._watcher.signalled.discard(self._task)
                by_others = self._task.uncancel() > self._cancelled_before
                if isinstance(error, asyncio.CancelledError) and not by_others:
                    raise CallCancelled from None
        if error is None and self._signal is not None and self._signal.is_set():
            raise CallCancelled
