"""Abort calls: to the server, or to every worker behind a router, from the background and more than once if need be."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum, auto
from typing import Any

import orjson

from ...exceptions import BackendAnswerLimitError
from .closing import Closing
from .options import is_address
from .retry import pauses

logger = logging.getLogger(__name__)

ABORT_TIMEOUT_S = 5.0
"""Longest time for one abort call, and for repeating it; the request it is about is lost already."""

_ABORT_AGAIN_S = 0.5
_LONGEST_PAUSE_S = 2.0
# A busy server may not have registered a young request yet, and forgets an abort that comes too early.
_YOUNG_S = 2.0
_WORKERS_FRESH_S = 1.0  # workers come and go, but a thousand cancelled calls should not ask a thousand times

Send = Callable[..., Awaitable[tuple[int, bytes]]]
"""`send(method, url, json=, headers=, timeout=)`: status and body."""


class _Outcome(Enum):
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
        send: Sends one control call; raises `OSError`s.
    """

    def __init__(
        self,
        *,
        base_url: str,
        workers: tuple[str, ...],
        headers: Mapping[str, str],
        path: str,
        body: Callable[[str], dict[str, Any]],
        send: Send,
        closing: Closing,
    ) -> None:
        self._base_url = base_url
        self._workers = workers
        self._headers = headers
        self._path = path
        self._body = body
        self._send = send
        self._closing = closing
        self._loop = asyncio.get_running_loop()
        self._is_router = bool(workers)
        self._workers_seen: tuple[float, tuple[str, ...]] = (0.0, ())
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def list_workers(self) -> tuple[str, ...]:
        """The workers behind `base_url`, or nothing if it is not a router (or does not answer)."""
        if self._workers:
            return self._workers
        seen_at, seen = self._workers_seen
        if seen and self._loop.time() - seen_at < _WORKERS_FRESH_S:
            return seen
        with contextlib.suppress(OSError, BackendAnswerLimitError, ValueError, RuntimeError):
            status, body = await self._send("GET", f"{self._base_url}/workers", timeout=ABORT_TIMEOUT_S)
            if status == 200:
                self._workers_seen = (self._loop.time(), tuple(worker_urls(orjson.loads(body))))
                return self._workers_seen[1]
        return ()

    async def abort(self, rid: str) -> bool:
        """Ask the server, and every worker where a router does not take the call, to stop a request.

        Returns True if any took it; servers answer 200 for unknown ids too.
        """
        return _Outcome.TOOK in await self._ask(rid)

    async def abort_everywhere(self, rid: str) -> int:
        """Abort at `base_url` and at every worker; returns how many of them took the call."""
        urls = dict.fromkeys((self._base_url, *await self.list_workers()))
        outcomes = await asyncio.gather(*(self._post(url, rid) for url in urls))
        return sum(outcome is _Outcome.TOOK for outcome in outcomes)

    async def _ask(self, rid: str) -> list[_Outcome]:
        outcomes: list[_Outcome] = []
        if not self._is_router:
            outcomes.append(await self._post(self._base_url, rid))
            if _Outcome.TOOK in outcomes:
                return outcomes
        # Routers say no in many ways; whatever it was, workers are asked where there are any.
        workers = await self.list_workers()
        self._is_router = bool(workers)
        if workers:
            return await asyncio.gather(*(self._post(url, rid) for url in workers))
        return outcomes or [_Outcome.LATER]  # a router that does not name its workers at the moment

    async def _post(self, url: str, rid: str) -> _Outcome:
        try:
            status, _ = await self._send(
                "POST", f"{url}{self._path}", json=self._body(rid), headers=self._headers, timeout=ABORT_TIMEOUT_S
            )
        except (OSError, BackendAnswerLimitError, RuntimeError, ValueError) as error:
            logger.debug("url=<%s>, rid=<%s>, error=<%r> | abort call failed", url, rid, error)
            gone = isinstance(error, RuntimeError | ValueError) or isinstance(error.__cause__, ConnectionRefusedError)
            return _Outcome.REFUSED if gone else _Outcome.LATER
        if 200 <= status < 300:
            return _Outcome.TOOK
        later = status in (408, 425, 429) or (status >= 500 and status != 501)
        return _Outcome.LATER if later else _Outcome.REFUSED

    def abort_later(self, rid: str, age: float) -> None:
        """Abort a request that was sent `age` seconds ago, from the background."""
        if rid in self._tasks:
            return
        task = self._loop.create_task(self._until_taken(rid, age), name=f"sglang-abort-{rid}")
        self._tasks[rid] = task
        task.add_done_callback(lambda done: None if done.cancelled() else self._forget(rid))

    def _forget(self, rid: str) -> None:
        self._tasks.pop(rid, None)

    async def _until_taken(self, rid: str, age: float) -> None:
        end = self._loop.time() + ABORT_TIMEOUT_S
        again = age < _YOUNG_S
        for pause in pauses(_ABORT_AGAIN_S, _LONGEST_PAUSE_S):
            outcomes = await self._ask(rid)
            failed = _Outcome.LATER in outcomes
            if not failed and (not again or self._closing.closed.is_set()):
                return
            if self._loop.time() + pause > end:
                logger.warning("base_url=<%s>, rid=<%s> | abort call not taken, given up", self._base_url, rid)
                return
            if self._closing.closed.is_set():
                await asyncio.sleep(pause)
            else:
                await self._closing.wait(pause)
            again = again and failed

    async def settle(self) -> None:
        """Wait until no abort is outstanding."""
        while pending := [task for task in self._tasks.values() if not task.done()]:
            await asyncio.wait(pending)

    async def finish(self) -> None:
        """Wait for outstanding aborts, at most twice `ABORT_TIMEOUT_S`, and send those that were cancelled.

        At the end of `asyncio.run` they are cancelled with everything else.
        """
        pending = [task for task in self._tasks.values() if not task.done()]
        if pending:
            _, late = await asyncio.wait(pending, timeout=2 * ABORT_TIMEOUT_S)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
                for rid in [rid for rid, task in self._tasks.items() if task in late]:
                    self._forget(rid)
        lost = [rid for rid, task in self._tasks.items() if task.cancelled()]
        await asyncio.gather(*(self.abort(rid) for rid in lost))


def worker_urls(listing: Any) -> list[str]:
    """Worker addresses in the answer of `GET /workers` (`{"workers": [{"url": ...}]}`), without trailing slashes."""
    entries = listing.get("workers", listing.get("urls", [])) if isinstance(listing, Mapping) else listing
    if not isinstance(entries, list):
        return []
    urls = [entry.get("url") if isinstance(entry, Mapping) else entry for entry in entries]
    # gRPC workers have no HTTP API to call; prefill/decode routers list a worker once per role.
    return list(dict.fromkeys(url.rstrip("/") for url in urls if isinstance(url, str) and is_address(url)))
