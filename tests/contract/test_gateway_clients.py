"""Unmodified clients of OpenAI, Anthropic and Google against the gateway: tool rounds, streams, second user turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from strands_sglang.exceptions import SGLangHTTPError, SGLangThrottledError
from tests.gateway_clients import chat, google, messages, responses
from tests.provider_support import completion
from tests.unit.gateway_support import CALL, Rig, assert_prefix, rig, slow, trained_once, until

SCRIPT = [f"<think>\nLet me think.\n</think>\n\nI will add.\n{CALL}{CALL}", "Done: 3.", CALL, "Still 3."]
QUESTIONS = ("What is 1+2?", "Again?")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("client", [chat, responses, messages, google])
async def test_a_client_extends_token_by_token(client: Any, stream: bool) -> None:
    async with rig([completion(text) for text in SCRIPT]) as r:
        await client(r.session.anthropic_url, r.session.key, QUESTIONS, stream=stream, arguments={"a": 1, "b": 2})
        assert_prefix(r)
        assert r.session.counters.extension_rate == 1.0 and len(r.session.trajectories) == 1
        assert (r.session.counters.receipts > 0) == (client is not chat)
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

    async def fail(*_: Any) -> None:
        await asyncio.sleep(0.1)
        raise SGLangHTTPError(500, "gone")

    async with rig([slow("Hello.", 0.1), fail], hold=0.02, ping_interval=0.02, context_window_limit=60) as r:
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


# ---- conversations that a server is to hold ------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_anthropics_tool_runner_sends_its_history_when_no_thread_is_held(stream: bool) -> None:
    """With its defaults it opens a thread and then sends only what is new."""
    anthropic = pytest.importorskip("anthropic", reason="the extra 'test' is not installed")
    if not hasattr(anthropic, "beta_async_tool"):
        pytest.skip("this release of anthropic has no tool runner")

    @anthropic.beta_async_tool
    async def add(a: int, b: int) -> str:
        """Add."""
        return str(a + b)

    async with rig([completion(text) for text in SCRIPT[:2]]) as r:
        async with anthropic.AsyncAnthropic(base_url=r.session.anthropic_url, api_key=r.session.key) as client:
            asked = [{"role": "user", "content": QUESTIONS[0]}]
            runner = client.beta.messages.tool_runner(
                model="policy", max_tokens=99, messages=asked, tools=[add], stream=stream
            )
            last = await runner.until_done()
        assert last.content[-1].text == "Done: 3."
        assert_prefix(r)
        assert r.session.counters.extended == 1 and len(r.session.trajectories) == 1 and trained_once(r.session)


async def test_openai_agents_are_told_that_no_conversation_is_held() -> None:
    agents = pytest.importorskip("agents", reason="openai-agents is not installed")
    openai = pytest.importorskip("openai", reason="the extra 'test' is not installed")
    agents.set_tracing_disabled(True)
    async with rig([completion("Hi.")]) as r:
        async with openai.AsyncOpenAI(base_url=r.session.base_url, api_key=r.session.key) as client:
            agent = agents.Agent(name="a", model=agents.OpenAIResponsesModel(model="policy", openai_client=client))
            with pytest.raises(openai.BadRequestError, match="send the whole input") as refused:
                await agents.Runner.run(agent, "Hi", conversation_id="conv_1")
            assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "conversation")
            assert (await agents.Runner.run(agent, "Hi")).final_output == "Hi."
        assert len(r.session.trajectories) == 1


# ---- siblings and retries ------------------------------------------------

Ask = Callable[..., Awaitable[str]]
"""Asks the same question with a vendor's client and returns the text; headers are given by name."""


@asynccontextmanager
async def openai_asker(r: Rig, **options: Any) -> AsyncIterator[Ask]:
    openai = pytest.importorskip("openai", reason="the extra 'test' is not installed")

    async def ask(*, stream: bool = False, headers: Any = None) -> str:
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "extra_headers": headers}
        if not stream:
            return (await client.chat.completions.create(**body)).choices[0].message.content
        chunks = [chunk async for chunk in await client.chat.completions.create(**body, stream=True)]
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    async with openai.AsyncOpenAI(base_url=r.session.base_url, api_key=r.session.key, **options) as client:
        yield ask


