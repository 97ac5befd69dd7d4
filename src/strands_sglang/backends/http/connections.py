"""HTTP for one event loop, on aiohttp's client: a whole request out, a whole answer back."""

from __future__ import annotations

import asyncio
import io
import os
import time
import traceback
import weakref
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from contextvars import Context, ContextVar
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from ...exceptions import BackendAnswerError, BackendAnswerLimitError, BackendConnectionError, BackendError
from .client_options import Secrets
from .retry import RetryClass
from .user_transport import HTTPRequest, HTTPResponse, Transport

KEEPALIVE_S = 4.0
"""Idle connections are dropped before the server does so (5 s, 4.7 s measured)."""

_CONTROL_CONNECTIONS = 128
_LONGEST_CONTROL_ANSWER = 1 << 24  # bytes
_LONGEST_ERROR = 1 << 22  # bytes of an error body that are kept
_LONGEST_HEADER = 1 << 16
_LARGE_BODY = 1 << 20  # bytes of a request
_READ_BUFFER = 1 << 22

# A reset this soon after sending on a reused connection is the server's idle timer, not its death.
_STALE_WITHIN_S = 2.0
# Of a refusal the server knows; of these it may not: it, or a worker behind a router, may still be sampling.
_MAYBE_RUNNING = frozenset(
    {
        RetryClass.STALE,
        RetryClass.RESET,
        RetryClass.TIMEOUT,
        RetryClass.GATEWAY,
        RetryClass.WORKER_LOST,
        RetryClass.DECODING,
    }
)


@dataclass(slots=True, kw_only=True)
class Attempt:
    """Facts about an attempt, filled in as they become known.

    Attributes:
        fresh: It must have a new connection.
        outlives_closing: `interrupt` does not concern it.
        started: Loop time when it was sent, in seconds.
        connected: It had a connection, so that the server may know of it.
        reused: That connection had served an earlier request.
        opened: When that connection was opened (`time.monotonic`), or 0 if it is not known.
        kind: The class of its failure in the retry table; None while it has not failed, or has an answer.
        retry_after: Seconds the server asked to wait, or None.
    """

    rid: str = ""
    fresh: bool = False
    outlives_closing: bool = False
    started: float = 0.0
    connected: bool = False
    reused: bool = False
    opened: float = 0.0
    kind: RetryClass | None = None
    retry_after: float | None = None

    @property
    def age(self) -> float:
        """Seconds since it was sent."""
        return asyncio.get_running_loop().time() - self.started

    @property
    def maybe_running(self) -> bool:
        """The server may still be working on the request, which then must be aborted."""
        return self.connected and self.kind in _MAYBE_RUNNING


# The attempt that the running task sends.
_sending: ContextVar[Attempt] = ContextVar("sending")


def closed_error(what: str) -> BackendConnectionError:
    """The error of work that was cut off because the client was closed."""
    return BackendConnectionError(f"the client was closed while {what} was in flight")


class _Connector(aiohttp.TCPConnector):
    """Tells an attempt which connection it got; `opened` holds when each was opened."""

    def __init__(self) -> None:
        # The system's resolver, as everything else on the machine; aiohttp prefers c-ares where it is installed.
        super().__init__(limit=0, resolver=aiohttp.ThreadedResolver(), keepalive_timeout=KEEPALIVE_S)
        self.opened: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()

    def __del__(self, *_: Any) -> None:
        """Nothing: `_end` has closed the connections, and in a fork they are the parent's."""

    async def connect(self, *args: Any, **options: Any) -> Any:
        attempt = _sending.get()
        connection: Any = await super().connect(*args, **options)
        # Not a kept one where a new one is wanted, nor one on which bytes came that nobody had asked for: they would be
        # read as the answer to this request.
        while (protocol := connection.protocol) in self.opened and (attempt.fresh or protocol.should_close):
            connection.close()
            connection = await super().connect(*args, **options)
        attempt.connected, attempt.reused = True, protocol in self.opened
        attempt.opened = self.opened.setdefault(protocol, time.monotonic())
        return connection


