"""Pauses and weight updates on a live server while rollouts run: nothing is lost, versions are recorded."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from provider_support import make_agent
from rollout_support import make_model

from strands_sglang import SGLangClient, SGLangModel, Trajectory
from strands_sglang.testing import FaultyServer
from strands_sglang.trajectory import FinishType
from tests.integration.conftest import ServerFacts, running_requests

SAMPLED = 500
GO = [{"role": "user", "content": [{"text": "go"}]}]


@pytest.fixture
async def control(sglang_base_url: str) -> AsyncIterator[Callable[..., Awaitable[tuple[int, str]]]]:
    """`control(path, **body)`: a control call; the server is never left paused."""
    async with aiohttp.ClientSession(sglang_base_url) as session:

        async def post(path: str, **body: Any) -> tuple[int, str]:
            async with session.post(path, json=body) as answer:
                return answer.status, await answer.text()

        try:
            yield post
        finally:
            await post("/continue_generation")


async def update_weights(control: Callable[..., Awaitable[tuple[int, str]]], server: ServerFacts, version: str) -> None:
    """The same weights under another version.

    For a moment after its last answer a server may still count the request as running. It then updates the
    weights, answers 400 and says that it did not flush the cache: an update all the same, of equal weights.
    """
    status, body = await control(
        "/update_weights_from_disk", model_path=server.info["model_path"], weight_version=version
    )
    assert status == 200 or "Weights were updated, but the cache was not flushed" in body, body


@asynccontextmanager
async def one_long_call(
    client: SGLangClient, tokenizer: Any, base_url: str, **options: Any
) -> AsyncIterator[SGLangModel]:
    """A call of `SAMPLED` tokens that has begun on the server; waits for its end."""
    params = {"max_new_tokens": SAMPLED, "ignore_eos": True, "temperature": 1.0}
    model = make_model(client, tokenizer, sampling_params=params, **options)

    async def run() -> None:
        async for _ in model.stream([{"role": "user", "content": [{"text": f"go {uuid.uuid4().hex}"}]}]):
            pass

    task = asyncio.create_task(run())
    async with asyncio.timeout(30):
        while not await running_requests(base_url):
            assert not task.done(), "the call ended before anything could happen to it"
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    yield model
    async with asyncio.timeout(60):
        await task


async def assert_exact(client: SGLangClient, trajectory: Trajectory) -> None:
    """The whole trajectory, scored in one call, gives the recorded logprobs."""
    answer = await client.generate(
        list(trajectory.token_ids), sampling_params={"max_new_tokens": 0}, return_logprob=True, logprob_start_len=0
    )
    scored = [entry[0] for entry in answer["meta_info"]["input_token_logprobs"]]
    recorded = list(trajectory.logprobs)
    sampled = [n for n, out in enumerate(trajectory.output_mask) if out]
    assert sampled
    assert max(abs(float(recorded[n] or 0.0) - float(scored[n] or 0.0)) for n in sampled) < 1e-4


@pytest.mark.parametrize("mode", ["in_place", "retract", "abort"])
async def test_a_call_in_flight_survives_a_pause(
    client: SGLangClient, sglang_base_url: str, sglang_tokenizer: Any, control: Any, mode: str
) -> None:
    async with one_long_call(client, sglang_tokenizer, sglang_base_url) as model:
        assert (await control("/pause_generation", mode=mode))[0] == 200
        await asyncio.sleep(0.3)
        assert model.trajectories == []
        assert (await control("/continue_generation"))[0] == 200
    (trajectory,) = model.trajectories
    completion = trajectory.turns[0].completion
    assert len(completion.output_ids) == SAMPLED
    assert completion.finish.type is FinishType.LENGTH
    if mode == "abort":
        assert len(completion.request_ids) == 2
    else:
        assert len(completion.request_ids) == 1
    await assert_exact(client, trajectory)


async def test_a_surfaced_abort_of_a_pause_keeps_what_was_sampled(
    client: SGLangClient, sglang_base_url: str, sglang_tokenizer: Any, control: Any
) -> None:
    async with one_long_call(client, sglang_tokenizer, sglang_base_url, abort_policy="surface") as model:
        await control("/pause_generation", mode="abort")
        await asyncio.sleep(0.1)
        await control("/continue_generation")
    (trajectory,) = model.trajectories
    assert trajectory.finish_reason == "abort"
    assert 0 < sum(trajectory.loss_mask) < SAMPLED
    await assert_exact(client, trajectory)


@pytest.mark.parametrize("mode", ["in_place", "retract"])
async def test_a_rollout_that_begins_during_a_pause_waits_for_its_end(
    client: SGLangClient, sglang_tokenizer: Any, control: Any, mode: str
) -> None:
    await control("/pause_generation", mode=mode)
    stops = list(range(0, len(sglang_tokenizer), 4))
    model = make_model(client, sglang_tokenizer, sampling_params={"max_new_tokens": 200, "stop_token_ids": stops})
    task = asyncio.create_task(make_agent(model).invoke_async("go", limits={"turns": 3}))
    await asyncio.sleep(0.4)
    assert not task.done()
    assert model.trajectories == []
    await control("/continue_generation")
    async with asyncio.timeout(30):
        assert (await task).stop_reason == "limit_turns"
    (trajectory,) = model.trajectories
    assert len(trajectory.turns) == len(trajectory.request_ids) == 3
    await assert_exact(client, trajectory)


async def test_a_call_cancelled_during_a_pause_leaves_no_trace(
    client: SGLangClient, sglang_base_url: str, sglang_tokenizer: Any, control: Any
) -> None:
    await control("/pause_generation", mode="in_place")
    model = make_model(client, sglang_tokenizer, sampling_params={"max_new_tokens": 50})
    agent = make_agent(model)
    task = asyncio.create_task(agent.invoke_async("go"))
    await asyncio.sleep(0.3)
    agent.cancel()
    async with asyncio.timeout(5):
        assert (await task).stop_reason == "cancelled"
    assert model.trajectories == []
    await control("/continue_generation")
    # An abort that meets a paused server is lost, so the request may run to its end there: nobody reads it.
    async with asyncio.timeout(30):
        while await running_requests(sglang_base_url):
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("flush", [False, True], ids=["kept", "flushed"])
@pytest.mark.parametrize("mode", [None, "in_place", "retract", "abort"], ids=str)
async def test_new_weights_in_mid_rollout_are_recorded_and_change_no_token(
    client: SGLangClient,
    sglang_server: ServerFacts,
    sglang_tokenizer: Any,
    control: Any,
    mode: str | None,
    flush: bool,
) -> None:
    """The same weights under another version: what was sampled before and after must still score alike."""
    url, version = sglang_server.base_url, f"v{uuid.uuid4().hex[:6]}"
    async with one_long_call(client, sglang_tokenizer, url) as model:
        if mode is not None:
            await control("/pause_generation", mode=mode)
        status, body = await control(
            "/update_weights_from_disk",
            model_path=sglang_server.info["model_path"],
            weight_version=version,
            flush_cache=flush,
        )
        # With requests held in place the cache cannot be flushed; the weights did change, the server says.
        assert status == 200 or (flush and "not flushed" in body), body
        if mode is not None:
            await control("/continue_generation")
    (trajectory,) = model.trajectories
    assert len(trajectory.turns[0].completion.output_ids) == SAMPLED
    await assert_exact(client, trajectory)
    spans = model.token_manager.weight_versions
    start = len(trajectory.turns[0].prompt_ids)
    assert [spans[0].start, spans[-1].end] == [start, start + SAMPLED]
    assert all(a.end == b.start for a, b in itertools.pairwise(spans))
    if mode is not None:
        assert len(spans) == 2
        assert (spans[0].version != version, spans[1].version) == (True, version)
    # The next turn samples with the new weights, whatever the update waited for.
    model.update_config(sampling_params={"max_new_tokens": 3})
    async for _ in model.stream(GO):
        pass
    assert model.token_manager.weight_versions[-1].version == version


async def test_an_episode_over_an_update_between_its_turns_has_a_span_for_each(
    client: SGLangClient, sglang_server: ServerFacts, sglang_tokenizer: Any, control: Any
) -> None:
    version = f"v{uuid.uuid4().hex[:6]}"
    stops = list(range(0, len(sglang_tokenizer), 4))
    model = make_model(client, sglang_tokenizer, sampling_params={"max_new_tokens": 200, "stop_token_ids": stops})
    agent = make_agent(model)
    await agent.invoke_async("go", limits={"turns": 2})
    await update_weights(control, sglang_server, version)
    await agent.invoke_async(None, limits={"turns": 2})
    (trajectory,) = model.trajectories
    versions = [span.version for turn in trajectory.turns for span in turn.completion.weight_spans]
    assert len(versions) == 4
    assert versions[2:] == [version] * 2
    assert version not in versions[:2]
    await assert_exact(client, trajectory)


async def test_a_server_that_stays_paused_is_given_up_after_the_timeout() -> None:
    """On a fake: a live server would have to be paused for long."""
    async with (
        FaultyServer() as server,
        SGLangClient(server.url, timeout=0.2, max_retries=1, retry_delay=0.01) as client,
    ):
        server.pause()
        model = make_model(client)
        with pytest.raises(Exception, match=r"no answer .* within 0.2 s"):
            async for _ in model.stream(GO):
                pass
        assert len(server.requests) == 2
        assert model.trajectories == []
