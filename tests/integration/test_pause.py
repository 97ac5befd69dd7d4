"""Pauses and weight updates on live servers while rollouts run: nothing is lost, versions are recorded."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from provider_support import make_agent
from rollout_support import make_model

from strands_sglang import SGLangModel
from strands_sglang.trajectory import FinishType
from tests.integration.servers import CallEndedError, Server, meets_a_call
from tests.integration.test_exactness import assert_scored_alike, short_turns

SAMPLED = 1000
GO = [{"role": "user", "content": [{"text": "go"}]}]


@pytest.fixture(autouse=True)
async def _never_left_paused(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    yield
    if "server" in request.fixturenames:
        await request.getfixturevalue("server").resume()


@asynccontextmanager
async def one_long_call(server: Server, client: Any, tokenizer: Any, **options: Any) -> AsyncIterator[SGLangModel]:
    """A call of `SAMPLED` tokens that has begun on the server; waits for its end."""
    params = {"max_new_tokens": SAMPLED, "ignore_eos": True, "temperature": 1.0}
    model = make_model(client, tokenizer, sampling_params=params, **options)

    async def run() -> None:
        async for _ in model.stream([{"role": "user", "content": [{"text": f"go {uuid.uuid4().hex}"}]}]):
            pass

    task = asyncio.create_task(run())
    await server.sampling(task)
    yield model
    await task


def skip_unless_known(server: Server, mode: str | None) -> None:
    if mode not in (None, "abort", *server.holding, *server.draining):
        pytest.skip(f"this server has no pause mode {mode!r}")


@meets_a_call
@pytest.mark.parametrize("mode", ["in_place", "retract", "keep", "wait", "abort"])
async def test_a_call_in_flight_survives_a_pause(server: Server, backend: Any, tokenizer: Any, mode: str) -> None:
    skip_unless_known(server, mode)
    async with one_long_call(server, backend, tokenizer) as model:
        await server.pause(mode)
        await asyncio.sleep(0.3)
        ended = bool(model.trajectories)
        await server.resume()
    if ended and mode not in server.draining:
        raise CallEndedError
    (trajectory,) = model.trajectories
    completion = trajectory.turns[0].completion
    assert len(completion.output_ids) == SAMPLED
    assert completion.finish.type is FinishType.LENGTH
    assert len(completion.request_ids) == (2 if mode == "abort" else 1)
    assert_scored_alike(trajectory, await server.score(trajectory.token_ids))


@pytest.mark.parametrize("mode", ["in_place", "retract", "keep", "wait", "abort"])
async def test_a_rollout_that_begins_during_a_pause_waits_for_its_end(server, backend, tokenizer, mode):
    skip_unless_known(server, mode)
    await server.pause(mode)
    model = make_model(backend, tokenizer, sampling_params=short_turns(tokenizer))
    task = asyncio.create_task(make_agent(model).invoke_async("go", limits={"turns": 3}))
    await asyncio.sleep(0.4)
    assert not task.done()
    assert model.trajectories == []
    await server.resume()
    assert (await task).stop_reason == "limit_turns"
    (trajectory,) = model.trajectories
    assert len(trajectory.turns) == len(trajectory.request_ids) == 3
    assert_scored_alike(trajectory, await server.score(trajectory.token_ids))


async def test_a_call_cancelled_during_a_pause_leaves_no_trace(server: Server, backend: Any, tokenizer: Any) -> None:
    await server.pause(server.holding[0])
    model = make_model(backend, tokenizer, sampling_params={"max_new_tokens": 50})
    agent = make_agent(model)
    task = asyncio.create_task(agent.invoke_async("go"))
    await asyncio.sleep(0.3)
    agent.cancel()
    assert (await task).stop_reason == "cancelled"
    assert model.trajectories == []
    await server.resume()
    # An abort that meets a paused server is lost, so the request may run to its end there: nobody reads it.
    await server.idle()


@meets_a_call
@pytest.mark.parametrize("flush", [False, True], ids=["kept", "flushed"])
@pytest.mark.parametrize("mode", [None, "in_place", "retract", "keep", "abort"], ids=str)
async def test_new_weights_in_mid_rollout_are_recorded_and_change_no_token(server, backend, tokenizer, mode, flush):
    """The same weights under another version: what was sampled before and after must still score alike."""
    skip_unless_known(server, mode)
    version = f"v{uuid.uuid4().hex[:6]}"
    async with one_long_call(server, backend, tokenizer) as model:
        if mode is not None:
            await server.pause(mode)
        await server.update_weights(version, flush=flush)
        if mode is not None:
            await server.resume()
    (trajectory,) = model.trajectories
    assert len(trajectory.turns[0].completion.output_ids) == SAMPLED
    assert_scored_alike(trajectory, await server.score(trajectory.token_ids))
    spans = model.token_manager.weight_versions
    start = len(trajectory.turns[0].prompt_ids)
    assert [spans[0].start, spans[-1].end] == [start, start + SAMPLED]
    assert all(a.end == b.start for a, b in itertools.pairwise(spans))
    if mode is not None:
        if spans[-1].version != version:
            raise CallEndedError
        assert len(spans) == 2
        assert (spans[0].version != version, spans[1].version) == (True, version)
    # The next turn samples with the new weights, whatever the update waited for.
    model.update_config(sampling_params={"max_new_tokens": 3})
    async for _ in model.stream(GO):
        pass
    assert model.token_manager.weight_versions[-1].version == version
