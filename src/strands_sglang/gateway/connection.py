"""A client's connection: whose request comes on it, and what its client did not get."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from .dialects import CHAT_COMPLETIONS
from .dialects.wire import Refused
from .exact_json import dumps
from .workers import Worker

logger = logging.getLogger(__name__)


class Connection(web.RequestHandler):
    """A client's connection: logs no line of a request, which may hold a key, and knows what the client did not get.

    Args:
        worker: This process. A request that belongs to another worker is handed over, with the connection.
        head: What another worker has read of the first request.

    Attributes:
        when_reset: Called if the client resets the connection behind an answer, before it sends anything else.
    """

    when_reset: Callable[[], None] | None = None

    def __init__(self, worker: Worker, head: bytes, server: Any, **options: Any) -> None:
        # Nothing is logged of a request. Bodies are unpacked by `read_body`, whose refusals are the dialect's.
        options |= {"access_log": None, "auto_decompress": False}
        super().__init__(server, **options)
        self._worker, self._head = worker, head
        self._payload: Any = None  # of the last request
        self._is_moving = False

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Respond to malformed requests and unhandled errors."""
        level = logging.DEBUG if isinstance(exc, ConnectionError) else logging.WARNING  # the client went away
        logger.log(level, "status=<%d>, error=<%s> | request failed", status, type(exc).__name__)
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the answer has been sent already")
        refused = Refused("the request cannot be read" if status < 500 else "internal error", status=status)
        if isinstance(exc, LineTooLong):
            refused = Refused("a header, or the address, is longer than 8190 bytes", status=431)
        body = dumps(CHAT_COMPLETIONS.error(refused))
        response = web.Response(status=refused.status, body=body, content_type="application/json")
        response.force_close()
        return response

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio: a client connected, here or to another worker."""
        super().connection_made(transport)
        # What writes waits until the socket has taken the last byte. uvloop's transports are not of asyncio's class.
        cast(asyncio.Transport, transport).set_write_buffer_limits(high=0)
        if self._head:
            self._take_head()

    @property
    def is_behind(self) -> bool:
        """The socket has not taken everything that was written, or had not when the connection ended."""
        return self._paused

    def data_received(self, data: bytes) -> None:
        """Called by asyncio: bytes of a request came."""
        self.when_reset = None
        is_in_body = self._payload is not None and not self._payload.is_eof() and not self._is_moving
        if self._worker.count == 1 or is_in_body or not data:  # without any, aiohttp goes on with what it has kept
            self._read_here(data)
            return
        self._head = (self._head + data).lstrip(b"\r\n")  # a request begins
        if not self._is_moving:
            self._take_head()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Called by asyncio: the connection is closed. A handler that is at work is cancelled."""
        if isinstance(exc, ConnectionError) and self.when_reset is not None:
            self.when_reset()
        super().connection_lost(exc)

    def _take_head(self) -> None:
        owner = self._worker.owner_of(self._head)
        if owner == self._worker.index:
            self._read_head()
        elif owner is not None:
            assert self.transport is not None
            self._is_moving = True
            self.transport.pause_reading()
            self._worker.spawn(self._move(owner))

    def _read_head(self) -> None:
        head, self._head = self._head, b""
        self._read_here(head)

    def _read_here(self, data: bytes) -> None:
        super().data_received(data)
        if self._messages:
            self._payload = self._messages[-1][1]

    async def _move(self, owner: int) -> None:
        # An answer may be on its way still, though its client has read it.
        while self._request_count and (self._waiter is None or self._waiter.done()):
            await asyncio.sleep(0.001)
        if self.transport is None or self.transport.is_closing():
            return
        try:
            await self._worker.hand_over(owner, self.transport.get_extra_info("socket"), self._head)
        except OSError:
            self._is_moving = False
            self._read_head()  # which says that the other is away
            self.transport.resume_reading()
        else:
            self.transport.abort()  # the descriptor here; the connection lives on there
