"""Writing answers: whole, or as a stream whose head is held back until errors are known."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping

import orjson
from aiohttp import web

from .dialects.wire import Refused, WireDialect, WireReply, WireRequest

_TCP_CLOSE = 7  # of Linux' tcp_states.h: where a reset leads


def refusal(dialect: WireDialect, refused: Refused) -> web.Response:
    """A refusal as an answer. `x-should-retry` keeps SDKs from repeating what will be refused again."""
    if refused.retry_after is not None:
        headers = {"retry-after": f"{refused.retry_after:g}"}
    else:
        headers = {"x-should-retry": "false"}
    body = orjson.dumps(dialect.error(refused))
    return web.Response(body=body, status=refused.status, headers=headers, content_type="application/json")


async def send(
    request: web.Request,
    dialect: WireDialect,
    wire: WireRequest,
    sampling: asyncio.Task[WireReply],
    *,
    headers: Mapping[str, str],
    hold: float,
    ping_interval: float,
) -> web.StreamResponse:
    """Wait for a reply and write it. The task continues when this call is cancelled.

    Args:
        request: The HTTP request.
        dialect: How answers are written.
        wire: The request as it was read.
        sampling: Gives the reply, or raises `Refused`.
        headers: Headers of the answer.
        hold: Seconds to wait before a stream's head is sent.
        ping_interval: Seconds between pings after that.

    Raises:
        Refused: The reply failed before anything was written.
        OSError: The client went away.
    """
    if not wire.stream:
        await asyncio.wait({sampling})
        body = orjson.dumps(dialect.answer(wire, _reply(sampling)))
        whole = web.Response(body=body, headers=headers, content_type="application/json")
        await whole.prepare(request)
        await whole.write_eof()
        return whole
    stream = web.StreamResponse(headers={**headers, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
    stream.content_type = "text/event-stream"
    await asyncio.wait({sampling}, timeout=hold)
    if sampling.done():
        try:
            _reply(sampling)  # raises while the status can still say so
        except Refused as refused:
            if refused.prompt is None or not dialect.overflow_in_stream:
                raise
    await stream.prepare(request)
    while not sampling.done():
        await stream.write(dialect.ping)
        await asyncio.wait({sampling}, timeout=ping_interval)
    try:
        events = b"".join(dialect.events(wire, _reply(sampling)))
    except Refused as refused:
        events = dialect.error_event(refused)
    await stream.write(events)
    with contextlib.suppress(OSError):  # some clients close at the last event and do not wait for the end
        await stream.write_eof()
    return stream


def _reply(sampling: asyncio.Task[WireReply]) -> WireReply:
    if sampling.cancelled():
        raise Refused("the session was dropped", status=409, code="session_closed")
    return sampling.result()


def arrived(request: web.Request, when_lost: Callable[[], None]) -> bool:
    """Whether what was just written met an open connection. To be asked without an `await` in between.

    A client that closes its end with bytes unread resets the connection; one that has read them all only ends it. So
    a reset that comes before the connection's next request shows, even later, that the answer was not read.

    Args:
        request: The request that was answered.
        when_lost: Called if such a reset comes.
    """
    transport = request.transport
    if transport is None:
        return False
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6) or not hasattr(socket, "TCP_INFO"):
        return True
    try:
        state = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    except OSError:
        return False
    if state == _TCP_CLOSE:
        return False
    if isinstance(transport, asyncio.Transport):
        _ResetWatch.on(transport).when_lost = when_lost
    return True


class _ResetWatch(asyncio.Protocol):
    """Stands in front of a connection's protocol and notices how the connection ends."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        self.when_lost: Callable[[], None] | None = None

    @classmethod
    def on(cls, transport: asyncio.Transport) -> _ResetWatch:
        """The watch of a connection."""
        protocol = transport.get_protocol()
        if not isinstance(protocol, cls):
            assert isinstance(protocol, asyncio.Protocol)
            protocol = cls(protocol)
            transport.set_protocol(protocol)
        return protocol

    def data_received(self, data: bytes) -> None:
        self.when_lost = None
        self._protocol.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, ConnectionError) and self.when_lost is not None:
            self.when_lost()
        self._protocol.connection_lost(exc)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()