@asynccontextmanager
async def anthropic_asker(r: Rig, **options: Any) -> AsyncIterator[Ask]:
    anthropic = pytest.importorskip("anthropic", reason="the extra 'test' is not installed")

    async def ask(*, stream: bool = False, headers: Any = None) -> str:
        body = {"model": "m", "max_tokens": 99, "messages": [{"role": "user", "content": "Hi"}]}
        if not stream:
            return (await client.messages.create(**body, extra_headers=headers)).content[0].text
        async with client.messages.stream(**body, extra_headers=headers) as events:
            return "".join([text async for text in events.text_stream])

    async with anthropic.AsyncAnthropic(base_url=r.session.anthropic_url, api_key=r.session.key, **options) as client:
        yield ask


ASKERS = pytest.mark.parametrize("asker", [openai_asker, anthropic_asker])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("parallel", [False, True], ids=["in turn", "at once"])
@ASKERS
async def test_best_of_n_gets_n_samples(asker: Any, parallel: bool, stream: bool) -> None:
    expected = [f"Sample {k}." for k in range(6)]
    async with rig([slow(text, 0.1) for text in expected]) as r, asker(r) as ask:
        if parallel:
            texts = await asyncio.gather(*(ask(stream=stream) for _ in expected))
        else:
            texts = [await ask(stream=stream) for _ in expected]
        assert sorted(texts) == expected
        assert (r.session.counters.siblings, r.session.counters.joined, r.session.counters.replayed) == (5, 0, 0)
        assert [t.is_discarded for t in r.session.trajectories] == [False] * 6 and trained_once(r.session)


@ASKERS
async def test_equal_requests_of_one_idempotency_key_are_one_sample(asker: Any) -> None:
    release = asyncio.Event()
    async with rig([held_until(release, "One."), held_until(release, "Two.")]) as r, asker(r) as ask:
        asking = [asyncio.create_task(ask(headers={"Idempotency-Key": key})) for key in ("a", "a", "b", "b")]
        await until(lambda: r.session.counters.joined == 2)
        release.set()
        one, same, two, also = await asyncio.gather(*asking)
        assert one == same and two == also and {one, two} == {"One.", "Two."}
        assert await ask(headers={"Idempotency-Key": "a"}) == one
        assert len(r.prompts) == 2 and r.session.counters.replayed == 1 and trained_once(r.session)


@pytest.mark.parametrize("others", [0, 2], ids=["alone", "among siblings"])
@ASKERS
async def test_a_retry_after_a_client_timeout_takes_over_the_sample_in_flight(asker: Any, others: int) -> None:
    """The SDK gives up at its time-out, closes its connection and asks again."""
    release = asyncio.Event()
    script = [held_until(release, f"Sample {k}.") for k in range(others + 1)]
    async with rig(script) as r, asker(r) as patient, asker(r, timeout=0.5, max_retries=9) as hasty:
        asking = [asyncio.create_task(patient()) for _ in range(others)]
        retrying = asyncio.create_task(hasty())
        await until(lambda: r.session.counters.joined)
        release.set()
        texts = await asyncio.gather(*asking, retrying)
        assert sorted(texts) == [f"Sample {k}." for k in range(others + 1)]
        assert len(r.prompts) == others + 1 and r.session.counters.siblings == others
        assert [t.is_discarded for t in r.session.trajectories] == [False] * (others + 1) and trained_once(r.session)


@ASKERS
async def test_a_retry_of_a_refused_request_leaves_a_sibling_its_sample(asker: Any) -> None:
    release = asyncio.Event()
    script = [SGLangThrottledError("busy", status=503), held_until(release, "One."), held_until(release, "Two.")]
    async with rig(script) as r, asker(r) as ask:
        asking = [asyncio.create_task(ask()) for _ in range(2)]
        await until(lambda: len(r.prompts) == 3 or r.session.counters.joined)
        release.set()
        assert sorted(await asyncio.gather(*asking)) == ["One.", "Two."]
        assert r.session.counters.joined == 0 and trained_once(r.session)


def held_until(release: asyncio.Event, text: str) -> Callable[..., Awaitable[Any]]:
    """A completion that arrives once the event is set."""

    async def reply(*_: Any) -> Any:
        await release.wait()
        return completion(text)

    return reply
