"""Unmodified clients of OpenAI, Anthropic and Google against the gateway: tool rounds, streams, second user turns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from strands_sglang.exceptions import SGLangHTTPError
from tests.gateway_clients import chat, google, messages, responses
from tests.provider_support import completion
from tests.unit.gateway_support import (
    CALL,
    assert_prefix,
    rig,
    trained_once,
)

SCRIPT = [f"<think>\nLet me think.\n</think>\n\nI will add.\n{CALL}{CALL}", "Done: 3.", CALL, "Still 3."]
QUESTIONS = ("What is 1+2?", "Again?")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("client", [chat, responses, messages, google])
async def test_a_client_extends_token_by_token(client: Any, stream: bool) -> None:
    async with rig([completion(text) for text in SCRIPT]) as r:
        await client(r.session.anthropic_url, r.session.key, QUESTIONS, stream=stream, arguments={"a": 1, "b": 2})
        assert_prefix(r)
        assert r.session.counters.extension_rate == 1.0 and len(r.session.trajectories) == 1
        assert trained_once(r.session)


async def test_errors_are_the_clients_own_types_and_not_tried_again() -> None:
    openai = pytest.importorskip("openai", reason="the extra 'test' is not installed")
    anthropic = pytest.importorskip("anthropic", reason="the extra 'test' is not installed")
    async with rig([], context_window_limit=20) as r:
        long = [{"role": "user", "content": "word " * 50}]
        async with openai.AsyncOpenAI(base_url=r.session.base_url, api_key=r.session.key) as client:
            with pytest.raises(openai.BadRequestError) as refused:
                await client.chat.completions.create(model="m", messages=long)
            assert refused.value.code == "context_length_exceeded"
        async with anthropic.AsyncAnthropic(base_url=r.session.anthropic_url, api_key="wrong") as other:
            with pytest.raises(anthropic.AuthenticationError):
                await other.messages.create(model="m", max_tokens=9, messages=long)
            counted = await other.with_options(api_key=r.session.key).messages.count_tokens(model="m", messages=long)
            assert counted.input_tokens > 50
        await r.session.close()
        async with openai.AsyncOpenAI(base_url=r.session.base_url, api_key=r.session.key) as client:
            with pytest.raises(openai.ConflictError):
                await client.chat.completions.create(model="m", messages=long)
        assert r.session.counters.requests == 1


async def test_googles_client_reads_errors_pings_and_counts() -> None:
    genai = pytest.importorskip("google.genai", reason="the extra 'test' is not installed")
    async with rig([slow("Hello."), slow(None)], hold=0.02, ping_interval=0.02, context_window_limit=60) as r:
        options = {"base_url": r.session.google_url, "retry_options": {"attempts": 1}}
        client = genai.Client(api_key=r.session.key, http_options=options).aio
        counted = await client.models.count_tokens(model="policy", contents="Hi")
        events = [e async for e in await client.models.generate_content_stream(model="policy", contents="Hi")]
        assert [event.text for event in events] == ["Hello."]
        assert events[0].usage_metadata.prompt_token_count == counted.total_tokens == len(r.prompts[0])
        with pytest.raises(genai.errors.ServerError, match="the model server gave no answer"):
            _ = [e async for e in await client.models.generate_content_stream(model="policy", contents="Hi!")]
        with pytest.raises(genai.errors.ClientError, match="exceeds the maximum number of tokens"):
            await client.models.generate_content(model="policy", contents="word " * 100)
        wrong = genai.Client(api_key="wrong", http_options=options).aio
        with pytest.raises(genai.errors.ClientError, match="no session has this key"):
            await wrong.models.generate_content(model="policy", contents="Hi")
        await client.aclose()
        await wrong.aclose()


def slow(text: str | None) -> Callable[..., Awaitable[Any]]:
    """A completion that takes a while, or fails."""

    async def reply(*_: Any) -> Any:
        await asyncio.sleep(0.1)
        if text is None:
            raise SGLangHTTPError(500, "gone")
        return completion(text)

    return reply
