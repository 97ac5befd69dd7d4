"""The fate of a sample, as the real SDK shows it: used, or thrown away.

The default samples hold every used token exactly once, and no token of an answer that nobody used.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from provider_support import call, completion, make, make_agent, tokenizer
from strands import Agent
from strands.hooks import AfterModelCallEvent, MessageAddedEvent
from strands.interventions import Guide, InterventionHandler, Proceed
from strands.middleware import InvokeModelStage
from strands.multiagent import GraphBuilder
from strands.types.events import ModelStopReason
from strands.types.exceptions import EventLoopException

from strands_env.training import samples_from_model
from strands_sglang.model import SGLangModel


def used(model: SGLangModel) -> list[str]:
    """The texts that the default samples train, each turn once."""
    trained: list[tuple[int, ...]] = []
    for trajectory in model.trajectories:
        if trajectory.is_discarded:
            continue
        for turn, is_trained in zip(trajectory.turns, trajectory.trained, strict=True):
            if is_trained:
                trained.append(tuple(turn.completion.output_ids))
    samples = samples_from_model(model)
    assert sum(sample.trained_tokens for sample in samples) == sum(map(len, trained))
    return sorted(tokenizer().decode(list(ids)).removesuffix("<|im_end|>") for ids in trained)


# ---- used ---------------------------------------------------------------


async def test_forty_agents_with_equal_answers_extend_their_own() -> None:
    texts = [completion("yes"), completion("yes", split=True), completion("no"), completion("no", split=True)]
    count = iter(range(1000))
    model, _ = make([lambda *_: texts[next(count) % 4]], cycle=True)
    agents = [make_agent(model, name=f"judge {i}") for i in range(40)]
    for question in ("Is it?", "Sure?"):
        await asyncio.gather(*(agent.invoke_async(question) for agent in agents))
    turns = model.forest.turns
    assert [turn.parent is None for turn in turns] == [True] * 40 + [False] * 40
    assert all(turn.parent.agent_id == turn.agent_id for turn in turns if turn.parent is not None)
    assert all(len({turn.agent for turn in trajectory.turns}) == 1 for trajectory in model.trajectories)
    assert len(used(model)) == 80


async def test_agents_that_share_a_dictionary_know_their_own_retries() -> None:
    retried: set[str] = set()

    async def retry_once(event: AfterModelCallEvent) -> None:
        await asyncio.sleep(0.01)
        if event.agent.name not in retried:
            retried.add(event.agent.name)
            event.retry = True

    answers = iter(["bad 1", "bad 2", "good 1", "good 2"])

    async def answer(*_: Any) -> Any:
        await asyncio.sleep(0.01)
        return completion(next(answers))

    model, _ = make([answer], cycle=True)
    builder = GraphBuilder()
    for i in range(2):
        builder.add_node(make_agent(model, name=f"n{i}", agent_id=f"n{i}", hooks=[retry_once]), f"n{i}")
        builder.set_entry_point(f"n{i}")
    builder.set_max_node_executions(8)
    await builder.build().invoke_async("task")
    assert used(model) == ["good 1", "good 2"]


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("goes_on", [False, True])
async def test_of_two_samples_of_a_middleware_the_one_it_keeps_is_used(keep: int, goes_on: bool) -> None:
    async def sample_twice(context: Any, next_fn: Any) -> AsyncIterator[Any]:
        stops = []
        for _ in range(2):
            async for event in next_fn(context):
                if isinstance(event, ModelStopReason):
                    stops.append(event)
        yield stops[keep]

    model, _ = make(["first", "second", "more", "rest"])
    agent = make_agent(model)
    agent.add_middleware(InvokeModelStage, sample_twice)
    await agent.invoke_async("q")
    kept = ["first", "second"][keep]
    assert used(model) == [kept]
    assert kept in tokenizer().decode(model.rollout.token_ids)
    if goes_on:
        await agent.invoke_async("and?")
        assert used(model) == sorted([kept, ["more", "rest"][keep]])


async def test_an_answer_that_a_hook_edits_stays_used() -> None:
    def edit(event: AfterModelCallEvent) -> None:
        event.stop_response.message["content"][0]["text"] = "[redacted]"

    model, _ = make(["secret", "more"])
    agent = make_agent(model, hooks=[edit])
    await agent.invoke_async("q")
    assert used(model) == ["secret"]
    await agent.invoke_async("and?")
    assert used(model) == ["more", "secret"]


async def test_an_answer_stays_used_though_another_hook_fails_on_its_message() -> None:
    def fail(event: MessageAddedEvent) -> None:
        if event.message["role"] == "assistant":
            raise RuntimeError("broken hook")

    model, _ = make(["answer"])
    with pytest.raises(EventLoopException):
        await make_agent(model, hooks=[fail]).invoke_async("q")
    assert used(model) == ["answer"]


# ---- thrown away --------------------------------------------------------


async def test_an_answer_cancelled_from_a_callback_is_thrown_away() -> None:
    agents: list[Agent] = []

    def cancel(**event: Any) -> None:
        if event.get("data") == "second":
            agents[0].cancel()

    model, _ = make([call(1, 2), "second", "third"])
    agents.append(make_agent(model, callback_handler=cancel))
    result = await agents[0].invoke_async("q")
    assert result.stop_reason == "cancelled"
    assert used(model) == [call(1, 2)]
    assert model.forest.current is model.forest.turns[0]
    await agents[0].invoke_async("again")
    assert used(model) == sorted([call(1, 2), "third"])


async def test_a_closed_stream_throws_the_answer_away_unless_it_was_read_to_the_end() -> None:
    model, _ = make(["answer"])
    events = make_agent(model).stream_async("q")
    async for event in events:
        if "data" in event:
            break
    await events.aclose()
    assert used(model) == []
    model, _ = make(["a", "b"])
    messages: Any = [{"role": "user", "content": [{"text": "q"}]}]
    stream = model.stream(messages)
    assert await anext(stream)
    await stream.aclose()
    assert used(model) == []
    assert [event async for event in model.stream(messages)]
    assert used(model) == ["b"]


async def test_a_retry_whose_repeat_fails_leaves_nothing_used() -> None:
    def retry(event: AfterModelCallEvent) -> None:
        event.retry = event.exception is None

    model, _ = make(["bad", RuntimeError("server is gone")])
    with pytest.raises(RuntimeError):
        await make_agent(model, hooks=[retry]).invoke_async("q")
    assert used(model) == []
    assert [t.is_discarded for t in model.trajectories] == [True]


async def test_an_answer_that_an_intervention_rejects_is_thrown_away() -> None:
    class Reject(InterventionHandler):
        name = "reject"

        def after_model_call(self, event: AfterModelCallEvent) -> Any:
            text = event.stop_response.message["content"][0]["text"]
            return Guide(feedback="Be polite.") if text == "rude" else Proceed()

    model, _ = make(["rude", "polite"])
    await make_agent(model, interventions=[Reject()]).invoke_async("q")
    assert used(model) == ["polite"]
    assert [t.is_discarded for t in model.trajectories] == [False, True]


async def test_an_answer_is_thrown_away_when_a_hook_fails_before_it_is_kept() -> None:
    def fail(_: AfterModelCallEvent) -> None:
        raise RuntimeError("broken hook")

    model, _ = make(["answer"])
    with pytest.raises(RuntimeError):
        await make_agent(model, hooks=[fail]).invoke_async("q")
    assert used(model) == []


@pytest.mark.parametrize("trim", [False, True])
async def test_a_rejected_answer_that_reads_like_an_earlier_one_is_thrown_away(trim: bool) -> None:
    rejects: list[bool] = []

    def fail(event: AfterModelCallEvent) -> None:
        if rejects:
            if trim:
                del event.agent.messages[1:]
            raise RuntimeError("broken hook")

    model, _ = make(["same", completion("same", split=True)])
    history: Any = [{"role": role, "content": [{"text": "same"}]} for role in ("user", "assistant")]
    agent = make_agent(model, hooks=[fail], messages=history)
    await agent.invoke_async("q")
    kept = used(model)
    rejects.append(True)
    with pytest.raises(RuntimeError):
        await agent.invoke_async("and?")
    assert used(model) == kept == ["same"]
    assert sum(sample.trained_tokens for sample in samples_from_model(model)) == len(completion("same").ids or ())


async def test_a_signal_that_is_set_as_the_answer_arrives_leaves_no_trace() -> None:
    signal = threading.Event()

    def answer(*_: Any) -> Any:
        signal.set()
        return completion("late")

    model, _ = make([answer])
    messages: Any = [{"role": "user", "content": [{"text": "q"}]}]
    assert [event async for event in model.stream(messages, cancel_signal=signal)] == []
    assert model.forest.turns == ()
