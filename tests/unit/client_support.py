"""Shared by the tests of the client: faults of their own kind, and a server with scripted control routes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest
from aiohttp import web

from strands_sglang.backends.sglang.client import SGLangClient
from tests.servers import FaultyServer, faults


def make(url: str, **options: Any) -> SGLangClient:
    """A client that does not wait long."""
    return SGLangClient(url, **{"retry_delay": 0.001, "max_retry_delay": 0.01, "timeout": 30.0, **options})


@pytest.fixture
async def server() -> AsyncIterator[FaultyServer]:
    async with FaultyServer() as running:
        yield running


@pytest.fixture
async def client(server: FaultyServer) -> AsyncIterator[SGLangClient]:
    async with make(server.url) as made:
        yield made


def stalled_body(code: int = 200, *, chunked: bool = False) -> faults.Fault:
    """The head and the first byte of an answer, and then nothing."""

    async def fault(call: faults.ServerCall) -> web.StreamResponse:
        response = web.StreamResponse(status=code, headers={} if chunked else {"Content-Length": "5000"})
        await response.prepare(call.request)
        await response.write(b"{")
        await call.aborted.wait()
        return response

    return fault


class ControlledServer(FaultyServer):
    """A server whose control routes answer what they are told, in order; then as usual.

    Args:
        control: Path -> answers: a status, a body for status 200, or "reset".
        **options: Those of `FaultyServer`, and its script.

    Attributes:
        seen: `(path, headers)` of every control request.
    """

    def __init__(self, script: Any = (), *, control: Mapping[str, Sequence[Any]], **options: Any) -> None:
        super().__init__(script, **options)
        self.control = {path: list(answers) for path, answers in control.items()}
        self.seen: list[tuple[str, dict[str, str]]] = []

    async def _other(self, request: web.Request) -> web.StreamResponse:
        self.seen.append((request.path, {name.lower(): value for name, value in request.headers.items()}))
        answers = self.control.get(request.path)
        if not answers:
            return await super()._other(request)
        self.paths.append(f"{request.method} {request.path}")
        answer = answers.pop(0)
        if answer == "reset":
            request.transport.abort()
            return web.Response()
        if isinstance(answer, int):
            return web.Response(status=answer, text="no", headers={"Location": "/elsewhere"})
        return web.json_response(answer)
