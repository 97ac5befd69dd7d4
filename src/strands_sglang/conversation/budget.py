"""Length of a call: the tightest of all bounds, and the share of the episode's budget that it holds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

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
        return min((bound for bound in self if bound is not None), default=None)

    def most_tokens(self) -> int:
        """`max_new_tokens` to ask for."""
        least = self.least()
        return DEFAULT_MAX_NEW_TOKENS if least is None else max(0, least)

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


class Reserved(NamedTuple):
    """Tokens that a call may sample; `is_rest` if they are all that is left of the budget."""

    tokens: int
    is_rest: bool


class Reservation:
    """The part of a budget that one call holds while it is in flight; given back at the end of a `with` statement."""

    def __init__(self, budget: SharedBudget) -> None:
        self._budget = budget
        self._holds = False

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *error: object) -> None:
        if self._holds:
            self._budget._give_back(self)

    async def reserve(self, wanted: int | None, left: Callable[[], int]) -> Reserved:
        """Hold tokens: as many as wanted, or the rest of the budget.

        A call that would get less than it wants only because of what others hold waits for them: they may need less.

        Args:
            wanted: Most tokens the call can use; None for all that is left.
            left: Tokens that are left but for what is held; raises when there are none.
        """
        while True:
            self._holds = True  # before it does: whatever happens meanwhile, it is given back
            granted = self._budget._hold(self, wanted, left)
            if isinstance(granted, Reserved):
                return granted
            await asyncio.wrap_future(granted)


class SharedBudget:
    """A budget that concurrent calls, in any event loop, draw on without overdrawing it."""

    def __init__(self) -> None:
        # Reentrant: a garbage collection may end an abandoned call, and its reservation, on the thread in `_hold`.
        self._lock = threading.RLock()
        self._held: dict[Reservation, int] = {}
        self._waiting: list[Future[None]] = []

    def reservation(self) -> Reservation:
        """A call's share; give it back when what was sampled has been recorded."""
        return Reservation(self)

    def _give_back(self, reservation: Reservation) -> None:
        with self._lock:
            self._held.pop(reservation, None)
            waiting, self._waiting = self._waiting, []
        for future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_result(None)

    def _hold(self, reservation: Reservation, wanted: int | None, left: Callable[[], int]) -> Reserved | Future[None]:
        with self._lock:
            rest = left()
            if self._held and (wanted is None or wanted > rest - sum(self._held.values())):
                future: Future[None] = Future()
                if self._held:  # still: a collection in the making of the future may end the last one, who wakes us
                    self._waiting.append(future)
                    return future
                rest = left()
            granted = self._held[reservation] = rest if wanted is None else min(wanted, rest)
            return Reserved(tokens=granted, is_rest=granted == rest)
