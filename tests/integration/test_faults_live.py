"""A proxy that breaks answers in front of live servers of every kind: a rollout through it is as exact as without."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from strands_sglang.backends.vllm import VLLMClient
from strands_sglang.exceptions import BackendConnectionError
from tests.integration.servers import Server
from tests.integration.test_exactness import assert_scored_alike, rollout

BROKEN = 2
"""The generate request that is broken, counted from 1."""


class Proxy:
    """Passes everything on, breaks one generate request, and keeps the answers that got through, in order."""

    def __init__(self, server: Server, kind: str) -> None:
        self.server, self.kind = server, kind
        self.requests = 0
        self.answers: list[Any] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._pass)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with aiohttp.ClientSession(self.server.base_url) as self._http:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        await runner.cleanup()

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        sent = await request.read()
        is_call = request.path == self.server.client_class.server.generate_route
        self.requests += is_call
        is_broken = is_call and self.requests == BROKEN
        if is_broken and self.kind.isdigit():
            return web.json_response({"error": {"message": "the server is busy"}}, status=int(self.kind))
        headers = {"Content-Type": "application/json"}
        async with self._http.request(request.method, request.path_qs, data=sent, headers=headers) as answer:
            body = await answer.read()
        if is_broken:
            return await self._break(request, body)
        if is_call and answer.status == 200:
            self.answers.append(json.loads(body))
        return web.Response(body=body, status=answer.status, content_type=answer.content_type)

    async def _break(self, request: web.Request, body: bytes) -> web.StreamResponse:
        """Sampled tokens are lost, or arrive as something else."""
        if self.kind == "swallowed":
            request.transport.abort()
        if self.kind == "half":
            body = body[: len(body) // 2]
        if self.kind == "another-token":
            answer = json.loads(body)
            _ids(answer)[0] ^= 1
            body = json.dumps(answer).encode()
        return web.Response(body=body, content_type="application/json")

    def sampled(self) -> list[int]:
        """Ids of the answers that got through."""
        return [token for answer in self.answers for token in _ids(answer)]


def _ids(answer: Any) -> list[int]:
    """The sampled ids of an answer of either protocol."""
    ids: list[int] = answer["choices"][0]["token_ids"] if "choices" in answer else answer["output_ids"]
    return ids


@pytest.mark.parametrize("kind", ["500", "503", "swallowed", "half", "another-token"])
async def test_an_answer_that_breaks_leaves_nothing_in_the_trajectory(server, tokenizer, kind):
    proxy = Proxy(server, kind)
    async with proxy.running() as url, server.client_class(url, retry_delay=0.05) as client:
        model = await rollout(client, tokenizer, 3)
    (trajectory,) = model.trajectories
    trained = [token for token, out in zip(trajectory.token_ids, trajectory.output_mask, strict=True) if out]
    assert (proxy.requests, trained) == (4, proxy.sampled())
    assert_scored_alike(trajectory, await server.score(trajectory.token_ids))


async def test_a_live_server_is_told_from_the_other_kind(server: Server, tokenizer: Any) -> None:
    client = server.client_class(server.base_url)
    assert await asyncio.to_thread(client.served_tokenizer) == server.tokenizer_path
    await asyncio.to_thread(client.check_tokenizer, tokenizer, "its own")
    if not isinstance(client, VLLMClient):
        client = VLLMClient(server.base_url)
        with pytest.raises(BackendConnectionError, match="--backend sglang"):
            await asyncio.to_thread(client.served_tokenizer)
