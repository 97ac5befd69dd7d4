"""The HTTP of the client, against servers that write their answers byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import socket
import ssl
import warnings
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

from strands_sglang.backends.http import connections
from strands_sglang.backends.http.connections import (
    Attempt,
    CannotConnectError,
    ConnectionLostError,
    HTTPAnswer,
    HTTPClient,
    NotHTTPError,
    Target,
)
from strands_sglang.exceptions import SGLangAnswerLimitError

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
LIMIT = 1000


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
async def serving(server: RawServer, tls: ssl.SSLContext | None = None) -> AsyncIterator[HTTPClient]:
    listening = await asyncio.start_server(server.handle, "127.0.0.1", 0, ssl=tls)
    port = listening.sockets[0].getsockname()[1]
    server.url = f"http{'s' if tls else ''}://localhost:{port}/generate"
    client = HTTPClient(connect_timeout=5.0)
    try:
        yield client
    finally:
        client.close()
        listening.close()
        for writer in server.writers:
            writer.transport.abort()
        await asyncio.sleep(0.001)


def whole(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    return b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, lines, len(body), body)


async def ask(client: HTTPClient, server: RawServer, body: bytes = b"{}", **options: Any) -> HTTPAnswer:
    target = Target.of("POST", server.url, {"Content-Type": "application/json"})
    return await client.request(target, (body,), **{"limit": LIMIT, "timeout": 10.0, **options})


async def test_a_request_is_one_text_and_its_connection_is_kept() -> None:
    server = RawServer(whole(b"one", b"X-Name: Value"), whole(b"two"))
    async with serving(server) as client:
        target = Target.of("POST", server.url, {"Content-Type": "application/json", "User-Agent": "mine"})
        answer = await client.request(target, (b"ab", b"", b"cd"), headers=b"\r\nX-Key: k", limit=LIMIT)
        assert (answer.status, answer.headers["x-name"], answer.body) == (200, "Value", b"one")
        assert (await ask(client, server)).body == b"two"
    host = server.url.split("/")[2].encode()
    assert server.requests[0] == (
        b"POST /generate HTTP/1.1\r\nHost: " + host + b"\r\nAccept: */*\r\nAccept-Encoding: identity\r\n"
        b"Content-Type: application/json\r\nUser-Agent: mine\r\nContent-Length: 4\r\nX-Key: k\r\n\r\nabcd"
    )
    assert server.connections == 1


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


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h", ("h", 80, False, "/")),
        ("https://h/v1/", ("h", 443, True, "/v1/")),
        ("http://[::1]:3/a b", ("::1", 3, False, "/a%20b")),
        ("http://bücher.example:8/ü", ("xn--bcher-kva.example", 8, False, "/%C3%BC")),
    ],
)
def test_targets(url: str, expected: tuple[str, int, bool, str]) -> None:
    target = Target.of("GET", url, {})
    assert (target.host, target.port, target.is_tls, target.path) == expected
    named = f"[{target.host}]" if ":" in target.host else target.host
    host = named if target.port in (80, 443) else f"{named}:{target.port}"
    assert target.head.startswith(f"GET {expected[3]} HTTP/1.1\r\nHost: {host}\r\n".encode())


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n3;x=y\r\ncde\r\n0\r\nT: x\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nContent-Length: 9\r\n\r\n" + whole(b"abcde"),
        whole(b"abcde", b"content-encoding: identity", status=b"200"),
    ],
    ids=["chunked", "interim", "identity"],
)
@pytest.mark.parametrize("piecewise", [False, True])
async def test_answers_of_any_form_leave_the_connection_usable(answer: bytes, piecewise: bool) -> None:
    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for place in range(len(answer)):
            writer.write(answer[place : place + 1])
            await asyncio.sleep(0.001)

    server = RawServer(slowly if piecewise else answer)
    async with serving(server) as client:
        assert [(await ask(client, server)).body for _ in range(3)] == [b"abcde"] * 3
    assert server.connections == 1


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nabc", b"abc"),
        (whole(b"abc", b"Connection: close"), b"abc"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc", b"abc"),
        (b"HTTP/1.1 500 X\r\nContent-Length: 9\r\n\r\nabc", b"abc"),  # the status says enough
    ],
    ids=["until the end", "close", "1.0", "broken error"],
)
async def test_an_answer_that_ends_its_connection(answer: bytes, body: bytes) -> None:
    server = RawServer(answer, hang_up=True)
    async with serving(server) as client:
        assert [(await ask(client, server)).body for _ in range(2)] == [body] * 2
    assert server.connections == 2


@pytest.mark.parametrize("more", [b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", b"HTTP/1.1 2", b"garbage"])
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
        with contextlib.suppress(NotHTTPError):  # what is no HTTP at all spoils the answer it came with
            assert (await ask(client, server)).body == b"ab"
        await written.wait()
        await asyncio.sleep(0.03)
        assert (await ask(client, server)).body == b"cd"
    assert server.connections == 2


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", NotHTTPError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", NotHTTPError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", NotHTTPError),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", NotHTTPError),
        (b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\nxx", NotHTTPError),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * (1 << 19), SGLangAnswerLimitError),
        (b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: a\r\n" % n for n in range(300)) + b"\r\n", SGLangAnswerLimitError),
        (whole(b"a" * (LIMIT + 1)), SGLangAnswerLimitError),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"a" * (LIMIT + 1), SGLangAnswerLimitError),
        (whole(b"a", b"Content-Encoding: gzip"), SGLangAnswerLimitError),
        (b"", ConnectionLostError),
        (b"HTTP/1.1 200 OK\r\nContent-Le", ConnectionLostError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", ConnectionLostError),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", ConnectionLostError),
    ],
)
async def test_answers_that_are_none(answer: bytes, expected: type[Exception]) -> None:
    server = RawServer(answer, hang_up=True)
    async with serving(server) as client:
        with pytest.raises(expected) as caught:
            await ask(client, server)
        if isinstance(caught.value, ConnectionLostError):
            assert caught.value.has_begun == (b"\r\n\r\n" in answer)
        assert not client.busy and not client.idle


ENDLESS = {
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X-%07d: y\r\n"),
    "one header": (b"HTTP/1.1 200 OK\r\nX: ", b"%07d"),
    "interim answers": (b"", b"HTTP/1.1 103 Early %07d\r\n\r\n"),
    "trailers": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n", b"X-%07d: y\r\n"),
    "one trailer": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nX: ", b"%07d"),
    "chunk extensions": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1;%07d\r\na\r\n"),
    "one chunk extension": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"%07d"),
    "tiny chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n"),
    "trailers of an error": (b"HTTP/1.1 500 X\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n", b"X-%07d: y\r\n"),
}


@pytest.mark.parametrize("timeout", [60.0, None])
@pytest.mark.parametrize("kind", list(ENDLESS))
async def test_an_answer_whose_framing_never_ends_is_given_up(kind: str, timeout: float | None) -> None:
    head, more = ENDLESS[kind]
    sent = 0

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(head)
        while sent < 1 << 24:
            piece = b"".join(more.replace(b"%07d", b"%07d" % number) for number in range(400))
            writer.write(piece)
            sent += len(piece)
            await writer.drain()

    server = RawServer(endless)
    async with serving(server) as client:
        if head.startswith(b"HTTP/1.1 500"):  # of an error the status says enough
            assert (await ask(client, server, limit=1 << 26, timeout=timeout)).status == 500
        else:
            with pytest.raises(SGLangAnswerLimitError, match="bytes of headers and chunk sizes"):
                await ask(client, server, limit=1 << 26, timeout=timeout)
        assert sent < 1 << 23  # what the sockets hold, not all there is
    assert server.connections == 1


async def test_honest_chunks_of_a_long_answer_are_read() -> None:
    chunk = b"40\r\n" + b"a" * 64 + b"\r\n"
    server = RawServer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk * 40_000 + b"0\r\n\r\n")
    async with serving(server) as client:
        assert [len((await ask(client, server, limit=1 << 22)).body) for _ in range(2)] == [64 * 40_000] * 2
    assert server.connections == 1


async def test_a_failed_question_for_an_address_that_nobody_waits_for_is_silent(monkeypatch, caplog):
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()

    async def slow(*args: Any, **options: Any) -> Any:
        asked.set()
        await asyncio.sleep(0.02)
        raise socket.gaierror("temporary failure")

    monkeypatch.setattr(loop, "getaddrinfo", slow)
    client = HTTPClient(connect_timeout=0.01)
    with pytest.raises(CannotConnectError, match="within"):
        await client.request(Target.of("GET", "http://h", {}), limit=LIMIT)
    assert asked.is_set()
    await asyncio.sleep(0.03)
    client.close()
    del client
    gc.collect()
    await asyncio.sleep(0)
    assert "never retrieved" not in caplog.text


async def test_a_long_error_is_cut_and_a_compressed_one_has_no_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_LONGEST_ERROR", 10)
    server = RawServer(whole(b"a" * 50, status=b"400 X"), whole(b"a", b"Content-Encoding: br", status=b"502 X"))
    async with serving(server) as client:
        assert [(a.status, a.body) for a in [await ask(client, server) for _ in range(2)]] == [
            (400, b"a" * 10),
            (502, b""),
        ]


async def test_an_answer_before_the_request_was_read() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(whole(b"too large", status=b"413 X"))
        await asyncio.sleep(0.05)
        writer.transport.abort()

    server = RawServer()
    server.handle = refuse  # type: ignore[method-assign, assignment]
    async with serving(server) as client:
        assert (await ask(client, server, b"x" * (1 << 24))).status == 413
        assert not client.idle


async def test_a_request_that_hangs_ends_with_its_time_and_its_task() -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
        await reader.read()

    server = RawServer(hang)
    async with serving(server) as client:
        with pytest.raises(TimeoutError):
            await ask(client, server, timeout=0.02)
        task = asyncio.create_task(ask(client, server))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not client.busy and not client.idle


async def test_nobody_listens_or_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        target = Target.of("GET", f"http://127.0.0.1:{held.getsockname()[1]}", {})
        client = HTTPClient(connect_timeout=5.0)
        with pytest.raises(CannotConnectError) as caught:
            await client.request(target, limit=LIMIT)
        assert isinstance(caught.value.__cause__, ConnectionRefusedError)
        with pytest.raises(CannotConnectError) as caught:
            await client.request(Target.of("GET", "http://no-such-host.invalid", {}), limit=LIMIT)
        assert isinstance(caught.value.__cause__, socket.gaierror)

        async def never(target: Target) -> None:
            await asyncio.sleep(60)

        client = HTTPClient(connect_timeout=0.01)
        monkeypatch.setattr(client, "_open", never)
        with pytest.raises(CannotConnectError, match=r"within 0\.01 s"):
            await client.request(target, limit=LIMIT)
        client = HTTPClient(connect_timeout=5.0)
        monkeypatch.setattr(client, "_open", never)
        with pytest.raises(TimeoutError):  # of the whole call: it is no server that does not listen
            await client.request(target, limit=LIMIT, timeout=0.01)


async def test_connections_are_told_and_a_fresh_one_is_new() -> None:
    server = RawServer(whole(b"a"))
    async with serving(server) as client:
        attempts = [Attempt(rid="r", fresh=fresh) for fresh in (False, False, True)]
        for attempt in attempts:
            await ask(client, server, attempt=attempt)
    assert [attempt.reused for attempt in attempts] == [False, True, False]
    assert all(attempt.connected for attempt in attempts)


async def test_idle_connections_are_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "KEEPALIVE_S", 0.05)
    server = RawServer(whole(b"a"))
    async with serving(server) as client:
        await asyncio.gather(*(ask(client, server) for _ in range(3)))
        assert sum(map(len, client.idle.values())) == 3
        async with asyncio.timeout(5):
            while client.idle:
                await asyncio.sleep(0.01)
        await ask(client, server)
    assert server.connections == 4


async def test_addresses_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    asked: list[str] = []
    real = loop.getaddrinfo

    async def counted(host: Any, port: Any, **options: Any) -> Any:
        asked.append(host)
        return await real(host, port, **options)

    monkeypatch.setattr(loop, "getaddrinfo", counted)
    server = RawServer(whole(b"a"))
    async with serving(server) as client:
        asked.clear()
        await asyncio.gather(*(ask(client, server) for _ in range(20)))
    assert asked == ["localhost"] and server.connections == 20


async def test_tls_is_verified(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    server = RawServer(whole(b"safe"))
    async with serving(server, context) as client:
        with pytest.raises(CannotConnectError, match="certificate") as caught:
            await ask(client, server)
        assert caught.value.is_final
        authority.cert_pem.write_to_path(tmp_path / "authority.pem")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
        trusting = HTTPClient(connect_timeout=5.0)
        assert [(await ask(trusting, server)).body for _ in range(2)] == [b"safe"] * 2
        trusting.close()
        with pytest.raises((ConnectionLostError, NotHTTPError)):
            await client.request(Target.of("GET", server.url.replace("https", "http"), {}), limit=LIMIT)


@pytest.mark.parametrize("connected", [True, False])
async def test_close_ends_what_is_under_way(connected: bool) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    server = RawServer(hang)
    async with serving(server) as client:
        task = asyncio.create_task(ask(client, server))
        async with asyncio.timeout(30):
            while not (client.busy if connected else client._addresses):
                await asyncio.sleep(0)
        client.close()
        with pytest.raises(ConnectionLostError):
            await task
        assert not client.busy and not client.idle


def test_sockets_of_a_loop_that_is_over_are_closed_without_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> socket.socket:
            peer, _ = server.accept()
            peer.recv(1000)
            peer.sendall(whole(b"a"))
            return peer

        async def run() -> tuple[HTTPClient, socket.socket]:
            answering = asyncio.get_running_loop().run_in_executor(None, answer)
            client = HTTPClient(connect_timeout=5.0)
            await client.request(Target.of("GET", f"http://127.0.0.1:{server.getsockname()[1]}", {}), limit=LIMIT)
            return client, await answering

        client, peer = asyncio.run(run())
        with peer, warnings.catch_warnings():
            warnings.simplefilter("error", ResourceWarning)
            client.release_sockets()
            assert peer.recv(1) == b""  # it is closed
            del client
            gc.collect()