class HTTPSession:
    """Sends requests, each in a task of its own, which `interrupt` ends. Belongs to the event loop it was made on.

    An own task has an empty context: asyncio keeps the context of a connection as long as it is open, and of a timer
    until its time has come. That of a rollout would keep all that the rollout used.

    Connections are closed by `close`, or when the session is garbage, or at exit, whichever comes first.

    Args:
        headers: Headers of every request.
        secrets: The keys in them, which a server may repeat.
        connect_timeout: Seconds to connect for generate calls, TLS included, or None.
        user_transport: Sends the requests in place of aiohttp.
    """

    def __init__(
        self,
        *,
        headers: Mapping[str, str],
        secrets: Secrets,
        connect_timeout: float | None,
        user_transport: Transport | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._headers = headers
        self._secrets = secrets
        self._timeout = aiohttp.ClientTimeout(total=None, connect=connect_timeout)
        self._user = user_transport
        self._tasks: dict[asyncio.Task[HTTPResponse], Attempt] = {}
        self._control_slots = asyncio.Semaphore(_CONTROL_CONNECTIONS)
        self.closed = asyncio.Event()
        connector = _Connector()
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            read_bufsize=_READ_BUFFER,
            max_line_size=_LONGEST_HEADER,
            max_field_size=_LONGEST_HEADER,
            headers={"Accept-Encoding": "identity", "User-Agent": "strands-sglang"},
        )
        self.release = weakref.finalize(self, _end, self._loop, os.getpid(), self._session, connector)
        """Close all connections, from any thread, also those of an event loop that can run nothing any more."""

    def interrupt(self) -> None:
        """End all requests with `closed_error`, and let no other begin but those of aborts."""
        self.closed.set()
        for task, attempt in list(self._tasks.items()):
            if not attempt.outlives_closing:
                task.cancel()

    def close(self) -> None:
        """End all requests and close all connections at once."""
        self.closed.set()
        for task in list(self._tasks):
            task.cancel()
        self.release()

    async def wait(self, seconds: float) -> None:
        """Sleep, but not beyond closing."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.closed.wait(), seconds)

    async def call(
        self,
        method: str,
        url: str,
        *,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 10.0,
        attempt: Attempt | None = None,
    ) -> tuple[int, bytes]:
        """A control call: status and body. Raises as `request`."""
        body = b"" if json is None else orjson.dumps(json)
        request = HTTPRequest(method, url, {**self._headers, **(headers or {})}, body)
        async with self._control_slots:
            response = await self.request(request, timeout=timeout, limit=_LONGEST_CONTROL_ANSWER, attempt=attempt)
        return response.status, response.body

    async def request(
        self, request: HTTPRequest, *, timeout: float | None, limit: int, attempt: Attempt | None = None
    ) -> HTTPResponse:
        """Send a request and read its answer.

        Args:
            timeout: Seconds until the last byte of the answer, or None.
            limit: Most bytes of the body of an answer with status 200.
            attempt: Says whether the connection must be new; records the one that was used, and the class of a failure.

        Raises:
            BackendConnectionError: No connection, it broke, no answer in time, or the session was interrupted.
            BackendAnswerError: The answer broke off, or is not HTTP.
            BackendAnswerLimitError: Its body is compressed, or longer than `limit`.
        """
        attempt = attempt or Attempt()
        what = f"request {attempt.rid}" if attempt.rid else f"{request.method} {request.url}"
        if not self.release.alive or (self.closed.is_set() and not attempt.outlives_closing):
            raise closed_error(what)
        caller = asyncio.current_task()
        cancelled_before = caller.cancelling() if caller is not None else 0
        try:
            return await self._start(self._exchange(request, what, timeout, limit, attempt), attempt)
        except asyncio.CancelledError:
            # Closing cancels the request's own task; a cancellation of the caller stays one.
            if caller is not None and caller.cancelling() > cancelled_before:
                raise
        raise closed_error(what)

    def _start(self, exchange: Coroutine[Any, Any, HTTPResponse], attempt: Attempt) -> asyncio.Task[HTTPResponse]:
        """The task of a request. No frame of the caller holds it: with its error it would be a cycle."""
        task = Context().run(self._loop.create_task, exchange)
        self._tasks[task] = attempt
        task.add_done_callback(self._tasks.pop)
        return task

    async def _exchange(
        self, request: HTTPRequest, what: str, timeout: float | None, limit: int, attempt: Attempt
    ) -> HTTPResponse:
        has_begun = False
        try:
            async with asyncio.timeout(timeout):
                if self._user is not None:
                    attempt.connected = True
                    response = await self._user.send(request)
                else:
                    _sending.set(attempt)
                    # aiohttp warns of larger bytes, since writing them at once holds up the loop.
                    body = io.BytesIO(request.body) if len(request.body) > _LARGE_BODY else request.body
                    async with self._session.request(
                        request.method,
                        request.url,
                        data=body or None,
                        headers=request.headers,
                        timeout=self._timeout,
                        allow_redirects=False,
                    ) as stream:
                        has_begun = True
                        response = await _read(stream, limit)
                if response.status == 200 and len(response.body) > limit:
                    raise BackendAnswerLimitError(f"the answer has more than {limit} bytes; see max_answer_bytes")
                return response
        except (aiohttp.ClientError, OSError) as error:
            traceback.clear_frames(error.__traceback__)  # they hold the request, some in cycles
            raise self._translate(error, attempt, has_begun, request.url, what, timeout)  # noqa: B904 - names its cause

    def _translate(
        self, error: Exception, attempt: Attempt, has_begun: bool, url: str, what: str, timeout: float | None
    ) -> BackendError:
        """The typed error of a failure, whose class it notes; without aiohttp's error, which holds the keys sent."""
        # The text of an error of aiohttp's parser escapes its message, and so a key in it, twice.
        message = error.message if isinstance(error, aiohttp.ClientResponseError) else str(error)
        words = self._secrets.hide(" ".join(message.split()) or type(error).__name__)
        is_aiohttps = isinstance(error, aiohttp.ClientError)
        cause: BaseException = ConnectionError(words) if is_aiohttps else error.with_traceback(None)
        typed: type[BackendError] = BackendConnectionError
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            kind, cause = RetryClass.UNREACHABLE, TimeoutError()
            message = f"cannot connect to {url}: no connection within {self._timeout.connect:g} s"
        elif isinstance(error, TimeoutError):
            kind, cause = RetryClass.TIMEOUT, TimeoutError()
            message = f"no answer from {url} {'in time' if timeout is None else f'within {timeout:g} s'} ({what})"
        elif isinstance(error, aiohttp.ClientSSLError):
            # A wrong certificate or protocol stays wrong; everything else may be a server that is starting.
            kind, message = RetryClass.NEVER, f"cannot connect to {url}: {words}"
        elif isinstance(error, ConnectionRefusedError) or not attempt.connected:
            kind, cause = RetryClass.UNREACHABLE, getattr(error, "os_error", cause)
            message = f"cannot connect to {url}: {cause}"
        elif isinstance(error, aiohttp.ClientResponseError):
            kind, typed = RetryClass.DECODING, BackendAnswerError
            message = f"{url} does not speak HTTP: {words:.200} ({what})"
        elif has_begun:
            kind, typed, message = RetryClass.DECODING, BackendAnswerError, f"the answer broke off: {words} ({what})"
        else:
            is_stale = attempt.reused and attempt.age < _STALE_WITHIN_S
            kind = RetryClass.STALE if is_stale else RetryClass.RESET
            message = f"connection to {url} broke: {words} ({what})"
        attempt.kind, failure = kind, typed(message)
        failure.__cause__ = cause.with_traceback(None)
        return failure


