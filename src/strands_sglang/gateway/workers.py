"""Several gateways behind one listening address, each a process with sessions of its own.

Every worker accepts connections. A request belongs to the worker of the session that its path names, else of its key:
names and keys are made so that a hash of them is the worker's index. Who reads the head of another worker's request
hands the connection over, with the bytes that it has read, so that nothing stands between a client and its session: an
answer that is flushed is delivered. Only what asks for all sessions is asked of all workers.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

import aiohttp

from .delivery import Connection
from .dialects.wire import Refused
from .requests import key_digest, key_in

OWN = "x-strands-own-sessions"
"""Header of a question to one worker among all."""

_MOST_HEAD = 64 * 1024  # bytes in which the end of a request's head has to come; aiohttp takes less
_END = re.compile(rb"\n\r?\n|\A[^A-Za-z]")  # of a request's head, or of the hope for one: a client that speaks TLS


@dataclass(kw_only=True)
class Worker:
    """One of several workers.

    Attributes:
        index: Its place among `count`.
        folder: Where the workers have their sockets.
        is_again: It stands in for one that died.
        names: Sessions by the digest of keys that were made when there were more workers, or fewer.
    """

    index: int
    count: int
    folder: Path
    is_again: bool = False
    names: Mapping[bytes, str] = field(default_factory=dict)
    _turn: int = 0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _listener: socket.socket | None = None

    def owner(self, name: str) -> int:
        """The worker of a session, by its name or its key."""
        return int.from_bytes(key_digest(name)[:8], "big") % self.count

    def owns(self, name: str) -> bool:
        """The session of this name or key is this worker's."""
        return self.owner(name) == self.index

    def make_own(self, make: Callable[[], str]) -> str:
        """The first name or key that `make` makes for this worker."""
        while not self.owns(name := make()):
            pass
        return name

    @property
    def http_path(self) -> str:
        """The socket at which this worker answers for its own sessions."""
        return str(self.folder / f"http-{self.index}")

    def start(self, adopt: Callable[[socket.socket, bytes], Coroutine[Any, Any, None]]) -> None:
        """Take over connections that other workers hand on, by `adopt`, with what was read of them."""
        path = self.folder / f"connections-{self.index}"
        path.unlink(missing_ok=True)  # of one that died
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(1024)
        self._listener.setblocking(False)
        self.spawn(self._accept(self._listener, adopt))

    async def close(self) -> None:
        """Take over no more."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()

    def spawn(self, task: Coroutine[Any, Any, None]) -> None:
        """Run something until it, or the worker, ends."""
        self._tasks.add(running := asyncio.get_running_loop().create_task(task))
        running.add_done_callback(self._tasks.discard)

    async def _accept(
        self, listener: socket.socket, adopt: Callable[[socket.socket, bytes], Coroutine[Any, Any, None]]
    ) -> None:
        loop = asyncio.get_running_loop()

        async def receive(channel: socket.socket) -> None:
            with channel, suppress(OSError, struct.error):  # the other worker died in between
                await readable(channel)
                size, descriptors, _, _ = socket.recv_fds(channel, 4, 1)
                connection = socket.socket(fileno=descriptors[0])
                read = bytearray()
                while len(read) < struct.unpack("!I", size)[0]:
                    if not (piece := await loop.sock_recv(channel, 1 << 16)):
                        connection.close()
                        return
                    read += piece
                connection.setblocking(False)
                await adopt(connection, bytes(read))

        while True:
            channel, _ = await loop.sock_accept(listener)
            channel.setblocking(False)
            self.spawn(receive(channel))

    async def hand_over(self, owner: int, connection: socket.socket, read: bytes) -> None:
        """Give a connection to another worker; `OSError` if that does not take it."""
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX) as channel:
            channel.setblocking(False)
            await loop.sock_connect(channel, str(self.folder / f"connections-{owner}"))
            socket.send_fds(channel, [struct.pack("!I", len(read))], [connection.fileno()])
            await loop.sock_sendall(channel, read)

    async def ask_others(self, path: str, headers: Mapping[str, str]) -> dict[int, bytes]:
        """What every other worker answers at a path, by its index.

        Raises:
            Refused: One of them does not answer.
        """

        async def ask(index: int) -> bytes:
            connector = aiohttp.UnixConnector(str(self.folder / f"http-{index}"))
            try:
                async with (
                    aiohttp.ClientSession(connector=connector) as http,
                    http.get(f"http://localhost{path}", headers={**headers, OWN: "1"}) as response,
                ):
                    response.raise_for_status()
                    return await response.read()
            except (aiohttp.ClientError, OSError) as error:
                raise self.away(index) from error

        others = [index for index in range(self.count) if index != self.index]
        return dict(zip(others, await asyncio.gather(*map(ask, others)), strict=True))

    def away(self, index: int) -> Refused:
        """The refusal of what only another worker can answer; the next connection may reach it."""
        what = f"worker {index} of the gateway cannot be reached on this connection, or is being started again"
        return Refused(what, status=503, code="worker_away", retry_after=1)

    def owner_of(self, head: bytes) -> int:
        """The worker that a request belongs to, by its head; any for a new session, this one if it names none."""
        first, *lines = _END.split(head)[0].decode("utf-8", "surrogateescape").split("\n")
        method, target = f"{first} ".split(" ")[:2]
        path, _, query = re.sub(r"\A\w+://[^/]*", "", target).partition("?")
        match list(map(unquote, path.split("/")[1:])):
            case ["s" | "sessions", name, *_] if name:
                return self.owner(name)
            case ["sessions", *_] if method == "POST":  # a client may open thousands on one connection
                self._turn = (self._turn + 1) % self.count
                return self._turn
        pairs = [line.partition(":") for line in lines]
        key = key_in({name.strip().lower(): value.strip() for name, _, value in pairs})
        key = key or next(iter(parse_qs(query).get("key", [])), None)  # Google's clients send it there
        return self.owner(self.names.get(key_digest(key), key)) if key else self.index


class WorkerConnection(Connection):
    """A connection whose requests may belong to any worker."""

    def __init__(self, worker: Worker, read: bytes, server: Any, **options: Any) -> None:
        super().__init__(server, **options)
        self._worker, self._head = worker, read  # what another worker has read
        self._payload: Any = None  # of the last request
        self._is_moving = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio: a client connected, here or elsewhere."""
        super().connection_made(transport)
        if self._head:
            self._begin()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio: bytes of a request came."""
        if self._is_moving or self._payload is None or self._payload.is_eof():  # a request begins
            self._head = (self._head + data).lstrip(b"\r\n")
            if not self._is_moving and (_END.search(self._head) or len(self._head) > _MOST_HEAD):
                self._begin()
        else:
            self._feed(data)

    def _begin(self) -> None:
        owner = self._worker.owner_of(self._head)
        if owner == self._worker.index:
            self._read_here()
        else:
            assert self.transport is not None
            self._is_moving = True
            self.transport.pause_reading()
            self._worker.spawn(self._move(owner))

    def _read_here(self) -> None:
        data, self._head = self._head, b""
        self._feed(data)

    def _feed(self, data: bytes) -> None:
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
            self._read_here()  # which says that the other is away
            self.transport.resume_reading()
        else:
            self.transport.abort()  # the descriptor here; the connection lives on there


def join_metrics(texts: Mapping[int, bytes]) -> bytes:
    """Metrics in Prometheus' text format, told apart by the label `worker`."""
    families: dict[str, list[str]] = {}
    for worker, text in sorted(texts.items()):
        lines: list[str] = []
        for line in text.decode().splitlines():
            if line.startswith("#"):
                head = families.setdefault(line.split()[2], [])
                if line not in head[:2]:
                    head.append(line)
                lines = head
            else:
                name, brace, rest = re.sub(r"^(\w+) ", r"\1{} ", line).partition("{")
                lines.append(f'{name}{brace}worker="{worker}"{"" if rest.startswith("}") else ","}{rest}')
    return "\n".join([line for lines in families.values() for line in lines]).encode() + b"\n"


async def readable(channel: Any) -> None:
    """Wait until something can be read from what has a descriptor."""
    loop = asyncio.get_running_loop()
    is_ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(channel, is_ready.set_result, None)
    try:
        await is_ready
    finally:
        loop.remove_reader(channel)
