"""The state of a client in one event loop: connections, slots, the requests in flight, and their aborts.

Abort calls go to the server, or to every worker behind a router, from the background and more than once if need be.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto
from typing import Any

import orjson

from ...exceptions import BackendError
from .client_options import is_address
from .connections import Attempt, HTTPSession
from .retry import RetryClass, classify_status, pauses

logger = logging.getLogger(__name__)

ABORT_TIMEOUT_S = 5.0
"""Longest time for one abort call, and for repeating it; the request it is about is lost already."""

_FAILURES = (BackendError, RuntimeError, ValueError)
# A cancelled call waits so long for its abort call to be answered; the call goes on from the background.
_TELL_S = 1.0
_ABORT_AGAIN_S = 0.5
_LONGEST_PAUSE_S = 2.0
# A busy server may not have registered a young request yet, and forgets an abort that comes too early.
_YOUNG_S = 2.0
_OTHER_LOOP_S = 2 * ABORT_TIMEOUT_S + 2.0
_POLL_S = 0.02
_WORKERS_FRESH_S = 1.0  # workers come and go, but a thousand cancelled calls should not ask a thousand times


class Outcome(Enum):
    """The outcome of an abort call."""

    TOOK = auto()
    """2xx. Servers say so for unknown ids too."""
    LATER = auto()
    """No answer, 408, 425, 429, 5xx: it may take the call later."""
    REFUSED = auto()
    """Cannot take it: a router, a wrong key, or nobody there."""


class LoopTransport:
    """Connections, requests in flight and outstanding aborts of one event loop.

    Args:
        workers: Workers behind a router, if they are known; else `GET /workers` is asked.
        abort_route: Where aborts go, behind the address of a server.
        abort_headers: Headers of aborts.
        abort_body: The JSON of the abort of a request.

    Attributes:
        slots: Bounds the requests; connections are never waited for, so a time-out never counts waiting for a slot.
        probing: Held by whoever asks the server about itself.
        in_flight: The attempts that were sent and have no answer yet, by their ids.
    """

    def __init__(
        self,
        *,
        max_connections: int,
        http: HTTPSession,
        base_url: str,
        workers: tuple[str, ...],
        abort_route: str,
        abort_headers: Mapping[str, str],
        abort_body: Callable[[str], dict[str, Any]],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.slots = asyncio.Semaphore(max_connections)
        self.probing = asyncio.Lock()
        self.in_flight: dict[str, Attempt] = {}
        self.http = http
        self._pid = os.getpid()
        self._base_url = base_url
        self._workers = workers
        self._abort_route = abort_route
        self._abort_headers = abort_headers
        self._abort_body = abort_body
        self._is_router = bool(workers)
        self._workers_seen: tuple[float, tuple[str, ...]] = (0.0, ())
        self._tasks: dict[str, tuple[asyncio.Task[None], asyncio.Event]] = {}

    @property
    def is_over(self) -> bool:
        """Its loop is closed, or runs in the process of which this one is a fork."""
        return self.loop.is_closed() or self._pid != os.getpid()

    async def close(self) -> None:
        """Abort what is in flight, wait for the aborts, close the connections; every caller waits for the end."""
        for rid, attempt in list(self.in_flight.items()):
            if attempt.connected:
                self.begin_abort(rid, attempt.age)
        self.http.interrupt()
        try:
            if tasks := [task for task, _ in self._tasks.values()]:
                _, late = await asyncio.wait(tasks, timeout=2 * ABORT_TIMEOUT_S)
                for task in late:
                    task.cancel()
        finally:
            self.http.close()

    # ------------------------------------------------------------ one abort call

    async def list_workers(self) -> tuple[str, ...]:
        """The workers behind `base_url`, or nothing if it is not a router (or does not answer)."""
        if self._workers:
            return self._workers
        seen_at, workers = self._workers_seen
        if workers and self.loop.time() - seen_at < _WORKERS_FRESH_S:
            return workers
        with contextlib.suppress(*_FAILURES):
            url = f"{self._base_url}/workers"
            status, body = await self.http.call(
                "GET", url, timeout=ABORT_TIMEOUT_S, attempt=Attempt(outlives_closing=True)
            )
            if status == 200:
                self._workers_seen = (self.loop.time(), tuple(worker_urls(orjson.loads(body))))
                return self._workers_seen[1]
        return ()

    async def abort(self, rid: str) -> set[Outcome]:
        """Ask the server, and every worker where a router does not take the call, to stop a request.

        Servers take the call for unknown ids, too.
        """
        outcomes: set[Outcome] = set()
        if not self._is_router:
            outcomes.add(await self._post(self._base_url, rid))
            if Outcome.TOOK in outcomes:
                return outcomes
        # Routers say no in many ways; whatever it was, workers are asked where there are any.
        workers = await self.list_workers()
        self._is_router = bool(workers)
        if workers:
            return set(await asyncio.gather(*(self._post(url, rid) for url in workers)))
        return outcomes or {Outcome.LATER}  # a router that does not name its workers at the moment

    async def _post(self, url: str, rid: str) -> Outcome:
        try:
            status, _ = await self.http.call(
                "POST",
                f"{url}{self._abort_route}",
                json=self._abort_body(rid),
                headers=self._abort_headers,
                timeout=ABORT_TIMEOUT_S,
                attempt=Attempt(outlives_closing=True),
            )
        except _FAILURES as error:
            logger.debug("url=<%s>, rid=<%s>, error=<%r> | abort call failed", url, rid, error)
            gone = isinstance(error, RuntimeError | ValueError) or isinstance(error.__cause__, ConnectionRefusedError)
            return Outcome.REFUSED if gone else Outcome.LATER
        if 200 <= status < 300:
            return Outcome.TOOK
        return Outcome.REFUSED if classify_status(status) is RetryClass.NEVER else Outcome.LATER

    # ------------------------------------------------------------ aborts of requests of the client

    def begin_abort(self, rid: str, age: float) -> asyncio.Event:
        """Abort a request that was sent `age` seconds ago, from the background; the event says that it was asked."""
        if rid not in self._tasks:
            was_asked = asyncio.Event()
            task = self.loop.create_task(self._until_taken(rid, age, was_asked), name=f"sglang-abort-{rid}")
            task.add_done_callback(lambda _: self._tasks.pop(rid, None))
            self._tasks[rid] = task, was_asked
        return self._tasks[rid][1]

    async def tell_abort(self, rid: str, age: float) -> None:
        """Abort a request, and wait a moment until the server was asked: the loop may end with the task that waits."""
        was_asked = self.begin_abort(rid, age)
        try:
            await asyncio.wait_for(was_asked.wait(), _TELL_S)
        except TimeoutError:
            return
        except asyncio.CancelledError:
            if not was_asked.is_set():  # `asyncio.run` ends, and has cancelled the background, too
                await self.abort(rid)
            raise

    async def _until_taken(self, rid: str, age: float, was_asked: asyncio.Event) -> None:
        end = self.loop.time() + ABORT_TIMEOUT_S
        again = age < _YOUNG_S  # taken or not: the server may not have known the request yet
        for pause in pauses(_ABORT_AGAIN_S, _LONGEST_PAUSE_S):
            outcomes = await self.abort(rid)
            was_asked.set()
            failed = Outcome.LATER in outcomes
            if not failed and (not again or self.http.closed.is_set()):
                return
            if self.loop.time() + pause > end:
                logger.warning("base_url=<%s>, rid=<%s> | abort call not taken, given up", self._base_url, rid)
                return
            if self.http.closed.is_set():
                await asyncio.sleep(pause)
            else:
                await self.http.wait(pause)
            again = again and failed


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


def worker_urls(listing: Any) -> list[str]:
    """Worker addresses in the answer of `GET /workers` (`{"workers": [{"url": ...}]}`), without trailing slashes."""
    entries = listing.get("workers", listing.get("urls", [])) if isinstance(listing, Mapping) else listing
    if not isinstance(entries, list):
        return []
    urls = [entry.get("url") if isinstance(entry, Mapping) else entry for entry in entries]
    # gRPC workers have no HTTP API to call; prefill/decode routers list a worker once per role.
    return list(dict.fromkeys(url.rstrip("/") for url in urls if isinstance(url, str) and is_address(url)))
