"""Writing answers, and when one counts as delivered.

A reply is delivered as soon as its terminal event has reached the socket: many clients stop reading there and reset the
connection with the end of the response unread. Until then the client may be gone; a client that has only closed its
sending side is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from aiohttp import HttpVersion11, web

from .answers import Answer
from .dialects.wire import Refused, WireDialect, WireRequest
from .exact_json import dumps
from .session import Session

logger = logging.getLogger(__name__)

_SETTLE = 0.05  # seconds in which a request begins to be served, or a client that is gone refuses what it is sent
_PROBE_INTERVAL = 1.0  # seconds between the probes of a half-closed connection


def refusal(dialect: WireDialect, refused: Refused) -> web.Response:
    """A refusal as an answer. `x-should-retry` keeps SDKs from repeating what will be refused again."""
    if refused.retry_after is not None:
        headers = {"retry-after": f"{refused.retry_after:g}"}
    else:
        headers = {"x-should-retry": "false"}
    return as_json(dialect.error(refused), status=refused.status, headers=headers)


def hide(error: Exception) -> Refused:
    """The refusal for an error of ours. Neither its message nor the request is logged: both may hold secrets."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    logger.error("error=<%s>, where=<%s:%d> | request failed", type(error).__name__, where.name, where.lineno)
    return Refused(f"internal error ({type(error).__name__})", status=500, code="internal")


