"""Abort calls: to the server, or to every worker behind a router, from the background and more than once if need be."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any

import orjson

from ...exceptions import BackendError
from .options import is_address
from .retry import pauses
from .session import HTTPSession

logger = logging.getLogger(__name__)

ABORT_TIMEOUT_S = 5.0
"""Longest time for one abort call, and for repeating it; the request it is about is lost already."""

_FAILURES = (OSError, BackendError, RuntimeError, ValueError)
_TELL_S = 1.0
"""A cancelled call waits so long for its abort call to be answered; the call goes on from the background."""
_ABORT_AGAIN_S = 0.5
_LONGEST_PAUSE_S = 2.0
# A busy server may not have registered a young request yet, and forgets an abort that comes too early.
_YOUNG_S = 2.0
_WORKERS_FRESH_S = 1.0  # workers come and go, but a thousand cancelled calls should not ask a thousand times


class Outcome(Enum):
    """What became of an abort call."""

    TOOK = auto()
    """2xx. Servers say so for unknown ids too."""
    LATER = auto()
    """No answer, 408, 425, 429, 5xx: it may take the call later."""
    REFUSED = auto()
    """It will not take it: a router, a wrong key, nobody there."""


class Aborts:
    """The aborts of one event loop.

    Args:
        workers: Workers behind a router, if they are known; else `GET /workers` is asked.
        path: Where they go, behind the address of a server.
        body: The JSON of the abort of a request.
    """

    def __init__(
        self,
        *,
        base_url: str,
        workers: tuple[str, ...],
        headers: Mapping[str, str],
        path: str,
        body: Callable[[str], dict[str, Any]],
        http: HTTPSession,
    ) -> None:
        self._base_url = base_url
        self._workers = workers
        self._headers = headers
        self._path = path
        self._body = body
        self._http = http
        self._loop = asyncio.get_running_loop()
        self._is_router = bool(workers)
        self._workers_seen: tuple[float, tuple[str, ...]] = (0.0, ())
        self._tasks: dict[str, tuple[asyncio.Task[None], asyncio.Event]] = {}

    # ------------------------------------------------------------ one abort call

    async def list_workers(self, *, outlives_closing: bool = False) -> tuple[str, ...]:
        """The workers behind `base_url`, or nothing if it is not a router (or does not answer)."""
        if self._workers:
            return self._workers
        seen_at, seen = self._workers_seen
        if seen and self._loop.time() - seen_at < _WORKERS_FRESH_S:
            return seen
        with contextlib.suppress(*_FAILURES):
            status, body = await self._http.call(
                "GET", f"{self._base_url}/workers", timeout=ABORT_TIMEOUT_S, outlives_closing=outlives_closing
            )
            if status == 200:
                self._workers_seen = (self._loop.time(), tuple(worker_urls(orjson.loads(body))))
                return self._workers_seen[1]
        return ()

    async def abort(self, rid: str, *, outlives_closing: bool = False) -> set[Outcome]:
        """Ask the server, and every worker where a router does not take the call, to stop a request.

        Servers take the call for unknown ids, too.
        """
        outcomes: set[Outcome] = set()
        if not self._is_router:
            outcomes.add(await self._post(self._base_url, rid, outlives_closing))
            if Outcome.TOOK in outcomes:
                return outcomes
        # Routers say no in many ways; whatever it was, workers are asked where there are any.
        workers = await self.list_workers(outlives_closing=outlives_closing)
        self._is_router = bool(workers)
        if workers:
            return set(await asyncio.gather(*(self._post(url, rid, outlives_closing) for url in workers)))
        return outcomes or {Outcome.LATER}  # a router that does not name its workers at the moment

    async def abort_everywhere(self, rid: str) -> int:
        """Abort at `base_url` and at every worker; returns how many of them took the call."""
        urls = dict.fromkeys((self._base_url, *await self.list_workers()))
        outcomes = await asyncio.gather(*(self._post(url, rid, False) for url in urls))
        return outcomes.count(Outcome.TOOK)

    async def _post(self, url: str, rid: str, outlives_closing: bool) -> Outcome:
        try:
            status, _ = await self._http.call(
                "POST",
                f"{url}{self._path}",
                json=self._body(rid),
                headers=self._headers,
                timeout=ABORT_TIMEOUT_S,
                outlives_closing=outlives_closing,
            )
        except _FAILURES as error:
            logger.debug("url=<%s>, rid=<%s>, error=<%r> | abort call failed", url, rid, error)
            gone = isinstance(error, RuntimeError | ValueError) or isinstance(error.__cause__, ConnectionRefusedError)
            return Outcome.REFUSED if gone else Outcome.LATER
        if 200 <= status < 300:
            return Outcome.TOOK
        later = status in (408, 425, 429) or (status >= 500 and status != 501)
        return Outcome.LATER if later else Outcome.REFUSED

    # ------------------------------------------------------------ aborts of requests of the client

    def begin(self, rid: str, age: float) -> asyncio.Event:
        """Abort a request that was sent `age` seconds ago, from the background; the event says that it was asked."""
        if rid not in self._tasks:
            asked = asyncio.Event()
            task = self._loop.create_task(self._until_taken(rid, age, asked), name=f"sglang-abort-{rid}")
            task.add_done_callback(lambda _: self._tasks.pop(rid, None))
            self._tasks[rid] = task, asked
        return self._tasks[rid][1]

    async def tell(self, rid: str, age: float) -> None:
        """Abort a request, and wait a moment until the server was asked: the loop may end with the task that waits."""
        asked = self.begin(rid, age)
        try:
            await asyncio.wait_for(asked.wait(), _TELL_S)
        except TimeoutError:
            return
        except asyncio.CancelledError:
            if not asked.is_set():  # `asyncio.run` ends, and has cancelled the background, too
                await self.abort(rid, outlives_closing=True)
            raise

    async def _until_taken(self, rid: str, age: float, asked: asyncio.Event) -> None:
        end = self._loop.time() + ABORT_TIMEOUT_S
        again = age < _YOUNG_S
        for pause in pauses(_ABORT_AGAIN_S, _LONGEST_PAUSE_S):
            outcomes = await self.abort(rid, outlives_closing=True)
            asked.set()
            failed = Outcome.LATER in outcomes
            if not failed and (not again or self._http.closed.is_set()):
                return
            if self._loop.time() + pause > end:
                logger.warning("base_url=<%s>, rid=<%s> | abort call not taken, given up", self._base_url, rid)
                return
            if self._http.closed.is_set():
                await asyncio.sleep(pause)
            else:
                await self._http.wait(pause)
            again = again and failed

    async def settle(self) -> None:
        """Wait until no abort is outstanding."""
        while self._tasks:
            await asyncio.wait([task for task, _ in self._tasks.values()])

    async def finish(self) -> None:
        """Wait for outstanding aborts, at most twice `ABORT_TIMEOUT_S`."""
        if tasks := [task for task, _ in self._tasks.values()]:
            _, late = await asyncio.wait(tasks, timeout=2 * ABORT_TIMEOUT_S)
            for task in late:
                task.cancel()


def worker_urls(listing: Any) -> list[str]:
    """Worker addresses in the answer of `GET /workers` (`{"workers": [{"url": ...}]}`), without trailing slashes."""
    entries = listing.get("workers", listing.get("urls", [])) if isinstance(listing, Mapping) else listing
    if not isinstance(entries, list):
        return []
    urls = [entry.get("url") if isinstance(entry, Mapping) else entry for entry in entries]
    # gRPC workers have no HTTP API to call; prefill/decode routers list a worker once per role.
    return list(dict.fromkeys(url.rstrip("/") for url in urls if isinstance(url, str) and is_address(url)))
