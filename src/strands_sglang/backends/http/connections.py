"""HTTP/1.1 as far as this package speaks it: a whole request out, a whole answer back, kept connections.

asyncio connects (with TLS), httptools, the parser of Node.js, reads. A general client costs a call several times as
much (`benchmarks/transport.py`), and a part of that is copying the prompt.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextvars import Context
from dataclasses import dataclass
from typing import Any, cast

import httptools
import orjson
from aiohappyeyeballs import start_connection
from yarl import URL

from ...exceptions import BackendAnswerLimitError

KEEPALIVE_S = 4.0
"""Idle connections are dropped before the server does so (5 s, 4.7 s measured)."""

_ADDRESSES_FRESH_S = 10.0
_NEXT_ADDRESS_S = 0.25  # an address that does not answer delays the next one by so much
_LONGEST_FRAMING = 1 << 18  # bytes of headers, chunk sizes and trailers, beside a quarter of the body
_MOST_HEADERS = 256
_ENCODINGS = frozenset({"gzip", "deflate", "br", "zstd", "compress"})  # other words of the answer are not shown
_SHOWN = 4096  # first bytes of an answer that an error keeps
_LONGEST_ERROR = 1 << 22  # bytes of an error body that are kept


class CannotConnectError(ConnectionError):
    """No connection was made; `is_final` where trying again cannot help: the certificate or the protocol is wrong."""

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


class ConnectionLostError(ConnectionError):
    """The connection broke before the answer was whole; `has_begun` if its status and headers had arrived."""

    def __init__(self, message: str, *, has_begun: bool = False) -> None:
        super().__init__(message)
        self.has_begun = has_begun


class NotHTTPError(ConnectionError):
    """The answer is not HTTP; the message does not repeat its words.

    `received`, its first bytes, may repeat a key: show them through `Secrets.hide` only.
    """

    def __init__(self, message: str, received: bytes = b"") -> None:
        super().__init__(message)
        self.received = received


@dataclass(slots=True, kw_only=True)
class Attempt:
    """Facts about a running attempt, filled in as they become known.

    Attributes:
        fresh: It must have a new connection.
        started: Loop time when it was sent, in seconds.
        connected: It had a connection, so that the server may know of it.
        reused: That connection had served an earlier request.
        opened: When that connection was opened (`time.monotonic`), or 0 if it is not known.
        retry_after: Seconds the server asked to wait, or None.
    """

    rid: str
    fresh: bool = False
    started: float = 0.0
    connected: bool = False
    reused: bool = False
    opened: float = 0.0
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class HTTPAnswer:
    """An answer; header names in lower case, and of error bodies the first 4 MiB."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @classmethod
    def of_json(cls, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> HTTPAnswer:
        """An answer with a JSON body."""
        return cls(status, {name.lower(): text for name, text in (headers or {}).items()}, orjson.dumps(value))


@dataclass(frozen=True, slots=True)
class Target:
    """An address, its own headers, and `head`: request line and all headers up to the length of the body."""

    method: str
    url: str
    headers: Mapping[str, str]
    host: str
    port: int
    is_tls: bool
    path: str
    head: bytes

    @classmethod
    def of(cls, method: str, url: str, headers: Mapping[str, str]) -> Target:
        """The target of an address that `checked_url` took, with a path; `checked_headers` took the headers."""
        parsed = URL(url)
        host = cast(str, parsed.raw_host)
        named = f"[{host}]" if ":" in host else host
        if not parsed.is_default_port():
            named = f"{named}:{parsed.port}"
        fixed = {"Host": named, "Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "strands-sglang"}
        given = {name.lower() for name in headers}
        lines = [f"{method} {parsed.raw_path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in fixed.items() if name.lower() not in given]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = "\r\n".join(lines).encode() + b"\r\nContent-Length: "
        is_tls = parsed.scheme == "https"
        return cls(method, url, dict(headers), host, cast(int, parsed.port), is_tls, parsed.raw_path, head)

    @property
    def origin(self) -> tuple[str, int, bool]:
        """Key of the connections that can carry its requests."""
        return self.host, self.port, self.is_tls


class _Connection(asyncio.Protocol):
    """One connection, and the answer that it waits for; `idle_since` is the loop time at which it was put aside."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.is_open = False
        self.is_used = False
        self.opened = 0.0
        self.idle_since = 0.0
        self.sock: socket.socket | None = None
        self._loop = loop
        self._transport: Any = None
        self._waiting: asyncio.Future[HTTPAnswer] | None = None
        self._parser: Any = httptools.HttpResponseParser(self)
        self._limit = 0
        self._begin_answer()

    def _begin_answer(self) -> None:
        self._status = 0  # 0 until the head is complete
        self._begins = b""
        self._size = 0
        self._headers: dict[str, str] = {}
        self._body: bytes | bytearray = b""
        self._ends_with_connection = False

    @property
    def is_reusable(self) -> bool:
        return self.is_open and self._keeps_alive and not self._transport.get_write_buffer_size()

    def send(self, data: bytes, limit: int) -> asyncio.Future[HTTPAnswer]:
        """Write a request; its answer, of which the body may have `limit` bytes."""
        self._begin_answer()
        self._keeps_alive = False
        self._limit = limit
        self._waiting = future = self._loop.create_future()
        self._transport.write(data)
        return future

    def close(self) -> None:
        """Close at once. A waiting request fails in `connection_lost`."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def release_socket(self) -> None:
        """Close the socket itself, where the loop of the connection is over or belongs to another process."""
        self.is_open = False
        if self.sock is not None:
            self.sock.close()
        if getattr(self._transport, "_sock", None) is not None:  # or the transport warns that it was not closed
            self._transport._sock = None

    # ---- of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.is_open = True
        self.opened = time.monotonic()

    def data_received(self, data: bytes) -> None:
        if self._waiting is None:  # nobody asked: what comes next may belong to another request
            self.close()
            return
        if not self._size:
            self._begins = data[:_SHOWN]
        self._size += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            # Not raised from the parser's error, whose context may hold words of the answer.
            said = "it switches protocols" if isinstance(error, httptools.HttpParserUpgrade) else str(error)
            self._fail(NotHTTPError(said, self._begins))
        if self._waiting is not None and self._size - 5 * len(self._body) // 4 > _LONGEST_FRAMING:
            self._refuse(f"the answer has more than {_LONGEST_FRAMING} bytes of headers and chunk sizes")

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._parser = None  # which holds this object
        if self._waiting is None:
            return
        if self._status and (self._status != 200 or (self._ends_with_connection and exc is None)):
            self._succeed()  # of an error the status says enough
            return
        self._fail(
            ConnectionLostError(str(exc) if exc else "the server closed it", has_begun=bool(self._status)), cause=exc
        )

    # ---- of the parser

    def on_message_begin(self) -> None:
        if self._waiting is None:  # behind a whole answer
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._status:  # no trailer replaces a header
            self._headers[name.lower().decode("latin-1")] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # "continue" and its like come before the answer
            self._headers = {}
            return
        self._status = status
        self._keeps_alive = self._parser.should_keep_alive()
        headers = self._headers
        length = headers.get("content-length")
        self._ends_with_connection = length is None and "transfer-encoding" not in headers
        if len(headers) > _MOST_HEADERS:
            self._refuse(f"the answer has {len(headers)} headers, more than {_MOST_HEADERS}")
            return
        encoding = headers.get("content-encoding")
        if encoding is not None and encoding.strip().lower() not in ("", "identity"):
            # Nobody asked for compression, and a few bytes of it may stand for gigabytes.
            known = encoding if encoding in _ENCODINGS else "in a way that HTTP does not know"
            self._refuse(f"the answer is compressed ({known}), but an uncompressed one was requested")
        elif status == 200 and length is not None and int(length) > self._limit:
            self._refuse(f"the answer has {length} bytes, more than {self._limit}; see max_answer_bytes")

    def on_body(self, body: bytes) -> None:
        if self._waiting is None:
            return
        if not self._body:
            self._body = body
        else:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += body
        if self._status != 200:
            if len(self._body) > _LONGEST_ERROR:
                self._body = self._body[:_LONGEST_ERROR]
                self._succeed()
                self.close()
        elif len(self._body) > self._limit:
            self._refuse(f"the answer has more than {self._limit} bytes; see max_answer_bytes")

    def on_message_complete(self) -> None:
        if self._status and self._waiting is not None:
            self._succeed()

    # ---- outcomes

    def _refuse(self, message: str) -> None:
        """Give up an answer that will not be read; of an error its status is kept."""
        if self._status in (0, 200):
            self._fail(BackendAnswerLimitError(message))
        else:
            self._body = b""
            self._succeed()
            self.close()

    def _succeed(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(HTTPAnswer(self._status, self._headers, bytes(self._body)))

    def _fail(self, error: Exception, cause: BaseException | None = None) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            error.__cause__ = cause
            waiting.set_exception(error)
        self.close()

    def give_up(self, error: type[Exception] = TimeoutError) -> None:
        self._fail(error())


class HTTPClient:
    """Sends requests on kept connections. Belongs to one event loop.

    The caller limits the number of requests.

    Args:
        connect_timeout: Seconds to connect, TLS included, or None.

    Attributes:
        idle: Kept connections by origin, the latest last.
    """

    def __init__(self, *, connect_timeout: float | None) -> None:
        self._loop = asyncio.get_running_loop()
        # An empty one: asyncio keeps the context of a connection as long as it is open, and of a timer, cancelled or
        # not, until its time has come. That of a rollout would keep all it used.
        self._context = Context()
        self._connect_timeout = connect_timeout
        self.idle: dict[tuple[str, int, bool], deque[_Connection]] = {}
        self.busy: set[_Connection] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._addresses: dict[tuple[str, int], tuple[float, asyncio.Future[list[Any]]]] = {}
        self._tls: ssl.SSLContext | None = None
        self._is_closed = False

    async def request(
        self,
        target: Target,
        body: Iterable[bytes] = (),
        *,
        headers: bytes = b"",
        timeout: float | None = None,
        limit: int,
        attempt: Attempt | None = None,
    ) -> HTTPAnswer:
        """Send a request and read its answer.

        Args:
            body: The body in pieces, which are joined once.
            headers: Further headers, each with its line break before it.
            timeout: Seconds until the last byte of the answer, or None.
            limit: Most bytes of the body of an answer with status 200.
            attempt: Says whether the connection must be new, and records which one was used.

        Raises:
            CannotConnectError: There is no connection.
            ConnectionLostError: It broke.
            NotHTTPError: The answer is not HTTP.
            BackendAnswerLimitError: The body is compressed, or longer than `limit`.
            TimeoutError: It took longer.
        """
        deadline = None if timeout is None else self._loop.time() + timeout
        connection = None if attempt is not None and attempt.fresh else self._reused(target)
        if connection is None:
            connection = await self._connected(target, deadline)
            if self._is_closed:
                connection.close()
                raise ConnectionLostError("the client was closed")
        if attempt is not None:
            attempt.connected, attempt.reused, attempt.opened = True, connection.is_used, connection.opened
        connection.is_used = True
        pieces = tuple(body)
        length = sum(map(len, pieces))
        self.busy.add(connection)
        timer = None
        try:
            future = connection.send(b"".join((target.head, b"%d%b\r\n\r\n" % (length, headers), *pieces)), limit)
            if deadline is not None:
                timer = self._loop.call_at(deadline, connection.give_up, context=self._context)
            answer = await future
        except BaseException:
            connection.close()
            raise
        finally:
            self.busy.discard(connection)
            if timer is not None:
                timer.cancel()
        if connection.is_reusable and not self._is_closed:
            self._keep(target, connection)
        else:
            connection.close()
        return answer

    # ---- connections

    def _reused(self, target: Target) -> _Connection | None:
        """The connection that was put aside last, so that those that are not needed grow old."""
        idle = self.idle.get(target.origin)
        oldest = self._loop.time() - KEEPALIVE_S
        while idle:
            connection = idle.pop()
            if connection.is_open and connection.idle_since > oldest:
                return connection
            connection.close()
        return None

    def _keep(self, target: Target, connection: _Connection) -> None:
        connection.idle_since = self._loop.time()
        self.idle.setdefault(target.origin, deque()).append(connection)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(KEEPALIVE_S, self._sweep, context=self._context)

    def _sweep(self) -> None:
        """Close connections that were idle for too long."""
        self._sweeper = None
        oldest = self._loop.time() - KEEPALIVE_S
        for origin, idle in list(self.idle.items()):
            while idle and (not idle[0].is_open or idle[0].idle_since <= oldest):
                idle.popleft().close()
            if not idle:
                del self.idle[origin]
        if self.idle:
            self._sweeper = self._loop.call_later(KEEPALIVE_S / 4, self._sweep, context=self._context)

    async def _connected(self, target: Target, deadline: float | None) -> _Connection:
        """A new connection, which knows nothing of the rollout that needs it."""
        made: list[_Connection] = []
        try:
            # Not `context=...`, which a task factory of the user may not take.
            await self._context.run(self._loop.create_task, self._connect(target, deadline, made))
            return made.pop()
        finally:
            for unwanted in made:  # this task was cancelled in the same moment
                unwanted.close()

    async def _connect(self, target: Target, deadline: float | None, made: list[_Connection]) -> None:
        limit = None if self._connect_timeout is None else self._loop.time() + self._connect_timeout
        is_whole = deadline is not None and (limit is None or deadline < limit)
        try:
            async with asyncio.timeout_at(deadline if is_whole else limit):
                made.append(await self._open(target))
        except TimeoutError as error:
            if is_whole:
                raise
            raise CannotConnectError(f"no connection within {self._connect_timeout:g} s") from error
        except ssl.SSLError as error:
            # A wrong certificate or protocol stays wrong; everything else may be a server that is starting.
            raise CannotConnectError(str(error), is_final=True) from error
        except OSError as error:
            raise CannotConnectError(str(error) or type(error).__name__) from error.with_traceback(None)

    async def _open(self, target: Target) -> _Connection:
        infos = await self._resolve(target.host, target.port)
        sock = await start_connection(infos, happy_eyeballs_delay=_NEXT_ADDRESS_S, interleave=1, loop=self._loop)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            context = self._tls_context() if target.is_tls else None
            _, connection = await self._loop.create_connection(
                lambda: _Connection(self._loop),
                sock=sock,
                ssl=context,
                server_hostname=target.host if context else None,
            )
        except BaseException:
            sock.close()
            raise
        connection.sock = sock
        return connection

    async def _resolve(self, host: str, port: int) -> list[Any]:
        """Addresses of a host; a thousand connections ask for them once."""
        asked_at, question = self._addresses.get((host, port), (-math.inf, None))
        if question is None or self._loop.time() - asked_at > _ADDRESSES_FRESH_S or _has_failed(question):
            question = asyncio.ensure_future(self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))
            question.add_done_callback(_has_failed)  # nobody may be waiting any more when it fails
            self._addresses[host, port] = self._loop.time(), question
        return await asyncio.shield(question)

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
            self._tls.set_alpn_protocols(["http/1.1"])
        return self._tls

    # ---- the end

    def close(self) -> None:
        """Close all connections; requests under way fail."""
        self._is_closed = True
        self._each(_Connection.close)

    def release_sockets(self) -> None:
        """Close the sockets alone, where the loop is over, or belongs to a process of which this one is a fork."""
        self._is_closed = True
        self._each(_Connection.release_socket)

    def _each(self, end: Callable[[_Connection], None]) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connection in (*self.busy, *(one for idle in self.idle.values() for one in idle)):
            end(connection)
        self.idle.clear()
        self.busy.clear()


def _has_failed(question: asyncio.Future[list[Any]]) -> bool:
    return question.done() and (question.cancelled() or question.exception() is not None)
