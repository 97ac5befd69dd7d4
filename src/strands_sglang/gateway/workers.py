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
from aiohttp import web

from .dialects import KEY_HEADERS
from .dialects.wire import Refused
from .requests import key_digest, key_in

_PATIENCE = 3.0  # seconds after which a worker counts as away; Prometheus waits ten
_MOST_HEAD = 64 * 1024  # bytes in which the end of a request's head has to come; aiohttp takes less
_END = re.compile(rb"\n\r?\n|\A[^A-Za-z]")  # of a request's head, or of the hope for one: a client that speaks TLS


@dataclass(kw_only=True)
class Worker:
    """One of the processes that serve at an address: by default the only one.

    Attributes:
        index: Its place among `count`.
        folder: Where they have their sockets.
        is_again: It stands in for one that died.
        names: Sessions by the digest of keys that were made when there were more workers, or fewer.
    """

    index: int = 0
    count: int = 1
    folder: Path = Path()
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
            with channel, suppress(OSError, struct.error, IndexError):  # the other worker died, or has given up
                await loop.sock_sendall(channel, b"!")
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
        """Give a connection to another worker; `OSError` if that does not take it, or hangs."""
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX) as channel:
            channel.setblocking(False)
            async with asyncio.timeout(_PATIENCE):
                await loop.sock_connect(channel, str(self.folder / f"connections-{owner}"))
                await loop.sock_recv(channel, 1)  # the system connects in place of a process that has stopped
            socket.send_fds(channel, [struct.pack("!I", len(read))], [connection.fileno()])
            await loop.sock_sendall(channel, read)

    async def ask_others(self, request: web.Request) -> dict[int, bytes | None]:
        """What every other worker answers to a request that is for all, by its index; None for one that does not.

        Nobody is asked where this worker is asked by another one.
        """
        keys = {name: request.headers[name] for name in ("Authorization", *KEY_HEADERS) if name in request.headers}

        async def ask(index: int) -> bytes | None:
            connector = aiohttp.UnixConnector(str(self.folder / f"http-{index}"))
            with suppress(aiohttp.ClientError, OSError):
                async with (
                    aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(_PATIENCE)) as http,
                    http.get(f"http://localhost{request.path}", headers=keys) as response,
                ):
                    response.raise_for_status()
                    return await response.read()
            return None

        is_asked = request.get_extra_info("sockname") == self.http_path
        others = [index for index in range(self.count) if index != self.index and not is_asked]
        return dict(zip(others, await asyncio.gather(*map(ask, others)), strict=True))

    def check_knows(self, name: str) -> None:
        """Refuse the name or the key of a session that only another worker knows; the next connection may reach it."""
        if (owner := self.owner(name)) != self.index:
            what = f"worker {owner} of the gateway cannot be reached on this connection, or is being started again"
            raise Refused(what, status=503, code="worker_away", retry_after=1)

    def owner_of(self, head: bytes) -> int | None:
        """The worker that a request belongs to, by its head; any for a new session, this one if it names none.

        None as long as the head has no end.
        """
        end = _END.search(head)  # the first: a body of megabytes may follow
        if end is None and len(head) <= _MOST_HEAD:
            return None
        first, *lines = head[: end and end.start()].decode("utf-8", "surrogateescape").split("\n")
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
    """The address of a socket."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


async def readable(channel: Any) -> None:
    """Wait until something can be read from what has a descriptor."""
    loop = asyncio.get_running_loop()
    is_ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(channel, is_ready.set_result, None)
    try:
        await is_ready
    finally:
        loop.remove_reader(channel)
