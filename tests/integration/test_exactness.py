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
from rollout_support import make_model

from strands_env.training import samples_from_model, score_with_teacher
from strands_sglang import SGLangModel, Trajectory
from strands_sglang.backends import BackendWrapper, GenerateAnswer, GenerateRequest
from strands_sglang.trajectory import FinishType
from tests.integration.servers import CallEndedError, Server, meets_a_call


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


def short_turns(tokenizer: Any, **sampling: Any) -> dict[str, Any]:
    """A quarter of the vocabulary as stop tokens: a random model then ends its turns after a few tokens."""
    return {"stop_token_ids": list(range(0, len(tokenizer), 4)), "max_new_tokens": 200, **sampling}


async def rollout(client: Any, tokenizer: Any, turns: int = 4, **sampling: Any) -> SGLangModel:
    model = make_model(client, tokenizer, sampling_params=short_turns(tokenizer, **sampling))
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


def reference_logprobs(server: Server, ids: list[int], temperature: float = 1.0) -> Any:
    """The log-probabilities of transformers behind each id, a row of the vocabulary each."""
    torch = pytest.importorskip("torch", reason="needs the extra 'local'")
    transformers = pytest.importorskip("transformers", reason="needs the extra 'local'")
    if not (Path(server.model_path) / "config.json").is_file():
        pytest.skip(f"the server's model {server.model_path!r} is not a folder on this machine")
    model = transformers.AutoModelForCausalLM.from_pretrained(server.model_path, dtype=torch.float32)
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([ids])).logits[0, :-1].double() / temperature, dim=-1)


async def test_whole_trajectories_scored_in_one_call_give_the_logprobs_of_many_rollouts_at_once(
    server, backend, tokenizer
):
    models = await asyncio.gather(*(rollout(backend, tokenizer) for _ in range(8)))
    for model in models:
        (trajectory,) = model.trajectories
        assert len(trajectory.turns) == 4
        assert_scored_alike(trajectory, await server.score(trajectory.token_ids))


@pytest.mark.parametrize("temperature", [0.7, 1.6])
async def test_logprobs_are_those_of_the_temperature_sampled_at(server, backend, tokenizer, temperature):
    """Computed here: servers score prompts at temperature 1."""
    model = await rollout(backend, tokenizer, temperature=temperature)
    (trajectory,) = model.trajectories
    ids = trajectory.token_ids
    rows = reference_logprobs(server, ids, temperature)
    assert_scored_alike(trajectory, [None, *(float(row[token]) for row, token in zip(rows, ids[1:], strict=True))])


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
    model = make_model(backend, tokenizer, sampling_params=short_turns(tokenizer), return_prompt_logprobs=True)
    await make_agent(model).invoke_async("What is 1 + 2?", limits={"turns": 3})
    (trajectory,) = model.trajectories
    recorded = trajectory.logprobs
    scored = await server.score(trajectory.token_ids)
    assert recorded[0] is None
    assert all(abs(float(a) - float(b)) < 1e-4 for a, b in zip(recorded[1:], scored[1:], strict=True))  # type: ignore[arg-type]


async def test_a_trimmed_history_starts_another_exact_path(server: Server, backend: Any, tokenizer: Any) -> None:
    model = make_model(backend, tokenizer, sampling_params=short_turns(tokenizer))
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
    model = make_model(named, tokenizer, sampling_params={"max_new_tokens": 3000, "ignore_eos": True})
    events = await in_flight(server, stream(model), lambda: server.abort(named.rids[0]))
    (trajectory,) = model.trajectories
    completion = trajectory.turns[0].completion
    if len(named.rids) == 1:
        raise CallEndedError
    assert len(named.rids) == len(completion.request_ids) == 2
    assert len(completion.output_ids) == 3000
    assert completion.finish.type is FinishType.LENGTH
    assert any(event.get("messageStop", {}).get("stopReason") == "max_tokens" for event in events)
    spans = model.token_manager.weight_versions
    assert (spans[0].start, spans[-1].end) == (len(trajectory.token_ids) - 3000, len(trajectory.token_ids))
    assert_scored_alike(trajectory, await server.score(trajectory.token_ids))


@meets_a_call
async def test_a_surfaced_abort_ends_the_loop_with_the_partial_turn_marked(server, backend, tokenizer):
    named = NamedRequests(backend)
    sampling = {"max_new_tokens": 3000, "ignore_eos": True}
    model = make_model(named, tokenizer, sampling_params=sampling, abort_policy="surface")
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
    await server.idle()
    assert model.token_manager.token_ids == before
    assert len(model.trajectories) == 1


async def test_a_server_as_teacher_scores_every_path_as_transformers_does(server, backend, tokenizer):
    model = make_model(backend, tokenizer, sampling_params=short_turns(tokenizer, max_new_tokens=60))
    agent = make_agent(model)
    await agent.invoke_async("What is 1 + 2?", limits={"turns": 2})
    first = list(agent.messages)
    for text in ("And 3 + 4?", "Why?"):
        agent.messages[:] = first
        await agent.invoke_async(text, limits={"turns": 1})
    samples = await score_with_teacher(samples_from_model(model), backend, tokenizer=tokenizer, top_k=3)
    assert len(samples) == 2
    for sample in samples:
        assert sample.teacher_logprobs is not None and sample.teacher_top_logprobs is not None
        ids, start = sample.token_ids.tolist(), sample.prompt_length
        rows = reference_logprobs(server, ids)[start - 1 :].numpy()
        own = rows[range(len(rows)), ids[start:]]
        np.testing.assert_allclose(sample.teacher_logprobs[start:], own, atol=1e-3)
        np.testing.assert_allclose(sample.teacher_top_logprobs[start:], -np.sort(-rows)[:, :3], atol=1e-3)
        assert np.isnan(sample.teacher_logprobs[:start]).all()
