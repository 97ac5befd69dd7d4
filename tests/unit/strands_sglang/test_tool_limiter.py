"""`ToolLimiter`: counting, limits, and how a real agent loop ends."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from strands import Agent, tool
from strands.hooks import HookRegistry
from strands.hooks.events import BeforeToolCallEvent, MessageAddedEvent
from strands.tools.executors import ConcurrentToolExecutor, SequentialToolExecutor
from strands.types.exceptions import EventLoopException

from strands_env.testing import ScriptedModel
from strands_env.testing import call as scripted_call
from strands_env.testing import reply as scripted_reply
from strands_sglang.tool_limiter import (
    MaxToolCallsReachedError,
    MaxToolIterationsReachedError,
    MaxTotalTokensReachedError,
    ToolLimiter,
    ToolLimitReachedError,
)

AGENT: Any = SimpleNamespace(model=SimpleNamespace())


def added(role: str, content: Any, **extra: Any) -> MessageAddedEvent[Any]:
    message: Any = {"role": role, "content": content, **extra}
    return MessageAddedEvent(agent=AGENT, message=message)


def reply(*call_ids: str, **extra: Any) -> MessageAddedEvent[Any]:
    content = [{"toolUse": {"toolUseId": call_id, "name": "calc", "input": {}}} for call_id in call_ids]
    return added("assistant", [{"text": "on it"}, *content], **extra)


RESULT = added("user", [{"toolResult": {"toolUseId": "a"}}])


def send(limiter: ToolLimiter, event: Any) -> None:
    registry = HookRegistry()
    limiter.register_hooks(registry)
    registry.invoke_callbacks(event)


def is_run(limiter: ToolLimiter, call_id: str) -> bool:
    """Whether the limiter lets a call run."""
    use: Any = {"toolUseId": call_id, "name": "calc", "input": {}}
    event = BeforeToolCallEvent(agent=AGENT, selected_tool=None, tool_use=use, invocation_state={})
    send(limiter, event)
    assert event.cancel_tool is False or str(event.cancel_tool).startswith("Max parallel tool calls")
    return event.cancel_tool is False


def test_replies_without_calls_are_not_counted_and_messages_without_results_not_checked() -> None:
    limiter = ToolLimiter(max_tool_iters=0)
    for content in ([{"text": "hello"}], [], "hello", None):
        send(limiter, added("assistant", content))
    assert (limiter.tool_iter_count, limiter.tool_call_count) == (0, 0)
    for content in ([{"text": "hi"}], "hi"):
        send(limiter, added("user", content))


def test_reset_starts_anew() -> None:
    limiter = ToolLimiter(max_parallel_tool_calls=1)
    send(limiter, reply("a", "b", metadata={"usage": {"totalTokens": 9}}))
    assert not is_run(limiter, "b") and limiter.total_tokens == 9
    limiter.reset()
    counts = (limiter.tool_iter_count, limiter.tool_call_count, limiter.cancelled_tool_call_count, limiter.total_tokens)
    assert counts == (0, 0, 0, 0)
    assert is_run(limiter, "b")


def test_iterations_are_checked_before_calls_and_calls_before_tokens() -> None:
    for most, error in ((1, MaxToolIterationsReachedError), (2, MaxToolCallsReachedError)):
        limiter = ToolLimiter(most, 1, max_total_tokens=0)
        send(limiter, reply("a"))
        with pytest.raises(error):
            send(limiter, RESULT)


@pytest.mark.parametrize("limit", [-1, True, 1.5, "3"])
@pytest.mark.parametrize("name", ["max_tool_iters", "max_tool_calls", "max_parallel_tool_calls", "max_total_tokens"])
def test_other_limits_are_refused(name: str, limit: Any) -> None:
    with pytest.raises(ValueError, match=name):
        ToolLimiter(**{name: limit})


# --- parallel calls ---


def test_calls_run_by_their_order_in_the_reply_whatever_the_order_of_arrival() -> None:
    limiter = ToolLimiter(max_parallel_tool_calls=2)
    send(limiter, reply("a", "b", "c", "d"))
    arrived = "dcaacab"  # some are tried again: they keep their places, and count once
    assert [is_run(limiter, call_id) for call_id in arrived] == [call_id in "ab" for call_id in arrived]
    assert limiter.cancelled_tool_call_count == 2
    send(limiter, reply("e", "f", "g"))  # places of its own
    assert [is_run(limiter, call_id) for call_id in "gfe"] == [False, True, True]


def test_a_call_that_is_not_in_the_reply_takes_a_free_place() -> None:
    limiter = ToolLimiter(max_parallel_tool_calls=1)
    send(limiter, reply("a"))
    assert [is_run(limiter, call_id) for call_id in "xy"] == [True, False]


# --- a real agent loop ---


def make_agent(limiter: ToolLimiter, executor: Any, calls: int = 1) -> tuple[Agent, ScriptedModel, list[int]]:
    """An agent whose model makes so many calls a reply, for ever; the model; and the calls that ran."""
    ran: list[int] = []

    @tool
    async def note(number: int) -> str:
        """Note a number."""
        ran.append(number)
        return "noted"

    made = scripted_reply("", *(scripted_call("note", number=number) for number in range(calls)))
    model = ScriptedModel(lambda messages: made)
    options: dict[str, Any] = {"tool_executor": executor, "callback_handler": None, "context_manager": False}
    return Agent(model=model, tools=[note], hooks=[limiter], **options), model, ran


EXECUTORS = pytest.mark.parametrize("executor", [ConcurrentToolExecutor(), SequentialToolExecutor()])


@EXECUTORS
@pytest.mark.parametrize(
    ("options", "error_class", "replies", "count"),
    [
        ({"max_tool_iters": 0}, MaxToolIterationsReachedError, 1, 1),
        ({"max_tool_iters": 1}, MaxToolIterationsReachedError, 1, 1),
        ({"max_tool_iters": 3}, MaxToolIterationsReachedError, 3, 3),
        ({"max_tool_calls": 0}, MaxToolCallsReachedError, 1, 3),
        ({"max_tool_calls": 5}, MaxToolCallsReachedError, 2, 6),
        ({"max_total_tokens": 0}, MaxTotalTokensReachedError, 1, 155),
        ({"max_total_tokens": 576}, MaxTotalTokensReachedError, 2, 576),
    ],
)
async def test_the_loop_ends_at_a_complete_iteration(executor, options, error_class, replies, count):
    limiter = ToolLimiter(**options)
    agent, model, ran = make_agent(limiter, executor, calls=3)
    with pytest.raises(EventLoopException) as raised:
        await agent.invoke_async("go")
    error = raised.value.__cause__
    assert type(error) is error_class and error is raised.value.original_exception
    ((name, limit),) = options.items()
    assert isinstance(error, ToolLimitReachedError) and (error.limit, error.count) == (limit, count)
    assert str(error) == f"{name}={limit} is reached ({count} counted)"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert model.call_count == replies
    assert [message["role"] for message in agent.messages] == ["user", *["assistant", "user"] * replies]
    calls = [block["toolUse"]["toolUseId"] for block in agent.messages[-2]["content"]]
    results = [block["toolResult"]["toolUseId"] for block in agent.messages[-1]["content"]]
    assert calls == results
    assert len(ran) == 3 * replies


@EXECUTORS
async def test_excess_parallel_calls_are_answered_and_the_loop_goes_on(executor: Any) -> None:
    limiter = ToolLimiter(max_tool_iters=2, max_parallel_tool_calls=2)
    agent, _, ran = make_agent(limiter, executor, calls=4)
    with pytest.raises(EventLoopException):
        await agent.invoke_async("go")
    assert sorted(ran) == [0, 0, 1, 1]
    assert limiter.cancelled_tool_call_count == 4
    results = [block["toolResult"] for block in agent.messages[-1]["content"]]
    assert [result["status"] for result in results] == ["success", "success", "error", "error"]
    assert results[2]["content"][0]["text"].startswith("Max parallel tool calls (2) reached")


async def test_counts_add_up_over_invocations_until_reset() -> None:
    limiter = ToolLimiter(max_tool_iters=2)
    agent, model, _ = make_agent(limiter, SequentialToolExecutor())
    for replies in (2, 3):
        with pytest.raises(EventLoopException):
            await agent.invoke_async("go")
        assert model.call_count == replies
    limiter.reset()
    with pytest.raises(EventLoopException):
        await agent.invoke_async("go")
    assert model.call_count == 5
