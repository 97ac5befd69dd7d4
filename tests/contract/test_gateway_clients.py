"""Unmodified clients of OpenAI and Anthropic against the gateway: a tool round, streams, and a second user turn."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway_clients import chat, messages, responses
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
@pytest.mark.parametrize("client", [chat, responses, messages])
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
