"""The connections of a client: a set for every event loop that it is used on, and what of them is in flight.

Connections belong to the loop they were made on. A client keeps one `LoopTransport` per loop. It is closed by the
client, or when the client is garbage, or at the end of the loop (`asyncio.run` finalises an async generator that is
kept for that), whichever comes first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import Any

import orjson

from .aborts import ABORT_TIMEOUT_S, Aborts
from .closing import Closing
from .connections import HTTPClient, Target
from .user_transport import Transport, UserConnections

logger = logging.getLogger(__name__)

_LONGEST_CONTROL_ANSWER = 1 << 24  # bytes

_CONTROL_CONNECTIONS = 128
_CONTROL_CONNECT_S = 5.0
_OTHER_LOOP_S = 2 * ABORT_TIMEOUT_S + 2.0
_POLL_S = 0.02

_REMEMBERED_IDS = 4096

# Every open transport and its guard. Not only the client holds them, or a client dropped in the last moments of a
# loop would take its guard along before the loop finalises it.
_open: dict[LoopTransport, AsyncGenerator[None, None]] = {}
# Reentrant: a garbage collection may drop a transport on the thread that holds it.
_open_lock = threading.RLock()
# Guards of a parent process. Finalised in a fork of it, they would wake the parent's loop.
_left_alone: list[AsyncGenerator[None, None]] = []


class SentIds:
    """The ids of the latest requests of a client, on whatever loop; safe to share between threads."""

    def __init__(self) -> None:
        self._ids: dict[str, None] = {}
        self._lock = threading.Lock()

    def __contains__(self, rid: object) -> bool:
        return isinstance(rid, str) and rid in self._ids

    def add(self, rid: str) -> None:
        """Remember an id; the oldest is forgotten beyond 4,096."""
        with self._lock:
            self._ids[rid] = None
            if len(self._ids) > _REMEMBERED_IDS:
                del self._ids[next(iter(self._ids))]


class LoopTransport:
    """Connections, requests in flight and outstanding aborts on one event loop.

    Args:
        abort_headers: Further headers of abort calls.
        worker_urls: Workers behind a router, if they are known; else `GET /workers` is asked.
        sent: Ids of the client's requests, where several transports share them.

    Attributes:
        slots: Bounds the requests; connections are never waited for, so a time-out never counts waiting for a slot.
        http: Connections of generate calls.
        control: Connections of control calls: aborts must get through when every slot hangs.
        in_flight: Loop time at which each request in flight was sent, by its id.
    """

    def __init__(
        self,
        *,
        base_url: str,
        max_connections: int,
        headers: dict[str, str],
        abort_headers: Mapping[str, str],
        connect_timeout: float | None,
        abort_path: str,
        abort_body: Callable[[str], dict[str, Any]],
        worker_urls: tuple[str, ...] = (),
        sent: SentIds | None = None,
        user_transport: Transport | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.slots = asyncio.Semaphore(max_connections)
        self.probing = asyncio.Lock()
        self.closing = Closing()
        self.in_flight: dict[str, float] = {}
        self._sent = SentIds() if sent is None else sent
        self._pid = os.getpid()
        self._close_task: asyncio.Task[None] | None = None
        self.is_finished = False
        self._headers = headers
        self.http: HTTPClient | UserConnections
        self.control: HTTPClient | UserConnections
        if user_transport is None:
            self.http = HTTPClient(connect_timeout=connect_timeout)
            self.control = HTTPClient(connect_timeout=_CONTROL_CONNECT_S)
        else:
            self.http = self.control = UserConnections(user_transport)
        self._control_slots = asyncio.Semaphore(_CONTROL_CONNECTIONS)
        self.aborts = Aborts(
            base_url=base_url,
            workers=worker_urls,
            headers=abort_headers,
            path=abort_path,
            body=abort_body,
            send=self._send,
            closing=self.closing,
        )

    @property
    def closed(self) -> asyncio.Event:
        """Set when closing begins."""
        return self.closing.closed

    @property
    def is_foreign(self) -> bool:
        """It belongs to another process, of which this one is a fork."""
        return self._pid != os.getpid()

    def begin(self, rid: str) -> float:
        """Note that a request leaves; returns the loop's time."""
        now = self.in_flight[rid] = self.loop.time()
        self._sent.add(rid)
        return now

    def was_sent(self, rid: object) -> bool:
        """The client sent a request of this id lately."""
        return rid in self._sent

    async def request(self, method: str, url: str, *, timeout: float = 10.0) -> tuple[int, bytes]:
        """A control call: status and body. Raises as `HTTPClient.request`, and `BackendConnectionError` on closing."""
        with self.closing.block(f"{method} {url}"):
            return await self._send(method, url, timeout=timeout)

    async def _send(
        self, method: str, url: str, *, timeout: float, json: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        target = Target.of(method, url, {**self._headers, **(headers or {})})
        body = () if json is None else (orjson.dumps(json),)
        async with asyncio.timeout(timeout), self._control_slots:
            answer = await self.control.request(target, body, limit=_LONGEST_CONTROL_ANSWER)
        return answer.status, answer.body

    async def list_workers(self) -> tuple[str, ...]:
        """The workers behind `base_url`, or nothing if it is not a router. Raises on closing."""
        with self.closing.block("GET /workers"):
            return await self.aborts.list_workers()

    def abort_later(self, rid: str) -> None:
        """Abort a request from the background; `close` waits for it, and repeats it if the loop ends first."""
        self.aborts.abort_later(rid, self.loop.time() - self.in_flight.pop(rid, self.loop.time()))

    async def close(self) -> None:
        """Abort what is in flight, wait for the aborts, close the connections. Every caller waits for the end."""
        if self._close_task is None or self._close_task.cancelled():  # with everything else on its loop
            for rid in list(self.in_flight):
                self.abort_later(rid)
            self.closing.close()
            self._close_task = self.loop.create_task(self._close(), name="sglang-close")
        await asyncio.shield(self._close_task)

    async def _close(self) -> None:
        self.http.close()
        await self.aborts.finish()
        self.control.close()
        self.is_finished = True
        with _open_lock:
            guard = _open.pop(self, None)
        if guard is not None:
            with contextlib.suppress(RuntimeError):  # the loop may be finalising it at this moment
                await guard.aclose()

    def close_soon(self) -> None:
        """Begin to close from any thread, as garbage collection does."""
        if self.loop.is_closed() or self.is_foreign:
            self.drop()
            return
        with contextlib.suppress(RuntimeError):  # closed in this instant
            self.loop.call_soon_threadsafe(lambda: self.loop.create_task(self.close()))

    def drop(self) -> None:
        """Release the sockets of a loop that is over, or of another process, and can run nothing here."""
        with contextlib.suppress(RuntimeError):  # calls that wait for it on a loop that is closed
            self.closing.closed.set()
        with _open_lock:
            guard = _open.pop(self, None)
        if guard is not None and self.is_foreign:
            _left_alone.append(guard)
        self.http.release_sockets()
        self.control.release_sockets()

    async def _guard(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            with _open_lock:
                _open.pop(self, None)
            if not self.is_finished:
                await self.close()


async def open_transport(**options: Any) -> LoopTransport:
    """A `LoopTransport` on the running loop, which closes it when it ends. Releases those of loops that are over."""
    for other in list(_open):
        if other.loop.is_closed() or other.is_foreign:
            other.drop()
    transport = LoopTransport(**options)
    guard = transport._guard()
    await anext(guard)  # to its `yield`, without waiting: from now on the loop knows it and finalises it
    with _open_lock:
        _open[transport] = guard
    return transport


# ---- one client on many loops


class LoopTransports:
    """Opens a transport (`open`) on a loop's first call, and closes all of them; `closings` counts how often."""

    def __init__(self, **options: Any) -> None:
        self.closings = 0
        # A transport holds its loop, so weak keys would never be collected: loops that are over are swept instead.
        self.open: dict[asyncio.AbstractEventLoop, LoopTransport] = {}
        self._options = {"sent": SentIds(), **options}
        self._lock = threading.RLock()  # a garbage collection may end an abandoned `close` on the thread that holds it
        weakref.finalize(self, _release, self.open).atexit = False

    async def here(self) -> LoopTransport:
        """The transport of the running loop."""
        loop = asyncio.get_running_loop()
        held = self.open.get(loop)
        if held is not None and not held.closed.is_set() and not held.is_foreign:
            return held
        transport = await open_transport(**self._options)
        with self._lock:
            for other in list(self.open):
                if other.is_closed():
                    self.open.pop(other, None)
            self.open[loop] = transport
        return transport

    async def close(self) -> None:
        """Close the transports of all loops; those of a process of which this one is a fork stay open there."""
        with self._lock:
            self.closings += 1
            held = dict(self.open)
        try:
            await _close_everywhere(held.values())
        finally:
            with self._lock:
                for loop, transport in held.items():
                    if self.open.get(loop) is transport:
                        del self.open[loop]


def _release(transports: dict[asyncio.AbstractEventLoop, LoopTransport]) -> None:
    for transport in list(transports.values()):
        transport.close_soon()


async def _close_everywhere(transports: Iterable[LoopTransport]) -> None:
    """Close transports of this and other event loops, each on its own. One that fails keeps no other from closing."""
    here = asyncio.get_running_loop()
    closing: list[asyncio.Task[None]] = []
    for transport in transports:
        if transport.loop is here and not transport.is_foreign:
            closing.append(here.create_task(transport.close()))
        elif transport.loop.is_running() and not transport.is_foreign:
            closing.append(here.create_task(_close_elsewhere(transport)))
        else:
            transport.drop()
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
        transport.drop()
        return
    give_up = time.monotonic() + _OTHER_LOOP_S
    # A loop that ends cancels this future, or forgets it, and closes the transport by its guard.
    while not transport.is_finished and not transport.loop.is_closed() and time.monotonic() < give_up:
        if future.done() and not future.cancelled():
            future.result()
        await asyncio.sleep(_POLL_S)
    if not transport.is_finished:
        if transport.loop.is_closed():
            transport.drop()
        else:
            logger.warning("seconds=<%g> | an event loop is blocked, its connections close later", _OTHER_LOOP_S)
