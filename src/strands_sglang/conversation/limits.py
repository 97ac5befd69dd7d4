"""Early ends of a call: bounds on its length, the episode's budget, and the SDK's cancel signal."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context
from types import TracebackType
from typing import Any, NamedTuple

from ..trajectory import LengthLimit

DEFAULT_MAX_NEW_TOKENS = 2048
"""`max_new_tokens` of a call that nothing bounds."""


class Bounds(NamedTuple):
    """The bounds on the length of one turn, each in remaining tokens; None where unbounded.

    Attributes:
        reply: `max_new_tokens` of the request.
        trajectory: Tokens left of the path's budget.
        response: Tokens left of the budget behind the path's first prompt.
        context: Room in the context.
        sampled: Tokens left of the episode's budget, where it may be the tightest.
    """

    reply: int | None
    trajectory: int | None
    response: int | None
    context: int | None
    sampled: int | None = None

    def least(self) -> int | None:
        """The tightest; None where there is none."""
        return min([bound for bound in self if bound is not None], default=None)

    def most_tokens(self) -> int:
        """`max_new_tokens` to ask for."""
        least = self.least()
        return DEFAULT_MAX_NEW_TOKENS if least is None else least if least > 0 else 0

    def tightest(self, asked: int) -> LengthLimit:
        """The bound that set the number of tokens of a call; where several are equal, the one that ends the episode."""
        for limit, bound in (
            (LengthLimit.TRAJECTORY_BUDGET, self.trajectory),
            (LengthLimit.TRAJECTORY_BUDGET, self.response),
            (LengthLimit.SAMPLED_BUDGET, self.sampled),
            (LengthLimit.CONTEXT, self.context),
        ):
            if bound is not None and asked >= bound:
                return limit
        return LengthLimit.REPLY


class SharedBudget:
    """A budget that concurrent calls, in any event loop, draw on without overdrawing it."""

    def __init__(self) -> None:
        # Reentrant: a garbage collection may end an abandoned call, and its reservation, on the thread that holds it.
        self.lock = threading.RLock()
        self.held: dict[Reservation, int] = {}
        self.waiting: list[Future[None]] = []


class Reservation:
    """The part of a budget that one call holds while it is in flight; given back at the end of a `with` statement.

    Leave the statement when what was sampled has been recorded.
    """

    def __init__(self, budget: SharedBudget) -> None:
        self._budget = budget

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *error: object) -> None:
        with self._budget.lock:
            self._budget.held.pop(self, None)
            waiting, self._budget.waiting = self._budget.waiting, []
        for future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_result(None)

    async def reserve(self, wanted: int | None, left: Callable[[], int]) -> int | None:
        """Hold tokens: as many as wanted (None), or the rest of the budget (their number).

        A call that would get less than it wants only because of what others hold waits for them: they may need less.

        Args:
            wanted: Most tokens the call can use; None for all that is left.
            left: Tokens that are left but for what is held; raises when there are none.
        """
        budget = self._budget
        while True:
            freed: Future[None] = Future()  # before the look, for a collection here may end the last one that holds
            with budget.lock:
                rest = left()
                if not budget.held or (wanted is not None and wanted <= rest - sum(budget.held.values())):
                    granted = budget.held[self] = rest if wanted is None else min(wanted, rest)
                    return rest if granted == rest else None
                budget.waiting.append(freed)
            await asyncio.wrap_future(freed)


# ---- the SDK's cancel signal -----------------------------------------------------------------------------------------
#
# The SDK looks at the signal only between chunks, so a provider with one long request has to watch it itself. One timer
# an event loop looks at the signals of all calls in flight: a thousand rollouts cost one wake-up every 50 ms, not a
# thousand. Looking at one takes up to 0.3 µs, so with more of them it looks less often.


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

    It raises it also where the block has come to its end by then: its caller throws the answer away. Whoever else
    cancels the task waits for an `asyncio.CancelledError`, and gets it.
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
