"""The connections of a client on one event loop, and the aborts that must reach the server from there.

aiohttp sessions belong to the loop they were made on. A client keeps one `LoopTransport` per loop. It is closed by
the client, or when the client is garbage, or at the end of the loop (`asyncio.run` finalises an async generator that
is kept for that), whichever comes first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncGenerator, Iterable
from types import SimpleNamespace
from typing import Any

import aiohttp
import orjson

from .routers import NOT_ROUTED, worker_urls

logger = logging.getLogger(__name__)

KEEPALIVE_S = 4.0
"""Idle connections are dropped before the server does so (5 s, 4.7 s measured)."""

ABORT_TIMEOUT_S = 5.0
"""Longest time for one abort call; the request it is about is lost already."""

_ABORT_AGAIN_S = 0.5
_CONTROL_CONNECTIONS = 128
_WORKERS_FRESH_S = 1.0  # workers come and go, but a thousand cancelled calls should not ask a thousand times

# Every open transport and its guard. Not only the client holds them, or a client dropped in the last moments of a
# loop would take its guard along before the loop finalises it.
_open: dict[LoopTransport, AsyncGenerator[None, None]] = {}
_open_lock = threading.Lock()


class LoopTransport:
    """Sessions, requests in flight and outstanding aborts on one event loop.

    Args:
        base_url: Server or router, without trailing slash.
        max_connections: Requests at a time.
        headers: Headers of every request.
        control_headers: Headers of control calls.
        connect_timeout: Seconds to connect, or None.
        worker_urls: Workers behind a router, if they are known; else `GET /workers` is asked.
    """

    def __init__(
        self,
        *,
        base_url: str,
        max_connections: int,
        headers: dict[str, str],
        control_headers: dict[str, str],
        connect_timeout: float | None,
        worker_urls: tuple[str, ...] = (),
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.slots = asyncio.Semaphore(max_connections)
        self.probing = asyncio.Lock()
        self.closed = asyncio.Event()
        self.in_flight: dict[str, float] = {}
        self._base_url = base_url
        self._worker_urls = worker_urls
        self._is_router = bool(worker_urls)
        self._workers_seen: tuple[float, tuple[str, ...]] = (0.0, ())
        self._aborts: dict[str, asyncio.Task[None]] = {}
        self._closing: asyncio.Task[None] | None = None
        self._finished = False
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout)
        # Slots bound the requests; the pool itself never queues, so a time-out never counts waiting for a slot.
        self.session = _session(0, headers, timeout)
        # Aborts have connections of their own: they must get through when every slot hangs.
        self.control = _session(
            _CONTROL_CONNECTIONS, control_headers, aiohttp.ClientTimeout(total=30.0, sock_connect=5.0)
        )

    async def request(self, method: str, url: str, *, json: Any = None, timeout: float = 10.0) -> tuple[int, bytes]:
        """One control call: status and body. Raises aiohttp's errors."""
        body = None if json is None else orjson.dumps(json)
        limit = aiohttp.ClientTimeout(total=timeout, sock_connect=min(timeout, 5.0))
        async with self.control.request(method, url, data=body, timeout=limit) as response:
            return response.status, await response.read()

    async def list_workers(self) -> tuple[str, ...]:
        """The workers behind `base_url`, or nothing if it is no router (or does not answer)."""
        if self._worker_urls:
            return self._worker_urls
        seen_at, seen = self._workers_seen
        if seen and self.loop.time() - seen_at < _WORKERS_FRESH_S:
            return seen
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError, ValueError):
            status, body = await self.request("GET", f"{self._base_url}/workers", timeout=ABORT_TIMEOUT_S)
            if status == 200:
                self._workers_seen = (self.loop.time(), tuple(worker_urls(orjson.loads(body))))
                return self._workers_seen[1]
        return ()

    async def abort(self, rid: str) -> bool:
        """Ask the server to stop a request: directly, or at every worker where a router does not forward it.

        Returns:
            Whether any server took the call. Servers answer 200 for unknown ids too.
        """
        if not self._is_router:
            status = await self._post_abort(self._base_url, rid)
            if status not in NOT_ROUTED:
                return status is not None and status < 400
        workers = await self.list_workers()
        self._is_router = bool(workers)
        statuses = await asyncio.gather(*(self._post_abort(url, rid) for url in workers))
        return any(status is not None and status < 400 for status in statuses)

    async def abort_everywhere(self, rid: str) -> int:
        """Abort at `base_url` and at every worker; returns how many of them took the call."""
        urls = dict.fromkeys((self._base_url, *await self.list_workers()))
        statuses = await asyncio.gather(*(self._post_abort(url, rid) for url in urls))
        return sum(status is not None and status < 400 for status in statuses)

    async def _post_abort(self, url: str, rid: str) -> int | None:
        try:
            status, _ = await self.request("POST", f"{url}/abort_request", json={"rid": rid}, timeout=ABORT_TIMEOUT_S)
        except (aiohttp.ClientError, TimeoutError, OSError, RuntimeError) as error:
            logger.debug("url=<%s>, rid=<%s>, error=<%r> | abort call failed", url, rid, error)
            return None
        return status

    def abort_later(self, rid: str) -> None:
        """Abort a request from the background; `close` waits for it, and repeats it if the loop ends first."""
        if rid in self._aborts:
            return
        age = self.loop.time() - self.in_flight.pop(rid, self.loop.time())
        task = self.loop.create_task(self._abort_in_background(rid, age), name=f"sglang-abort-{rid}")
        self._aborts[rid] = task
        task.add_done_callback(lambda done: None if done.cancelled() else self._forget(rid))

    async def _abort_in_background(self, rid: str, age: float) -> None:
        await self.abort(rid)
        if age < 2.0 and not self.closed.is_set():
            # A busy server may not have registered a young request yet, and forgets an abort that comes too early.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.closed.wait(), _ABORT_AGAIN_S)
            await self.abort(rid)

    def _forget(self, rid: str) -> None:
        self._aborts.pop(rid, None)

    async def settle(self) -> None:
        """Wait until every outstanding abort was sent."""
        while pending := [task for task in self._aborts.values() if not task.done()]:
            await asyncio.wait(pending)

    async def close(self) -> None:
        """Abort what is in flight, wait for the aborts, close the connections. Every caller waits for the end."""
        self.closed.set()
        if self._closing is None:
            self._closing = self.loop.create_task(self._close(), name="sglang-close")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        for rid in list(self.in_flight):
            self.abort_later(rid)
        await self.session.close()
        pending = list(self._aborts.values())
        if pending:
            await asyncio.wait(pending, timeout=2 * ABORT_TIMEOUT_S)
        # Aborts that were cancelled with everything else at the end of `asyncio.run` are sent here.
        lost = [rid for rid, task in self._aborts.items() if task.cancelled()]
        await asyncio.gather(*(self.abort(rid) for rid in lost))
        await self.control.close()
        self._finished = True
        with _open_lock:
            guard = _open.pop(self, None)
        if guard is not None:
            with contextlib.suppress(RuntimeError):  # the loop may be finalising it at this moment
                await guard.aclose()

    def close_soon(self) -> None:
        """Begin to close from any thread, as garbage collection does."""
        if self.loop.is_closed():
            self.drop()
            return
        with contextlib.suppress(RuntimeError):  # closed in this instant
            self.loop.call_soon_threadsafe(lambda: self.loop.create_task(self.close()))

    def drop(self) -> None:
        """Release the sockets of a loop that is over and can run nothing any more."""
        self.closed.set()
        with _open_lock:
            _open.pop(self, None)
        for session in (self.session, self.control):
            _close_sockets(session.connector)
            session.detach()

    async def _guard(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            with _open_lock:
                _open.pop(self, None)
            if not self._finished:
                await self.close()


def open_transport(**options: Any) -> LoopTransport:
    """A transport on the running loop, which closes it when it ends. Releases those of loops that are over.

    Args:
        **options: Arguments of `LoopTransport`.
    """
    for other in list(_open):
        if other.loop.is_closed():
            other.drop()
    transport = LoopTransport(**options)
    guard = transport._guard()
    # Run it to its `yield` (it does not wait on the way), so that the loop knows it and finalises it.
    with contextlib.suppress(StopIteration):
        guard.__anext__().__await__().__next__()
    with _open_lock:
        _open[transport] = guard
    return transport


def _session(limit: int, headers: dict[str, str], timeout: aiohttp.ClientTimeout) -> aiohttp.ClientSession:
    trace = aiohttp.TraceConfig()
    trace.on_connection_create_end.append(_connected)
    trace.on_connection_reuseconn.append(_reused)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=limit, keepalive_timeout=KEEPALIVE_S),
        headers=headers,
        timeout=timeout,
        cookie_jar=aiohttp.DummyCookieJar(),
        trace_configs=[trace],
    )


async def _connected(_session: Any, context: SimpleNamespace, _params: Any) -> None:
    if context.trace_request_ctx is not None:
        context.trace_request_ctx.connected = True


async def _reused(_session: Any, context: SimpleNamespace, _params: Any) -> None:
    if context.trace_request_ctx is not None:
        context.trace_request_ctx.connected = context.trace_request_ctx.reused = True


def _close_sockets(connector: Any) -> None:
    """Close the sockets of a connector whose loop is closed: its own `close` would need the loop.

    Uses private attributes of aiohttp and asyncio, and so does nothing where they are named otherwise: the sockets
    are then closed by the garbage collector, with a ResourceWarning.
    """
    connections: Iterable[Any] = getattr(connector, "_conns", {}).values()
    protocols = [entry[0] for entries in connections for entry in entries]
    protocols += list(getattr(connector, "_acquired", ()))
    for protocol in protocols:
        transport = getattr(protocol, "transport", None)
        sock = getattr(transport, "_sock", None)
        if sock is not None:
            with contextlib.suppress(Exception):
                sock.close()
                transport._sock = None  # type: ignore[union-attr]
    with contextlib.suppress(Exception):
        connector._conns.clear()
        connector._acquired.clear()
        connector._closed = True
