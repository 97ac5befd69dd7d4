"""Multi-turn tool rollouts on a live server: what is recorded is what was sampled, to the last logprob."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

import aiohttp
import pytest
from provider_support import make_agent

from strands_sglang import SGLangClient, SGLangModel, Trajectory
from strands_sglang.backends.engine.templates import HERMES_TEMPLATE
from strands_sglang.tool_parsers import ToolParser, get_tool_parser
from strands_sglang.trajectory import FinishType
from tests.integration.conftest import running_requests

CALL = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'


class CallEveryTime(type(get_tool_parser("hermes"))):  # type: ignore[misc]
    """Takes every reply for a tool call, so that a model of random weights goes through as many turns as wanted."""

    def parse_all(self, text: str, **kwargs: Any) -> Any:
        return super().parse_all(CALL, **{**kwargs, "in_reasoning": False})

    def parse(self, text: str, **kwargs: Any) -> Any:
        return super().parse(text, **kwargs)


class NamedRequests:
    """A client that keeps the request id of every call, so that a test can abort one on the server."""

    def __init__(self, client: SGLangClient) -> None:
        self.client = client
        self.rids: list[str] = []
        self.prompts: list[list[int]] = []

    async def generate(self, input_ids: list[int], **fields: Any) -> dict[str, Any]:
        self.rids.append(uuid.uuid4().hex)
        self.prompts.append(list(input_ids))
        return await self.client.generate(input_ids, rid=self.rids[-1], **fields)

    async def max_model_len(self) -> int | None:
        return await self.client.max_model_len()


def make_model(client: Any, tokenizer: Any, parser: ToolParser | None = None, **sampling: Any) -> SGLangModel:
    params = {"temperature": 1.0, "max_new_tokens": 48, **sampling}
    return SGLangModel(
        client=client,
        tokenizer=tokenizer,
        tool_parser=parser or CallEveryTime(),
        chat_template=HERMES_TEMPLATE,
        sampling_params=params,
    )


def early_stops(vocab_size: int) -> list[int]:
    """A quarter of the vocabulary as stop tokens: a random model then ends its turns after a few tokens."""
    return list(range(0, vocab_size, 4))


async def rollout(client: Any, tokenizer: Any, vocab_size: int, turns: int = 4) -> SGLangModel:
    model = make_model(client, tokenizer, stop_token_ids=early_stops(vocab_size), max_new_tokens=200)
    agent = make_agent(model, system_prompt=f"Episode {uuid.uuid4().hex}.")
    result = await agent.invoke_async("What is 1 + 2?", limits={"turns": turns})
    assert result.stop_reason == "limit_turns"
    return model


async def score(client: SGLangClient, ids: list[int]) -> list[float | None]:
    answer = await client.generate(ids, sampling_params={"max_new_tokens": 0}, return_logprob=True, logprob_start_len=0)
    return [entry[0] for entry in answer["meta_info"]["input_token_logprobs"]]


def assert_scored_alike(trajectory: Trajectory, scored: list[float | None]) -> None:
    recorded = trajectory.logprobs
    assert len(scored) == len(recorded)
    sampled = [i for i, out in enumerate(trajectory.output_mask) if out]
    assert sampled
    worst = max(abs(float(recorded[i] or 0.0) - float(scored[i] or 0.0)) for i in sampled)
    assert worst < 1e-4


async def test_the_whole_trajectory_scored_in_one_call_gives_the_recorded_logprobs(
    client: SGLangClient, sglang_tokenizer: Any, sglang_vocab_size: int
) -> None:
    model = await rollout(client, sglang_tokenizer, sglang_vocab_size)
    (trajectory,) = model.trajectories
    assert len(trajectory.turns) == 4
    assert_scored_alike(trajectory, await score(client, trajectory.token_ids))


async def test_every_prompt_extends_the_one_before_and_all_of_it_comes_from_the_cache(
    client: SGLangClient, sglang_tokenizer: Any, sglang_vocab_size: int
) -> None:
    named = NamedRequests(client)
    model = await rollout(named, sglang_tokenizer, sglang_vocab_size)
    (trajectory,) = model.trajectories
    ids = trajectory.token_ids
    for turn, prompt in zip(trajectory.turns, named.prompts, strict=True):
        assert prompt == ids[: turn.start + len(turn.prompt_ids)]
    for turn in trajectory.turns[1:]:
        # Of the last sampled token no key and value exist: it was never fed.
        assert turn.completion.cached_tokens == turn.start - 1


async def test_prompt_logprobs_on_request_cover_only_what_is_new(
    client: SGLangClient, sglang_tokenizer: Any, sglang_vocab_size: int
) -> None:
    model = make_model(client, sglang_tokenizer, stop_token_ids=early_stops(sglang_vocab_size), max_new_tokens=200)
    model.update_config(return_prompt_logprobs=True)
    await make_agent(model).invoke_async("What is 1 + 2?", limits={"turns": 3})
    (trajectory,) = model.trajectories
    recorded = trajectory.logprobs
    scored = await score(client, trajectory.token_ids)
    assert recorded[0] is None
    assert all(abs(float(a) - float(b)) < 1e-4 for a, b in zip(recorded[1:], scored[1:], strict=True))  # type: ignore[arg-type]


async def test_many_rollouts_at_once_stay_apart(
    client: SGLangClient, sglang_tokenizer: Any, sglang_vocab_size: int
) -> None:
    models = await asyncio.gather(*(rollout(client, sglang_tokenizer, sglang_vocab_size, 3) for _ in range(8)))
    for model in models:
        (trajectory,) = model.trajectories
        assert_scored_alike(trajectory, await score(client, trajectory.token_ids))


async def post_when_running(named: NamedRequests, base_url: str, path: str, **body: Any) -> None:
    """A control call once the first request runs; `rid=None` is that of the request."""
    async with asyncio.timeout(60):
        while not named.rids or not await running_requests(base_url):
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    if "rid" in body:
        body["rid"] = named.rids[0]
    async with aiohttp.ClientSession(base_url) as session, session.post(path, json=body) as answer:
        assert answer.status == 200


async def test_an_aborted_call_is_resumed_within_its_budget_and_stays_exact(
    client: SGLangClient, sglang_base_url: str, sglang_tokenizer: Any
) -> None:
    named = NamedRequests(client)
    model = make_model(named, sglang_tokenizer, max_new_tokens=600, ignore_eos=True)
    abort = asyncio.create_task(post_when_running(named, sglang_base_url, "/abort_request", rid=None))
    events = [event async for event in model.stream([{"role": "user", "content": [{"text": "go"}]}])]
    await abort
    (trajectory,) = model.trajectories
    completion = trajectory.turns[0].completion
    assert len(named.rids) == len(completion.request_ids) == 2
    assert len(completion.output_ids) == 600
    assert completion.finish.type is FinishType.LENGTH
    assert any(event.get("messageStop", {}).get("stopReason") == "max_tokens" for event in events)
    assert_scored_alike(trajectory, await score(client, trajectory.token_ids))


async def test_a_surfaced_abort_ends_the_loop_with_the_partial_turn_marked(
    client: SGLangClient, sglang_base_url: str, sglang_tokenizer: Any
) -> None:
    named = NamedRequests(client)
    model = make_model(named, sglang_tokenizer, max_new_tokens=2000, ignore_eos=True)
    model.update_config(abort_policy="surface")
    abort = asyncio.create_task(post_when_running(named, sglang_base_url, "/abort_request", rid=None))
    result = await make_agent(model).invoke_async("go")
    await abort
    (trajectory,) = model.trajectories
    assert result.stop_reason == "aborted"
    assert trajectory.finish_reason == "abort"
    assert 0 < sum(trajectory.loss_mask) < 2000
    assert_scored_alike(trajectory, await score(client, trajectory.token_ids))


async def test_a_new_weight_version_in_mid_call_gives_spans(
    client: SGLangClient, sglang_base_url: str, sglang_tokenizer: Any
) -> None:
    named = NamedRequests(client)
    model = make_model(named, sglang_tokenizer, max_new_tokens=800, ignore_eos=True)
    version = f"v{uuid.uuid4().hex[:6]}"
    update = {"new_version": version, "abort_all_requests": False}
    task = asyncio.create_task(post_when_running(named, sglang_base_url, "/update_weight_version", **update))
    async for _ in model.stream([{"role": "user", "content": [{"text": "go"}]}]):
        pass
    await task
    spans = model.token_manager.weight_versions
    assert [span.version for span in spans][-1] == version
    assert len(spans) == 2
    assert spans[0].end == spans[1].start
    assert spans[-1].end == len(model.token_manager)


@pytest.mark.parametrize("how", ["agent.cancel", "task", "client.close"])
async def test_a_cancelled_call_is_gone_from_the_server_and_from_the_trajectory(
    sglang_base_url: str, sglang_tokenizer: Any, sglang_vocab_size: int, how: str
) -> None:
    client = SGLangClient(sglang_base_url, max_retries=0)
    named = NamedRequests(client)
    model = await rollout(named, sglang_tokenizer, sglang_vocab_size, 2)
    before = model.token_manager.token_ids
    calls = len(named.rids)
    model.update_config(sampling_params={"max_new_tokens": 3000, "ignore_eos": True})
    history = [{"role": "user", "content": [{"text": "another"}]}]
    agent = make_agent(model, messages=history)
    task = asyncio.create_task(agent.invoke_async("go"))
    while len(named.rids) == calls:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.3)
    started = time.monotonic()
    if how == "agent.cancel":
        agent.cancel()
        assert (await task).stop_reason == "cancelled"
    elif how == "task":
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        await client.close()
        with pytest.raises(Exception, match="clos"):
            await task
    rid = named.rids[-1]
    await client.close()
    # Gone means: the id is free again (a request in flight with the same id is refused by the server).
    async with SGLangClient(sglang_base_url, max_retries=0) as other:
        while True:
            try:
                await other.generate([1, 2, 3], rid=rid, sampling_params={"max_new_tokens": 1})
                break
            except Exception:
                assert time.monotonic() - started < 10
                await asyncio.sleep(0.05)
    assert model.token_manager.token_ids == before
    assert len(model.trajectories) == 1
