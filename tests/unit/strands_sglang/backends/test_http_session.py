"""The HTTP of the client, against servers that write their answers byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import socket
import ssl
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
import trustme

from strands_sglang.backends.http import connections as session
from strands_sglang.backends.http.client_options import Secrets
from strands_sglang.backends.http.connections import Attempt, HTTPSession
from strands_sglang.backends.http.retry import RetryClass
from strands_sglang.backends.http.user_transport import HTTPRequest, HTTPResponse
from strands_sglang.exceptions import BackendAnswerError, BackendAnswerLimitError, BackendConnectionError, BackendError
from tests.servers import FaultyServer

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
LIMIT = 1000


def make(**options: Any) -> HTTPSession:
    return HTTPSession(**{"headers": {}, "secrets": Secrets(), "connect_timeout": 5.0, **options})


class RawServer:
    """Answers the n-th request with the n-th text of a script, the last one for ever.

    Attributes:
        requests: What was sent, head and body.
        connections: Number of connections.
    """

    def __init__(self, *script: bytes | Handler, hang_up: bool = False) -> None:
        self.script, self.hang_up = list(script), hang_up
        self.requests: list[bytes] = []
        self.connections = 0
        self.url = ""
        self.writers: list[asyncio.StreamWriter] = []

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
                if callable(answer):
                    await answer(reader, writer)
                else:
                    writer.write(answer)
                if self.hang_up:
                    break
        writer.close()


@contextlib.asynccontextmanager
async def serving(server: RawServer, tls: ssl.SSLContext | None = None) -> AsyncIterator[HTTPSession]:
    listening = await asyncio.start_server(server.handle, "127.0.0.1", 0, ssl=tls)
    port = listening.sockets[0].getsockname()[1]
    server.url = f"http{'s' if tls else ''}://localhost:{port}/generate"
    http = make()
    try:
        yield http
    finally:
        http.close()
        listening.close()
        for writer in server.writers:
            writer.transport.abort()
        await asyncio.sleep(0.001)


def whole(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    return b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, lines, len(body), body)


async def ask(http: HTTPSession, server: RawServer, body: bytes = b"{}", **options: Any) -> HTTPResponse:
    request = HTTPRequest("POST", server.url, {"Content-Type": "application/json"}, body)
    return await http.request(request, **{"limit": LIMIT, "timeout": 10.0, **options})


async def test_a_request_is_whole_and_its_connection_is_kept() -> None:
    server = RawServer(whole(b"one", b"X-Name: Value"), whole(b"two", b"content-encoding: identity"))
    body = bytes(range(256)) * 20_000
    async with serving(server) as http:
        headers = {"Content-Type": "application/json", "User-Agent": "mine"}
        answer = await http.request(HTTPRequest("POST", server.url, headers, body), timeout=9.0, limit=9)
        assert (answer.status, answer.headers["x-name"], answer.body) == (200, "Value", b"one")
        attempts = [Attempt(rid="r", fresh=fresh) for fresh in (False, True)]
        for attempt in attempts:
            assert (await ask(http, server, attempt=attempt)).body == b"two"
    head, _, sent = server.requests[0].partition(b"\r\n\r\n")
    first, *lines = head.decode().lower().split("\r\n")
    assert (first, sent) == ("post /generate http/1.1", body)
    assert set(lines) == {
        f"host: {server.url.split('/')[2]}", "accept: */*", "accept-encoding: identity", "user-agent: mine",
        "content-type: application/json", f"content-length: {len(body)}",
    }  # fmt: skip
    assert [(attempt.connected, attempt.reused) for attempt in attempts] == [(True, True), (True, False)]
    assert server.connections == 2


class Heavy:
    """An object that a rollout holds in a context variable."""


async def test_a_connection_holds_nothing_of_whoever_opened_it() -> None:
    held: contextvars.ContextVar[Heavy] = contextvars.ContextVar("held")

    async def rollout() -> weakref.ref[Heavy]:
        held.set(Heavy())
        await ask(client, server)
        return weakref.ref(held.get())

    server = RawServer(whole(b"a"))
    async with serving(server) as client:
        heavy = await asyncio.create_task(rollout())
        assert (await ask(client, server)).body == b"a"
        assert (server.connections, heavy()) == (1, None)


async def test_a_connection_is_made_also_where_a_task_factory_takes_a_coroutine_alone() -> None:
    loop = asyncio.get_running_loop()
    loop.set_task_factory(lambda loop, coroutine: asyncio.Task(coroutine, loop=loop))  # type: ignore[arg-type]
    server = RawServer(whole(b"a"))
    async with serving(server) as client:
        assert (await ask(client, server)).body == b"a"


@pytest.mark.parametrize("more", [b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", b"garbage"])
@pytest.mark.parametrize("at_once", [True, False])
async def test_what_follows_an_answer_is_not_the_next_one(more: bytes, at_once: bool) -> None:
    written = asyncio.Event()

    async def twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(b"ab") + more if at_once else whole(b"ab"))
        if not at_once:
            await asyncio.sleep(0.02)
            writer.write(more)
        written.set()

    server = RawServer(twice, whole(b"cd"))
    async with serving(server) as client:
        with contextlib.suppress(BackendError):  # it may spoil the answer it came with
            assert (await ask(client, server)).body == b"ab"
        await written.wait()
        await asyncio.sleep(0.03)
        assert (await ask(client, server)).body == b"cd"
    assert server.connections == 2


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * (1 << 19), "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: a\r\n" % n for n in range(300)) + b"\r\n", "does not speak HTTP"),
        (whole(b"a" * (LIMIT + 1)), "more than"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"a" * (LIMIT + 1), "more than"),  # and goes on
        (whole(b"a", b"Content-Encoding: gzip"), "compressed"),
        (b"", "broke:"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "broke:"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", "broke off"),
    ],
)
async def test_answers_that_are_none(answer: bytes, expected: str) -> None:
    server, attempt = RawServer(answer, hang_up=not answer.endswith(b"a" * LIMIT)), Attempt()
    async with serving(server) as client:
        with pytest.raises(BackendError, match=expected) as caught:
            await ask(client, server, attempt=attempt)
    kinds = {
        "broke:": (BackendConnectionError, RetryClass.RESET),
        "more than": (BackendAnswerLimitError, None),
        "compressed": (BackendAnswerLimitError, None),
    }
    assert (type(caught.value), attempt.kind) == kinds.get(expected, (BackendAnswerError, RetryClass.DECODING))


async def test_of_an_error_the_status_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_LONGEST_ERROR", 10)
    cut = whole(b"abc", status=b"500 X").replace(b"Content-Length: 3", b"Content-Length: 9")
    script = whole(b"a" * 50, status=b"400 X"), whole(b"a", b"Content-Encoding: br", status=b"502 X"), cut
    server = RawServer(*script, hang_up=True)
    async with serving(server) as client:
        answers = [await ask(client, server) for _ in script]
    assert [(each.status, each.body) for each in answers] == [(400, b"a" * 10), (502, b""), (500, b"abc")]


async def test_nobody_listens_or_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    http, impatient = make(), make(connect_timeout=0.01)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        with pytest.raises(BackendConnectionError, match="cannot connect") as caught:
            await http.call("GET", f"http://127.0.0.1:{held.getsockname()[1]}")
        assert isinstance(caught.value.__cause__, ConnectionRefusedError)
    with pytest.raises(BackendConnectionError, match="cannot connect"):
        await http.call("GET", "http://no-such-host.invalid")

    async def never(*args: Any) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(session._Connector, "_create_connection", never)
    attempt = Attempt()
    with pytest.raises(BackendConnectionError, match=r"no connection within 0\.01 s"):
        await impatient.call("GET", "http://localhost", attempt=attempt)
    assert attempt.kind is RetryClass.UNREACHABLE
    with pytest.raises(BackendConnectionError, match="no answer"):  # of the whole call
        await http.call("GET", "http://localhost", timeout=0.01, attempt=attempt)
    assert attempt.kind is RetryClass.TIMEOUT
    http.close()
    impatient.close()


async def test_idle_connections_are_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "KEEPALIVE_S", 0.05)
    server = RawServer(whole(b"a"))
    async with serving(server) as http:
        await asyncio.gather(*(ask(http, server) for _ in range(3)))
        while not all(writer.transport.is_closing() for writer in server.writers):
            await asyncio.sleep(0.01)
        await ask(http, server)
    assert server.connections == 4


async def test_tls_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    server = RawServer(whole(b"safe"))
    async with serving(server, context) as http, FaultyServer() as plain:
        attempt = Attempt()
        with pytest.raises(BackendConnectionError, match="certificate"):
            await ask(http, server, attempt=attempt)
        assert attempt.kind is RetryClass.NEVER
        trusting = ssl.create_default_context()
        authority.configure_trust(trusting)
        monkeypatch.setattr(aiohttp.connector, "_SSL_CONTEXT_VERIFIED", trusting)
        assert [(await ask(http, server)).body for _ in range(2)] == [b"safe"] * 2
        attempt = Attempt()
        with pytest.raises(BackendConnectionError, match="cannot connect"):
            await http.call("GET", plain.url.replace("http", "https"), attempt=attempt)
        assert attempt.kind is RetryClass.NEVER  # a server that speaks no TLS will not learn it


async def test_an_interrupted_session_ends_what_is_under_way_and_begins_nothing() -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    server = RawServer(hang)
    async with serving(server) as http:
        tasks = [asyncio.create_task(ask(http, server)) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        http.interrupt()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(end) for end in ends] == [BackendConnectionError, asyncio.CancelledError, BackendConnectionError]
        with pytest.raises(BackendConnectionError, match="closed"):
            await ask(http, server)
