"""Multi-turn tool rollouts on live servers of every kind: what is recorded is what was sampled, to the last logprob."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from provider_support import make_agent

from strands_env.training import samples_from_model, score_with_teacher
from strands_sglang import SGLangModel, Trajectory
from strands_sglang.backends import BackendWrapper, GenerateAnswer, GenerateRequest
from strands_sglang.backends.engine.templates import HERMES_TEMPLATE
from strands_sglang.tool_parsers import ToolParser, get_tool_parser
from strands_sglang.trajectory import FinishType
from tests.integration.servers import CallEndedError, Server, meets_a_call

CALL = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'


class CallEveryTime(type(get_tool_parser("hermes"))):  # type: ignore[misc]
    """Takes every reply for a tool call, so that a model of random weights goes through as many turns as wanted."""

    def parse_all(self, text: str, **kwargs: Any) -> Any:
        return super().parse_all(CALL, **{**kwargs, "in_reasoning": False})

    def parse(self, text: str, **kwargs: Any) -> Any:
        return super().parse(text, **kwargs)


class NamedRequests(BackendWrapper):
    """A backend that keeps id and prompt of every request, so that a test can abort one on the server."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.rids: list[str] = []
        self.prompts: list[list[int]] = []

    async def ask(self, request: GenerateRequest) -> GenerateAnswer:
        self.rids.append(uuid.uuid4().hex)
        self.prompts.append(request.prompt.tolist())
        return await super().ask(replace(request, rid=self.rids[-1]))


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


async def rollout(client: Any, tokenizer: Any, turns: int = 4, **sampling: Any) -> SGLangModel:
    params = {"stop_token_ids": early_stops(len(tokenizer)), "max_new_tokens": 200, **sampling}
    model = make_model(client, tokenizer, **params)
    agent = make_agent(model, system_prompt=f"Episode {uuid.uuid4().hex}.")
    result = await agent.invoke_async("What is 1 + 2?", limits={"turns": turns})
    assert result.stop_reason == "limit_turns"
    return model


def assert_scored_alike(trajectory: Trajectory, scored: list[float | None]) -> None:
    recorded = trajectory.logprobs
    assert len(scored) == len(recorded)
    sampled = [i for i, out in enumerate(trajectory.output_mask) if out]
    assert sampled
    worst = max(abs(float(recorded[i] or 0.0) - float(scored[i] or 0.0)) for i in sampled)
    assert worst < 1e-4


async def test_the_whole_trajectory_scored_in_one_call_gives_the_recorded_logprobs(server, backend, tokenizer):
    model = await rollout(backend, tokenizer)
    (trajectory,) = model.trajectories
    assert len(trajectory.turns) == 4
    assert_scored_alike(trajectory, await server.score(trajectory.token_ids))


@pytest.mark.parametrize("temperature", [0.7, 1.6])
async def test_logprobs_are_those_of_the_temperature_sampled_at(server, backend, tokenizer, temperature):
    """Computed here: servers score prompts at temperature 1."""
    torch = pytest.importorskip("torch", reason="needs the extra 'local'")
    transformers = pytest.importorskip("transformers", reason="needs the extra 'local'")
    if not (Path(server.model_path) / "config.json").is_file():
        pytest.skip(f"the server's model {server.model_path!r} is not a folder on this machine")
    model = await rollout(backend, tokenizer, temperature=temperature)
    (trajectory,) = model.trajectories
    ids = torch.tensor([trajectory.token_ids])
    reference = transformers.AutoModelForCausalLM.from_pretrained(server.model_path, dtype=torch.float32)
    with torch.inference_mode():
        logprobs = torch.log_softmax(reference(ids).logits[0, :-1].double() / temperature, dim=-1)
    assert_scored_alike(trajectory, [None, *logprobs.gather(1, ids[0, 1:, None])[:, 0].tolist()])


