"""Shared by the tests of the gateway: a gateway over a scripted client, and a plain HTTP client for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from itertools import groupby
from typing import Any

import aiohttp

from strands_sglang.gateway import Gateway, Session
from strands_sglang.testing import Reply
from strands_sglang.trajectory import Trajectory
from tests.provider_support import Replay, completion, tokenizer

CALL = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
CHAT_TOOLS = [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": SCHEMA}}]
RESPONSES_TOOLS = [{"type": "function", "name": "add", "description": "Add.", "parameters": SCHEMA}]
ANTHROPIC_TOOLS = [{"name": "add", "description": "Add.", "input_schema": SCHEMA}]
GOOGLE_TOOLS = [{"functionDeclarations": [{"name": "add", "description": "Add.", "parametersJsonSchema": SCHEMA}]}]


class Rig:
    """A session of a running gateway, and what the model was sent."""

    def __init__(self, gateway: Gateway, session: Session, client: Replay, http: aiohttp.ClientSession) -> None:
        self.gateway, self.session, self.client, self.http = gateway, session, client, http

    @property
    def prompts(self) -> list[list[int]]:
        """Ids of every prompt."""
        return self.client.prompts

    @property
    def headers(self) -> dict[str, str]:
        """The header that authorises requests to the session."""
        return {"Authorization": f"Bearer {self.session.key}"}

    async def post(self, path: str, body: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Any:
        """The JSON answer of a session's endpoint."""
        url = f"{self.session.anthropic_url}{path}"
        async with self.http.post(url, json=body, headers={**self.headers, **(headers or {})}) as response:
            text = await response.text()
            assert response.status == status, text
            return json.loads(text)

    async def call(self, method: str, path: str, *, status: int = 200, **options: Any) -> Any:
        """The JSON answer of any route, without a key of its own."""
        async with self.http.request(method, self.gateway.url + path, **options) as response:
            text = await response.text()
            assert response.status == status, text
            return json.loads(text) if text.startswith(("{", "[")) else text

    async def chat(self, messages: list[Any], *, status: int = 200, **more: Any) -> Any:
        """An answer of Chat Completions."""
        headers = more.pop("headers", None)
        body = {"model": "m", "messages": messages, **more}
        return await self.post("/v1/chat/completions", body, status=status, headers=headers)

    async def messages(self, messages: list[Any], *, status: int = 200, **more: Any) -> Any:
        """An answer of Anthropic Messages."""
        headers = more.pop("headers", None)
        body = {"model": "m", "max_tokens": 512, "messages": messages, **more}
        return await self.post("/v1/messages", body, status=status, headers=headers)

    async def responses(self, items: Any, *, status: int = 200, **more: Any) -> Any:
        """An answer of Responses."""
        return await self.post("/v1/responses", {"model": "m", "input": items, **more}, status=status)

    async def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The data of a stream's events; pings are left out."""
        url = f"{self.session.anthropic_url}{path}"
        async with self.http.post(url, json={**body, "stream": True}, headers=self.headers) as response:
            assert response.status == 200, await response.text()
            assert response.content_type == "text/event-stream"
            return events_of(await response.text())

    def sampled(self) -> list[list[int]]:
        """Sampled ids of every turn."""
        return [list(turn.completion.output_ids) for turn in self.session.conversation.forest.turns]


async def until(condition: Callable[[], Any]) -> None:
    """Wait for a condition."""
    while not condition():
        await asyncio.sleep(0.005)


def slow(text: str, delay: float = 0.2) -> Reply:
    """A completion that takes a while."""
    return Reply(ids=completion(text).ids, delay=delay)


def events_of(text: str) -> list[Any]:
    """The data of server-sent events; `[DONE]` as text."""
    found = []
    for event in text.split("\n\n"):
        for line in event.splitlines():
            if line.startswith("data: "):
                data = line[len("data: ") :]
                found.append(data if data == "[DONE]" else json.loads(data))
    return [event for event in found if not (isinstance(event, dict) and event.get("type") == "ping")]


@asynccontextmanager
async def rig(script: Any, **options: Any) -> AsyncIterator[Rig]:
    """A gateway on a free port, with one session open."""
    client = script if isinstance(script, Replay) else Replay(script)
    sampling, limits = options.pop("sampling", None), options.pop("limits", None)
    async with (
        Gateway(client=client, tokenizer=tokenizer(), **options) as gateway,
        aiohttp.ClientSession() as http,
    ):
        yield Rig(gateway, gateway.open(sampling=sampling, limits=limits), client, http)


def assert_prefix(rig: Rig) -> None:
    """Every prompt begins with the prompt before it and what was sampled for that."""
    sampled = rig.sampled()
    for k in range(len(rig.prompts) - 1):
        held = [*rig.prompts[k], *sampled[k]]
        assert rig.prompts[k + 1][: len(held)] == held, f"prompt {k + 1} does not extend call {k}"


def trained_once(session: Session) -> bool:
    """Each sampled token carries loss in exactly one trajectory."""
    forest = session.conversation.forest
    return sum(sum(t.loss_mask) for t in session.trajectories) == forest.sampled_tokens


def trained_runs(trajectory: Trajectory) -> Iterator[tuple[int, ...]]:
    """The ids of every reply that a trajectory trains: prompts stand between them."""
    pairs = zip(trajectory.token_ids, trajectory.loss_mask, strict=True)
    for is_trained, run in groupby(pairs, key=lambda pair: bool(pair[1])):
        if is_trained:
            yield tuple(token for token, _ in run)
