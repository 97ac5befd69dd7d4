"""Cancels pending waits when their owner closes, whatever they wait for: a connection, an answer, a turn.

Closing interrupts the tasks themselves, as `asyncio.timeout` does, and makes a typed error of the interruption.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from ...exceptions import BackendConnectionError


def closed_error(what: str) -> BackendConnectionError:
    """The error of work that was cut off because the client was closed."""
    return BackendConnectionError(f"the client was closed while {what} was in flight")


class Closing:
    """An owner's closed state (`closed` is set by `close`) and the blocks that end with it. For one event loop."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self._blocks: set[_Block] = set()

    def close(self) -> None:
        """Interrupt every block that is under way; later ones do not begin."""
        self.closed.set()
        for block in list(self._blocks):
            block.interrupt()

    def block(self, what: str) -> _Block:
        """A `with` block that raises `BackendConnectionError` when it is closed before or meanwhile.

        A cancellation that comes from elsewhere stays a cancellation. `what` names the work, for the message.
        """
        return _Block(self, what)

    async def wait(self, seconds: float) -> None:
        """Sleep, but not beyond closing."""
        try:
            await asyncio.wait_for(self.closed.wait(), seconds)
        except TimeoutError:
            return


class _Block:
    def __init__(self, owner: Closing, what: str) -> None:
        self._owner = owner
        self._what = what
        self._task: asyncio.Task[object] | None = None
        self._cancelled_before = 0
        self._interrupted = False

    def __enter__(self) -> None:
        if self._owner.closed.is_set():
            raise closed_error(self._what)
        self._task = asyncio.current_task()
        self._cancelled_before = self._task.cancelling() if self._task is not None else 0
        self._owner._blocks.add(self)

    def interrupt(self) -> None:
        if self._task is not None and not self._interrupted:
            self._interrupted = True
            self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._owner._blocks.discard(self)
        task, self._task = self._task, None
        if not self._interrupted or task is None:
            return
        others = task.uncancel() > self._cancelled_before
        if isinstance(error, asyncio.CancelledError):
            if not others:
                raise closed_error(self._what) from None
        elif isinstance(error, Exception):
            raise closed_error(self._what) from error