async def test_every_prompt_extends_the_one_before_and_comes_from_the_cache(server, backend, tokenizer):
    named = NamedRequests(backend)
    model = await rollout(named, tokenizer)
    (trajectory,) = model.trajectories
    ids = trajectory.token_ids
    for turn, prompt in zip(trajectory.turns, named.prompts, strict=True):
        assert prompt == ids[: turn.start + len(turn.prompt_ids)]
    for turn in trajectory.turns[1:]:
        # Of the last sampled token no key and value exist: it was never fed.
        assert turn.completion.cached_tokens == await server.cached(turn.start - 1)


async def test_prompt_logprobs_on_request_cover_every_token(server: Server, backend: Any, tokenizer: Any) -> None:
    model = make_model(backend, tokenizer, stop_token_ids=early_stops(len(tokenizer)), max_new_tokens=200)
    model.update_config(return_prompt_logprobs=True)
    await make_agent(model).invoke_async("What is 1 + 2?", limits={"turns": 3})
    (trajectory,) = model.trajectories
    recorded = trajectory.logprobs
    scored = await server.score(trajectory.token_ids)
    assert recorded[0] is None
    assert all(abs(float(a) - float(b)) < 1e-4 for a, b in zip(recorded[1:], scored[1:], strict=True))  # type: ignore[arg-type]


async def test_many_rollouts_at_once_stay_apart(server: Server, backend: Any, tokenizer: Any) -> None:
    models = await asyncio.gather(*(rollout(backend, tokenizer, 3) for _ in range(8)))
    for model in models:
        (trajectory,) = model.trajectories
        assert_scored_alike(trajectory, await server.score(trajectory.token_ids))


async def test_a_trimmed_history_starts_another_exact_path(server: Server, backend: Any, tokenizer: Any) -> None:
    model = make_model(backend, tokenizer, stop_token_ids=early_stops(len(tokenizer)), max_new_tokens=200)
    agent = make_agent(model)
    await agent.invoke_async("What is 1 + 2?", limits={"turns": 3})
    del agent.messages[1:3]  # the first call and its result
    await agent.invoke_async("And 3 + 4?", limits={"turns": 2})
    first, second = model.trajectories
    assert len(first.turns) == 3
    assert second.token_ids[: len(first.token_ids)] != first.token_ids
    for trajectory in (first, second):
        assert_scored_alike(trajectory, await server.score(trajectory.token_ids))


async def in_flight(server: Server, call: Coroutine[Any, Any, Any], control: Callable[[], Awaitable[None]]) -> Any:
    """The result of a call, to which something happens while the server works on it."""
    task = asyncio.create_task(call)
    await server.sampling(task)
    await control()
    return await task


async def stream(model: SGLangModel) -> list[Any]:
    return [event async for event in model.stream([{"role": "user", "content": [{"text": "go"}]}])]


@meets_a_call
async def test_an_aborted_call_is_resumed_within_its_budget_and_stays_exact(server, backend, tokenizer):
    named = NamedRequests(backend)
    model = make_model(named, tokenizer, max_new_tokens=1500, ignore_eos=True)
    events = await in_flight(server, stream(model), lambda: server.abort(named.rids[0]))
    (trajectory,) = model.trajectories
    completion = trajectory.turns[0].completion
    if len(named.rids) == 1:
        raise CallEndedError
    assert len(named.rids) == len(completion.request_ids) == 2
    assert len(completion.output_ids) == 1500
    assert completion.finish.type is FinishType.LENGTH
    assert any(event.get("messageStop", {}).get("stopReason") == "max_tokens" for event in events)
    spans = model.token_manager.weight_versions
    assert (spans[0].start, spans[-1].end) == (len(trajectory.token_ids) - 1500, len(trajectory.token_ids))
    assert_scored_alike(trajectory, await server.score(trajectory.token_ids))


