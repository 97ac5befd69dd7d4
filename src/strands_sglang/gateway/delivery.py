"""Requests on their connections: reading one, and writing its answer.

An answer is delivered as soon as its terminal event has reached the socket: many clients stop reading there and reset
the connection with the end of the response unread. A client that ends its connection before, or only its sending side,
has gone away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from .dialects import CHAT_COMPLETIONS
from .dialects.wire import Refused, Route, WireDialect
from .exact_json import dumps
from .requests import origin_of, read_body
from .telemetry import Call

logger = logging.getLogger(__name__)


def as_json(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """A JSON answer."""
    return web.Response(body=dumps(value), status=status, headers=headers, content_type="application/json")


class Connection(web.RequestHandler):
    """A client's connection: logs no line of a request, which may hold a key, and knows unread answers.

    Attributes:
        when_reset: Called if the client resets the connection behind an answer, before it sends another byte.
    """

    when_reset: Callable[[], None] | None = None

    def __init__(self, server: Any, **options: Any) -> None:
        # Nothing is logged of a request. Bodies are unpacked by `read_body`, whose refusals are the dialect's.
        options |= {"access_log": None, "auto_decompress": False}
        super().__init__(server, **options)

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
        response = as_json(CHAT_COMPLETIONS.error(refused), status=refused.status)
        response.force_close()
        return response

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio: a client connected."""
        super().connection_made(transport)
        # Whoever writes waits until the socket has taken the last byte. uvloop's transports are not of asyncio's class.
        cast(asyncio.Transport, transport).set_write_buffer_limits(high=0)

    @property
    def is_behind(self) -> bool:
        """The socket has not taken everything that was written, or had not when the connection ended."""
        return self._paused

    def data_received(self, data: bytes) -> None:
        """Called by asyncio: bytes of a request came."""
        self.when_reset = None
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Called by asyncio: the connection is closed. A handler that is at work is cancelled."""
        if isinstance(exc, ConnectionError) and self.when_reset is not None:
            self.when_reset()
        super().connection_lost(exc)


class Exchange:
    """A request to a path of a dialect, and the way back to its client.

    Args:
        hold: Seconds to wait before a stream's head is sent.
        ping_interval: Seconds between pings after that.

    Attributes:
        headers: Of the answer.
        call: Known facts about it.
    """

    def __init__(
        self, request: web.Request, dialect: WireDialect, route: Route, *, hold: float, ping_interval: float
    ) -> None:
        self.dialect, self.route, self.origin = dialect, route, origin_of(request)
        self.headers: dict[str, str] = {}
        self.call = Call(f"POST {route.path}")
        self.request, self._hold, self._ping_interval = request, hold, ping_interval
        assert isinstance(request.protocol, Connection)
        self._connection: Connection = request.protocol
        self._stream: web.StreamResponse | None = None

    async def read(self) -> dict[str, Any]:
        """The body, with the fields that the path stands for."""
        for name, value in self.route.query.items():
            if self.request.query.get(name) != value:
                raise Refused(f"this path needs ?{name}={value}", param=name)
        path = {name: value for name, value in self.request.match_info.items() if name != "session"}
        return {**await read_body(self.request), **path, **self.route.fields}

    async def wait(self, sampling: asyncio.Future[Any], *, stream: bool) -> None:
        """Wait for a reply; a stream's head is held back for a while, then pings follow."""
        await asyncio.wait({sampling}, timeout=self._hold if stream else None)
        while not sampling.done():
            if self._stream is None:  # by identity: an answer of aiohttp is a mapping, and empty
                self._stream = await self._open("text/event-stream")
            await self._stream.write(self.dialect.ping)
            await asyncio.wait({sampling}, timeout=self._ping_interval)

    def refuse(self, refused: Refused, *, stream: bool) -> bytes:
        """The event of a refusal that a status cannot tell any more, or that clients look for in the stream."""
        if self._stream is None and not (stream and refused.prompt is not None and self.dialect.overflow_in_stream):
            raise refused
        if refused.is_kept:
            raise ConnectionResetError(refused.message)
        self.call.refused = refused
        return self.dialect.error_event(refused)

    async def send(self, body: bytes, *, stream: bool, when_reset: Callable[[], None]) -> web.StreamResponse:
        """Send the answer, or all events of a stream, and return when the socket has taken the last byte.

        Args:
            when_reset: Called if the client resets the connection afterwards.

        Raises:
            OSError: The client went away.
        """
        response = self._stream
        if response is None:
            response = await self._open("text/event-stream" if stream else "application/json", body)
        self._connection.when_reset = when_reset
        try:
            # In one piece: clients stop reading at the terminal event, and bytes left unread look like a reset.
            await response.write_eof(body)
        except asyncio.CancelledError:
            # A client that has read everything may close at once, which cancels the handler.
            if self._connection.connected or self._connection.is_behind:
                raise
        if self._connection.is_behind:
            raise ConnectionResetError("the client closed the connection")
        return response

    async def _open(self, content_type: str, body: bytes | None = None) -> web.StreamResponse:
        response = web.StreamResponse(headers=self.headers)
        response.content_type = content_type
        if content_type == "text/event-stream":
            response.headers.update({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        elif body is not None:
            response.content_length = len(body)
        await response.prepare(self.request)
        return response
