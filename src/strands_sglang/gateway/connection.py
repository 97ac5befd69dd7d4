"""A client's connection, which knows the answers that its client did not get, and the listening socket."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from .dialects import CHAT_COMPLETIONS
from .dialects.wire import Refused
from .exact_json import dumps

logger = logging.getLogger(__name__)


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
        body = dumps(CHAT_COMPLETIONS.error(refused))
        response = web.Response(status=refused.status, body=body, content_type="application/json")
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


def bind(host: str, port: int) -> socket.socket:
    """A socket that has its address, and listens once it is served: clients that come before are refused at once."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sock.family == socket.AF_INET6:  # `::` is not 0.0.0.0 as well
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock


def url_of(listener: socket.socket) -> str:
    """The address of a socket; a file has no other than `localhost`."""
    if listener.family == getattr(socket, "AF_UNIX", None):  # not on every platform
        return "http://localhost"
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