@meets_a_call
async def test_a_surfaced_abort_ends_the_loop_with_the_partial_turn_marked(server, backend, tokenizer):
    named = NamedRequests(backend)
    model = make_model(named, tokenizer, max_new_tokens=3000, ignore_eos=True)
    model.update_config(abort_policy="surface")
    agent = make_agent(model)
    result = await in_flight(server, agent.invoke_async("go"), lambda: server.abort(named.rids[0]))
    (trajectory,) = model.trajectories
    sampled = sum(trajectory.loss_mask)
    if sampled == 3000:
        raise CallEndedError
    assert result.stop_reason == "aborted"
    assert trajectory.finish_reason == "abort"
    assert sampled > 0
    assert_scored_alike(trajectory, await server.score(trajectory.token_ids))


@meets_a_call
async def test_a_new_weight_version_in_mid_call_gives_spans(server: Server, backend: Any, tokenizer: Any) -> None:
    model = make_model(backend, tokenizer, max_new_tokens=1500, ignore_eos=True)
    version = f"v{uuid.uuid4().hex[:6]}"
    await in_flight(server, stream(model), lambda: server.set_version(version))
    spans = model.token_manager.weight_versions
    if spans[-1].version != version:
        raise CallEndedError
    assert len(spans) == 2
    assert spans[0].end == spans[1].start
    assert spans[-1].end == len(model.token_manager)


@meets_a_call
@pytest.mark.parametrize("how", ["agent.cancel", "task", "client.close"])
async def test_a_cancelled_call_is_gone_from_the_server_and_from_the_trajectory(server, tokenizer, how):
    client = server.client(max_retries=0)
    model = await rollout(client, tokenizer, 2)
    before = model.token_manager.token_ids
    model.update_config(sampling_params={"max_new_tokens": 3000, "ignore_eos": True})
    history = [{"role": "user", "content": [{"text": "another"}]}]
    agent = make_agent(model, messages=history)
    task = asyncio.create_task(agent.invoke_async("go"))
    await server.sampling(task)
    if task.done():
        raise CallEndedError
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
    await client.close()
    async with asyncio.timeout(10):
        while await server.running():
            await asyncio.sleep(0.05)
    assert model.token_manager.token_ids == before
    assert len(model.trajectories) == 1


async def test_a_server_as_teacher_scores_every_path_as_transformers_does(server, backend, tokenizer):
    torch = pytest.importorskip("torch", reason="needs the extra `local`")
    transformers = pytest.importorskip("transformers", reason="needs the extra `local`")
    if not (Path(server.model_path) / "config.json").is_file():
        pytest.skip(f"the server's model {server.model_path!r} is not a folder on this machine")
    model = make_model(backend, tokenizer, stop_token_ids=early_stops(len(tokenizer)), max_new_tokens=60)
    agent = make_agent(model)
    await agent.invoke_async("What is 1 + 2?", limits={"turns": 2})
    first = list(agent.messages)
    for text in ("And 3 + 4?", "Why?"):
        agent.messages[:] = first
        await agent.invoke_async(text, limits={"turns": 1})
    samples = await score_with_teacher(samples_from_model(model), backend, tokenizer=tokenizer, top_k=3)
    assert len(samples) == 2
    reference = transformers.AutoModelForCausalLM.from_pretrained(server.model_path, dtype=torch.float32)
    for sample in samples:
        assert sample.teacher_logprobs is not None and sample.teacher_top_logprobs is not None
        ids, start = torch.tensor([sample.token_ids.tolist()]), sample.prompt_length
        with torch.inference_mode():
            rows = torch.log_softmax(reference(ids).logits[0, start - 1 : -1].double(), dim=-1)
        own = rows.gather(1, ids[0, start:, None])[:, 0]
        np.testing.assert_allclose(sample.teacher_logprobs[start:], own.numpy(), atol=1e-3)
        np.testing.assert_allclose(sample.teacher_top_logprobs[start:], rows.topk(3).values.numpy(), atol=1e-3)
        assert np.isnan(sample.teacher_logprobs[:start]).all()