def as_json(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """A JSON answer."""
    return web.Response(body=dumps(value), status=status, headers=headers, content_type="application/json")


async def send(
    request: web.Request,
    dialect: WireDialect,
    wire: WireRequest,
    session: Session,
    answer: Answer,
    *,
    hold: float,
    ping_interval: float,
) -> web.StreamResponse:
    """Wait for an answer, write it, and say whether it was delivered. Sampling continues when this call is cancelled.

    Args:
        hold: Seconds to wait before a stream's head is sent.
        ping_interval: Seconds between pings after that.

    Raises:
        Refused: There is no answer, and nothing was written.
        OSError: The client went away.
    """
    headers, sampling = {"x-strands-session": session.id}, answer.task
    if ignored := session.ignored_fields(wire):
        headers["x-strands-ignored"] = ", ".join(sorted(set(ignored)))
    try:
        await asyncio.wait({sampling}, timeout=hold if wire.stream else None)
        if not wire.stream:
            body = _write(dialect, wire, session, answer)
            response: web.StreamResponse = web.Response(body=body, headers=headers, content_type="application/json")
            await response.prepare(request)
            await response.write_eof()
        else:
            response = web.StreamResponse(headers={**headers, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
            response.content_type = "text/event-stream"
            try:
                if not sampling.done():
                    await response.prepare(request)
                while not sampling.done():
                    await response.write(dialect.ping)
                    await asyncio.wait({sampling}, timeout=ping_interval)
                events = _write(dialect, wire, session, answer)
            except Refused as refused:  # said by the status, unless that is gone or clients look for it in the stream
                if not response.prepared and (refused.prompt is None or not dialect.overflow_in_stream):
                    raise
                events = dialect.error_event(refused)
            await response.prepare(request)
            # In one piece: clients stop reading at the terminal event, and what they leave unread looks like a reset.
            await response.write_eof(events)
        if request.transport is None:
            raise ConnectionResetError("the client closed the connection")
        if (connection := Connection.of(request)) is not None:
            await connection.flush()
    except BaseException:
        session.answers.abandon(answer)
        raise
    session.answers.deliver(answer)
    return response


def _write(dialect: WireDialect, wire: WireRequest, session: Session, answer: Answer) -> bytes:
    """The whole answer, before its first byte is sent; one that cannot be written is refused and forgotten."""
    reply = session.reply(answer, wire)
    try:
        return b"".join(dialect.events(wire, reply)) if wire.stream else dumps(dialect.answer(wire, reply))
    except Exception as error:  # whatever it is, a repeat would meet it again
        session.answers.fail(answer)
        session.failure = refused = hide(error)
        refused.code = "unwritable"
        raise refused from error


class QuietProtocol(web.RequestHandler):
    """HTTP that neither logs nor repeats the lines of a request, which may hold a key."""

    __slots__ = ()

    def log_access(self, request: web.BaseRequest, response: web.StreamResponse, time: float | None) -> None:
        """Nothing is logged of a request that was served."""

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """The answer to bytes that are not a request, and to an error that no handler caught."""
        level = logging.DEBUG if isinstance(exc, ConnectionError) else logging.WARNING  # the client went away
        logger.log(level, "status=<%d>, error=<%s> | request failed", status, type(exc).__name__)
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the answer has been sent already")
        response = web.Response(status=status, text="the request cannot be read" if status < 500 else "internal error")
        response.force_close()
        return response


class Connection(asyncio.Protocol):
    """A client's connection: stands in front of the HTTP protocol and knows how the client's side ends.

    The end of input alone does not say whether a client closed its sending side or went away. Bytes do: they reset the
    connection of a client that is gone. So an interim response (102) is sent from time to time while the answer to a
    half-closed connection is awaited and nothing of it has been sent.

    Attributes:
        when_cut: Called if the client ends the connection while it is answered, or resets it afterwards, before it
            sends anything else.
    """

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        self._transport: asyncio.Transport | None = None
        self._flushed: asyncio.Future[None] | None = None
        self._request: web.Request | None = None
        self._watcher: asyncio.Task[None] | None = None
        self.is_half_closed = False
        self.when_cut: Callable[[], None] | None = None

    @classmethod
    def of(cls, request: web.Request) -> Connection | None:
        """The connection of a request; None if the application runs on another server, or the client is gone."""
        protocol = None if request.transport is None else request.transport.get_protocol()
        return protocol if isinstance(protocol, cls) else None

    @contextlib.contextmanager
    def serving(self, request: web.Request) -> Iterator[None]:
        """For the time in which a request is being answered."""
        self._request = request
        try:
            yield
        finally:
            self._request = None

    async def flush(self) -> None:
        """Wait until the socket took all output, unrefused by a half-closed client; else `ConnectionResetError`."""
        transport = self._transport
        while transport is not None and transport.get_write_buffer_size():
            self._flushed = asyncio.get_running_loop().create_future()
            # With the limit at 0, `resume_writing` is called when the last byte is out.
            transport.set_write_buffer_limits(high=0)
            await self._flushed
        if self.is_half_closed:  # a client that is gone refuses the bytes, which takes a round trip
            await asyncio.sleep(_SETTLE)
        if transport is None or transport.is_closing() or self._was_reset():
            raise ConnectionResetError("the client closed the connection")

    def _was_reset(self) -> bool:
        """True if a connection from which nothing is read any more was reset."""
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        return sock is not None and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0

    async def _watch(self) -> None:
        """From the end of input on: find out whether the client is gone."""
        await asyncio.sleep(_SETTLE)
        request, waited = self._request, False
        while (transport := self._transport) is not None and not transport.is_closing():
            if request is None or request is not self._request or not request.content.is_eof() or self._was_reset():
                transport.abort()  # nothing is owed, nothing more can be asked, or nobody is there
                return
            if waited and not request.writer.output_size and request.version >= HttpVersion11:
                transport.write(b"HTTP/1.1 102 Processing\r\n\r\n")
                await asyncio.sleep(_SETTLE)
                if self._was_reset():
                    continue
            await asyncio.sleep(_PROBE_INTERVAL)
            waited = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio, as the methods below: a client connected."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._protocol.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request came."""
        self.when_cut = None
        self._protocol.data_received(data)

    def eof_received(self) -> bool:
        """The client closed its sending side, or went away; True keeps the connection open."""
        self._protocol.eof_received()
        self.is_half_closed = True
        if self._request is not None and self.when_cut is not None:
            self.when_cut()
        self._watcher = asyncio.get_running_loop().create_task(self._watch())
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._transport = None
        self._wake()
        if self._watcher is not None:
            self._watcher.cancel()
        if isinstance(exc, ConnectionError) and self.when_cut is not None:
            self.when_cut()
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        """The buffer is above its limit."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """The buffer has been written."""
        self._wake()
        self._protocol.resume_writing()

    def _wake(self) -> None:
        if self._flushed is not None and not self._flushed.done():
            self._flushed.set_result(None)
