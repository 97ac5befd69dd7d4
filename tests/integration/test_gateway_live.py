"""The gateway in front of a live server: unmodified clients, one broken connection, and nothing inexact."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import aiohttp
import pytest
from rollout_support import CallEveryTime

from strands_sglang.backends import GenerateAnswer, GenerateRequest
from strands_sglang.backends.engine.templates import HERMES_TEMPLATE
from strands_sglang.gateway import Gateway
from tests.gateway_clients import chat, messages, responses
from tests.integration.servers import CallEndedError, Server, meets_a_call
from tests.integration.test_exactness import NamedRequests, assert_scored_alike, short_turns

TURNS = 3
BROKEN = 2
"""The request whose connection breaks, counted from 1."""


class Recorded(NamedRequests):
    """In front of the server: what was sent, and what was sampled for it; None where no answer came.

    Args:
        client: Asks the server.
        endless: Number of the call that samples on and on, counted from 1; None for none of them.
    """

    def __init__(self, client: Any, endless: int | None) -> None:
        super().__init__(client)
        self.endless = endless
        self.sampled: list[list[int] | None] = []
        self.endless_ended = asyncio.Event()

    async def ask(self, request: GenerateRequest) -> GenerateAnswer:
        self.sampled.append(None)
        number = len(self.sampled)
        if number == self.endless:
            request = replace(request, sampling_params={"max_new_tokens": 3000, "ignore_eos": True})
        try:
            answer = await super().ask(request)
        finally:
            if number == self.endless:
                self.endless_ended.set()
        self.sampled[number - 1] = answer.output_ids.tolist()
        return answer


class BreakingProxy:
    """Passes bytes between a client and the gateway, and breaks the connection of one request.

    Args:
        url: The gateway.
        before_answer: Waits for the moment to break the connection; None: when the answer begins, which is swallowed.
        gone: Waits until the gateway has seen the break. The next connection is held for it, lest the repeat join the
            call still in flight.
    """

    def __init__(
        self,
        url: str,
        before_answer: Callable[[], Awaitable[None]] | None,
        gone: Callable[[], Awaitable[Any]],
    ) -> None:
        self.port = int(url.rpartition(":")[2])
        self.before_answer = before_answer
        self.gone = gone
        self.requests = 0
        self.broken = False

    async def __aenter__(self) -> str:
        self.server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        self.server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.broken:
            await self.gone()
        from_gateway, to_gateway = await asyncio.open_connection("127.0.0.1", self.port)
        reached = asyncio.Event()
        ways = [
            asyncio.create_task(self._forth(reader, to_gateway, reached)),
            asyncio.create_task(self._back(from_gateway, writer, reached)),
            asyncio.create_task(self._break(reached)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            to_gateway.transport.abort()
            writer.transport.abort()

    async def _forth(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reached: asyncio.Event) -> None:
        while chunk := await reader.read(1 << 16):
            self.requests += chunk.startswith(b"POST ")
            if self.requests == BROKEN:
                reached.set()
            writer.write(chunk)

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reached: asyncio.Event) -> None:
        while (chunk := await reader.read(1 << 16)) and not reached.is_set():
            writer.write(chunk)

    async def _break(self, reached: asyncio.Event) -> None:
        await reached.wait()
        if self.before_answer is None:
            await asyncio.Event().wait()  # `_back` ends it
        else:
            await self.before_answer()
            self.broken = True


async def until_running(server: Server, recorded: Recorded) -> None:
    while len(recorded.sampled) < BROKEN or not (await server.running() or recorded.endless_ended.is_set()):
        await asyncio.sleep(0.01)


@meets_a_call
@pytest.mark.parametrize(("hang_up", "stream"), [(True, False), (False, True)], ids=["hung-up", "answer-swallowed"])
@pytest.mark.parametrize("agent", [chat, responses, messages])
async def test_a_client_whose_connection_breaks_extends_token_by_token(
    server: Server,
    backend: Any,
    tokenizer: Any,
    agent: Callable[..., Awaitable[None]],
    hang_up: bool,
    stream: bool,
) -> None:
    recorded = Recorded(backend, endless=BROKEN if hang_up else None)
    async with (
        Gateway(
            client=recorded,
            tokenizer=tokenizer,
            tool_parser=CallEveryTime(),
            chat_template=HERMES_TEMPLATE,
            sampling_params=short_turns(tokenizer, temperature=1.0),
        ) as gateway,
        aiohttp.ClientSession(gateway.url) as http,
    ):
        session = gateway.open()
        moment = (lambda: until_running(server, recorded)) if hang_up else None
        async with BreakingProxy(gateway.url, moment, recorded.endless_ended.wait) as proxy_url:
            url = session.anthropic_url.replace(gateway.url, proxy_url)
            await agent(url, session.key, ["What is 1 + 2?"], stream=stream, rounds=TURNS)
        async with http.get(f"/sessions/{session.id}/trajectories") as answer:
            rows = await answer.json()
        counters = session.counters

    if hang_up and None not in recorded.sampled:
        raise CallEndedError

    # One request was cut: its sampling was aborted and repeated, or its answer was given again.
    assert len(recorded.sampled) == TURNS + hang_up
    assert recorded.sampled.count(None) == hang_up
    assert (counters.replayed, counters.siblings) == (not hang_up, 0)
    await server.idle()

    calls = [(p, s) for p, s in zip(recorded.prompts, recorded.sampled, strict=True) if s is not None]
    for (prompt, sampled), (following, _) in pairwise(calls):
        assert following[: len(prompt) + len(sampled)] == prompt + sampled
    assert counters.extension_rate == 1.0

    (row,) = rows
    trained = [token for token, loss in zip(row["token_ids"], row["loss_mask"], strict=True) if loss]
    assert trained == [token for _, sampled in calls for token in sampled]
    (trajectory,) = session.trajectories
    assert row["token_ids"] == trajectory.token_ids
    assert_scored_alike(trajectory, await server.score(trajectory.token_ids))
