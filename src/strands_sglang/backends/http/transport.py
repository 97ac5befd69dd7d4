"""What a client holds for one event loop: connections, slots, the requests in flight and their aborts."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterable

from .aborts import ABORT_TIMEOUT_S, Aborts
from .attempts import Attempt
from .session import HTTPSession

logger = logging.getLogger(__name__)

_OTHER_LOOP_S = 2 * ABORT_TIMEOUT_S + 2.0
_POLL_S = 0.02


class LoopTransport:
    """Connections, requests in flight and outstanding aborts of one event loop.

    Attributes:
        slots: Bounds the requests; connections are never waited for, so a time-out never counts waiting for a slot.
        probing: Held by whoever asks the server about itself.
        in_flight: The attempts that were sent and have no answer yet, by their ids.
    """

    def __init__(self, *, max_connections: int, http: HTTPSession, aborts: Aborts) -> None:
        self.loop = asyncio.get_running_loop()
        self.slots = asyncio.Semaphore(max_connections)
        self.probing = asyncio.Lock()
        self.in_flight: dict[str, Attempt] = {}
        self.http = http
        self.aborts = aborts
        self._pid = os.getpid()

    @property
    def is_over(self) -> bool:
        """Its loop is closed, or runs in the process of which this one is a fork."""
        return self.loop.is_closed() or self._pid != os.getpid()

    async def close(self) -> None:
        """Abort what is in flight, wait for the aborts, close the connections; every caller waits for the end."""
        for rid, attempt in list(self.in_flight.items()):
            self.aborts.begin(rid, attempt.age)
        self.http.interrupt()
        try:
            await self.aborts.finish()
        finally:
            self.http.close()


async def close_all(transports: Iterable[LoopTransport]) -> None:
    """Close transports of this and other event loops, each on its own. One that fails keeps no other from closing."""
    here = asyncio.get_running_loop()
    closing: list[asyncio.Task[None]] = []
    for transport in transports:
        if transport.is_over or not transport.loop.is_running():
            transport.http.release()
        else:
            close = transport.close() if transport.loop is here else _close_elsewhere(transport)
            closing.append(here.create_task(close))
    if closing:
        await asyncio.wait(closing)
        for task in closing:
            task.result()


async def _close_elsewhere(transport: LoopTransport) -> None:
    """Close a transport on its own loop, which may be blocked, or end before it is done."""
    coroutine = transport.close()
    try:
        future = asyncio.run_coroutine_threadsafe(coroutine, transport.loop)
    except RuntimeError:  # closed in this instant
        coroutine.close()
        transport.http.release()
        return
    give_up = time.monotonic() + _OTHER_LOOP_S
    # A loop that ends cancels this future, or forgets it.
    while not future.done() and not transport.loop.is_closed() and time.monotonic() < give_up:
        await asyncio.sleep(_POLL_S)
    if future.done() and not future.cancelled():
        future.result()
    elif future.done() or transport.loop.is_closed():
        transport.http.release()
    else:
        logger.warning("seconds=<%g> | an event loop is blocked, its connections close later", _OTHER_LOOP_S)