async def _read(response: aiohttp.ClientResponse, limit: int) -> HTTPResponse:
    """The answer, no further than a chunk beyond `limit`.

    Of an error the status says enough where its body is too long, compressed or breaks off.
    """
    is_good = response.status == 200
    headers = {name.lower(): text for name, text in response.headers.items()}
    chunks: list[bytes] = []
    if headers.get("content-encoding", "").strip().lower() not in ("", "identity"):
        # Nobody asked for compression, and a few bytes of it may stand for gigabytes.
        response.close()
        if is_good:
            raise BackendAnswerLimitError("the answer is compressed, but an uncompressed one was requested")
        return HTTPResponse(response.status, headers, b"")
    most, size = limit if is_good else _LONGEST_ERROR, 0
    try:
        async for chunk in response.content.iter_any():
            chunks.append(chunk)
            size += len(chunk)
            if size > most:
                response.close()
                break
    except aiohttp.ClientError:
        if is_good:
            raise
    body = b"".join(chunks)
    return HTTPResponse(response.status, headers, body if is_good else body[:most])


def _end(loop: asyncio.AbstractEventLoop, pid: int, session: aiohttp.ClientSession, connector: _Connector) -> None:
    """Close the connections of a session without waiting, on whatever thread."""
    session.detach()  # or it would say that nobody closed it
    transports = [each.transport for each in list(connector.opened) if each.transport is not None]
    if loop.is_closed() or pid != os.getpid():
        # The loop can run nothing any more. In a fork it is the parent's: a transport that closes would take its socket
        # out of the epoll that both processes share. So only the sockets are closed.
        for transport in transports:
            if (sock := getattr(transport, "_sock", None)) is not None:
                transport._sock = None  # or it would say that nobody closed it
                sock.close()
        return

    def abort() -> None:
        for transport in transports:
            transport.abort()

    if asyncio._get_running_loop() is loop:
        abort()
    else:
        with suppress(RuntimeError):  # closed in this instant
            loop.call_soon_threadsafe(abort)
