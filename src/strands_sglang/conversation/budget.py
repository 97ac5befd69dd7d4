"""Bounds on the length of a call, and the budget of an episode, on which its calls draw."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import NamedTuple

from ..trajectory import LengthLimit

DEFAULT_MAX_NEW_TOKENS = 2048
"""`max_new_tokens` of a call that nothing bounds."""


_BLOCKED_SECONDS = 10.0
"""Time after which an event loop that answers nothing counts as blocked."""


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
        self.loops: dict[Reservation, asyncio.AbstractEventLoop] = {}
        self.waiting: list[Future[None]] = []


class Reservation:
    """The part of a budget that one call holds while it is in flight; given back at the end of a `with` statement.

    Leave the statement once the sampled tokens have been recorded.
    """

    def __init__(self, budget: SharedBudget) -> None:
        self._budget = budget

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *error: object) -> None:
        with self._budget.lock:
            self._budget.held.pop(self, None)
            self._budget.loops.pop(self, None)
            waiting, self._budget.waiting = self._budget.waiting, []
        for future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_result(None)

    async def reserve(self, wanted: int | None, left: Callable[..., int]) -> int | None:
        """Hold tokens: as many as wanted (None), or the rest of the budget (their number).

        A call that would get less than it wants only because of what others hold waits for them: they may need less.
        It does not wait for event loops that are blocked: one may be blocked by synchronous code that waits for this
        call, such as a context manager that summarises.

        Args:
            wanted: Most tokens the call can use; None for all that is left.
            left: Tokens left, without so many others as it is given; raises when there are none.
        """
        budget = self._budget
        waits = True
        while True:
            freed: Future[None] = Future()  # before the look, for a collection here may end the last one that holds
            with budget.lock:
                rest = left()
                if not waits:
                    rest = left(sum(budget.held.values()))
                if not waits or not budget.held or (wanted is not None and wanted <= rest - sum(budget.held.values())):
                    granted = budget.held[self] = rest if wanted is None else min(wanted, rest)
                    budget.loops[self] = asyncio.get_running_loop()
                    return rest if granted == rest else None
                budget.waiting.append(freed)
                loops = set(budget.loops.values())
            waits = await _came(freed, loops)


async def _came(freed: Future[None], loops: Collection[asyncio.AbstractEventLoop]) -> bool:
    """Wait for a share that is given back in one of these event loops; False if all of them are blocked, or closed."""
    waiting = asyncio.wrap_future(freed)
    try:
        while True:
            runs = threading.Event()
            for loop in loops:
                with contextlib.suppress(RuntimeError):  # closed
                    loop.call_soon_threadsafe(runs.set)
            await asyncio.wait({waiting}, timeout=_BLOCKED_SECONDS)
            if waiting.done():
                return True
            if not runs.is_set():
                return False
    finally:
        waiting.cancel()
