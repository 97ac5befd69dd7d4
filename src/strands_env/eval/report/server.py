"""The page of a run or a training that goes on, for browsers on this machine.

The server listens on the loopback address alone. Its address holds a random key, for other users of the machine can
reach it too; a request for another host is refused, for a name of somebody's may lead here (DNS rebinding). It serves
one page, a stream of events and the parts that the page opens by name; no file.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Final

from aiohttp import web

from strands_env.eval.errors import StoreError
from strands_env.eval.report.live import LivePage
from strands_env.eval.report.page import live_page, page_json

HOST: Final = "127.0.0.1"
MAX_STREAMS = 32
"""Pages that are told of news at once."""
SLOW_SECONDS = 30.0
"""Seconds in which a page must have taken its data."""
READ_SECONDS = 0.5
QUIET_SECONDS = 1.0
"""Seconds between looks at the files."""
SHARE = 5
"""Looks and overviews take at most one part of so many of the time each: the machine is the run's."""
BEAT_SECONDS = 15.0


class LiveServer:
    """Serves a live page: `async with LiveServer(source) as server: await server.follow()`.

    Args:
        port: A free one if 0.

    Attributes:
        address: Address of the page, with its key.

    Raises:
        OSError: The port is in use.
    """

    def __init__(self, source: LivePage, *, port: int = 0) -> None:
        self._source = source
        self._port = port
        self._key = secrets.token_urlsafe(24)
        self._page, self._policy = live_page(source.title, source.scripts)
        self._document = b""
        self._version = 0
        self._news = asyncio.Condition()
        self._streams = 0
        self._hosts: frozenset[str | None] = frozenset()
        self.address = ""

    async def __aenter__(self) -> LiveServer:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1, access_log=None)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, HOST, self._port).start()
        except BaseException:
            await self._runner.cleanup()
            raise
        port = self._runner.addresses[0][1]
        self._hosts = frozenset({f"{HOST}:{port}", f"localhost:{port}"})
        self.address = f"http://{HOST}:{port}/{self._key}/"
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._runner.cleanup()

    async def follow(self) -> None:
        """Read new lines, and tell the pages, without end.

        Raises:
            EvalError: The files cannot be read.
        """
        is_new, next_time = True, 0.0
        while True:
            started = time.monotonic()
            is_new |= bool(await asyncio.to_thread(self._source.read, READ_SECONDS))
            pause = max(QUIET_SECONDS, SHARE * (time.monotonic() - started))
            if is_new and time.monotonic() >= next_time:
                started, is_new = time.monotonic(), False
                document = await asyncio.to_thread(lambda: page_json(self._source.overview()))
                next_time = time.monotonic() + SHARE * (time.monotonic() - started)
                async with self._news:
                    self._document, self._version = b"data: " + document + b"\n\n", self._version + 1
                    self._news.notify_all()
            if not self._source.is_behind:
                await asyncio.sleep(pause)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Host") not in self._hosts:
            return _refuse(403, "This address is not the watch's own: open the one it printed.")
        if request.method != "GET":
            return _refuse(405, "Only GET is answered here.", Allow="GET")
        key, _, name = request.path.removeprefix("/").partition("/")
        if not secrets.compare_digest(key.encode(), self._key.encode()):
            return _refuse(404, "There is nothing here: open the address that the watch printed, with its key.")
        match name:
            case "":
                headers = {"Content-Security-Policy": f"{self._policy}; frame-ancestors 'none'"}
                return web.Response(text=self._page, content_type="text/html", headers=_HEADERS | headers)
            case "events":
                return await self._tell(request)
            case "part":
                return await self._part(request.query.get("name", ""))
        return _refuse(404, "There is nothing here.")

    async def _part(self, name: str) -> web.Response:
        try:
            value = await asyncio.to_thread(self._source.part, name)
        except (StoreError, OSError) as error:
            return _refuse(503, str(error))
        if value is None:
            return _refuse(404, "It is no longer there: the run was begun anew.")
        return web.Response(
            body=await asyncio.to_thread(page_json, value), content_type="application/json", headers=_HEADERS
        )

    async def _tell(self, request: web.Request) -> web.StreamResponse:
        if self._streams >= MAX_STREAMS:
            return _refuse(503, f"{MAX_STREAMS} pages follow this run already: close one.")
        self._streams += 1
        response = web.StreamResponse(headers=_HEADERS | {"Content-Type": "text/event-stream; charset=utf-8"})
        seen = 0
        try:
            await response.prepare(request)
            while True:
                try:
                    async with asyncio.timeout(BEAT_SECONDS), self._news:
                        while self._version == seen:
                            await self._news.wait()
                    # A slow page gets the newest data next, and skips older data.
                    seen, message = self._version, self._document
                except TimeoutError:
                    message = b": still here\n\n"  # finds out that a page is gone
                async with asyncio.timeout(SLOW_SECONDS):
                    await response.write(message)
        except (TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()  # data that it did not take is not kept
            return response
        finally:
            self._streams -= 1


_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def _refuse(status: int, text: str, **headers: str) -> web.Response:
    return web.Response(status=status, text=text, headers=_HEADERS | headers)
