"""`ToolLimiter`: counting, limits, and how a real agent loop ends."""

from __future__ import annotations

import pickle
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
from strands import Agent, tool
from strands.hooks import HookRegistry
from strands.hooks.events import BeforeToolCallEvent, MessageAddedEvent
from strands.models import Model
from strands.tools.executors import ConcurrentToolExecutor, SequentialToolExecutor
from strands.types.exceptions import EventLoopException

from strands_sglang.tool_limiter import (
    MaxToolCallsReachedError,
    MaxToolIterationsReachedError,
    MaxTotalTokensReachedError,
    ToolLimiter,
    ToolLimitReachedError,
)

AGENT: Any = SimpleNamespace(model=SimpleNamespace())


def added(message: Any, agent: Any = AGENT) -> MessageAddedEvent[Any]:
    return MessageAddedEvent(agent=agent, message=message)


def reply(*call_ids: str, **extra: Any) -> MessageAddedEvent[Any]:
    content = [{"toolUse": {"toolUseId": call_id, "name": "calc", "input": {}}} for call_id in call_ids]
    return added({"role": "assistant", "content": [{"text": "on it"}, *content], **extra})


RESULT = added({"role": "user", "content": [{"toolResult": {"toolUseId": "a"}}]})


def before(call_id: str) -> BeforeToolCallEvent[Any]:
    use: Any = {"toolUseId": call_id, "name": "calc", "input": {}}
    return BeforeToolCallEvent(agent=AGENT, selected_tool=None, tool_use=use, invocation_state={})


def send(limiter: ToolLimiter, event: Any) -> None:
    registry = HookRegistry()
    limiter.register_hooks(registry)
    registry.invoke_callbacks(event)


def iterate(limiter: ToolLimiter, *call_ids: str) -> None:
    send(limiter, reply(*call_ids))
    send(limiter, RESULT)


# --- counting ---


def test_parallel_calls_are_one_iteration() -> None:
    limiter = ToolLimiter()
    iterate(limiter, "a", "b", "c")
    assert (limiter.tool_iter_count, limiter.tool_call_count) == (1, 3)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": [{"text": "hello"}]},
        {"role": "assistant", "content": []},
        {"role": "assistant", "content": "hello"},
        {"role": "assistant"},
    ],
)
def test_replies_without_calls_are_not_counted(message: Any) -> None:
    limiter = ToolLimiter()
    send(limiter, added(message))
    assert (limiter.tool_iter_count, limiter.tool_call_count) == (0, 0)


@pytest.mark.parametrize("message", [{"role": "user", "content": [{"text": "hi"}]}, {"role": "user", "content": "hi"}])
def test_messages_without_results_are_not_checked(message: Any) -> None:
    limiter = ToolLimiter(max_tool_iters=0)
    limiter.tool_iter_count = 5
    send(limiter, added(message))


def test_reset_starts_anew() -> None:
    limiter = ToolLimiter(max_parallel_tool_calls=1)
    send(limiter, reply("a", "b", metadata={"usage": {"totalTokens": 9}}))
    send(limiter, before("b"))
    limiter.reset()
    counts = (limiter.tool_iter_count, limiter.tool_call_count, limiter.cancelled_tool_call_count, limiter.total_tokens)
    assert counts == (0, 0, 0, 0)
    late = before("b")
    send(limiter, late)
    assert late.cancel_tool is False


# --- limits ---


def test_iteration_limit_is_reached_at_the_result() -> None:
    limiter = ToolLimiter(max_tool_iters=2)
    iterate(limiter, "a")
    send(limiter, reply("b"))
    with pytest.raises(MaxToolIterationsReachedError) as raised:
        send(limiter, RESULT)
    assert (raised.value.limit, raised.value.count) == (2, 2)


def test_call_limit_counts_parallel_calls_one_by_one() -> None:
    limiter = ToolLimiter(max_tool_calls=3)
    iterate(limiter, "a", "b")
    send(limiter, reply("c", "d"))
    with pytest.raises(MaxToolCallsReachedError) as raised:
        send(limiter, RESULT)
    assert (raised.value.limit, raised.value.count) == (3, 4)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max_tool_iters": 0}, MaxToolIterationsReachedError),
        ({"max_tool_calls": 0}, MaxToolCallsReachedError),
        ({"max_total_tokens": 0}, MaxTotalTokensReachedError),
    ],
)
def test_zero_ends_at_the_first_result(options: dict[str, int], error: type[Exception]) -> None:
    with pytest.raises(error):
        iterate(ToolLimiter(**options), "a")


def test_iterations_are_checked_before_calls_and_calls_before_tokens() -> None:
    with pytest.raises(MaxToolIterationsReachedError):
        iterate(ToolLimiter(1, 1, max_total_tokens=0), "a")
    with pytest.raises(MaxToolCallsReachedError):
        iterate(ToolLimiter(2, 1, max_total_tokens=0), "a")


def test_total_tokens_come_from_the_reply() -> None:
    limiter = ToolLimiter(max_total_tokens=100)
    send(limiter, reply("a", metadata={"usage": {"inputTokens": 60, "outputTokens": 39, "totalTokens": 99}}))
    send(limiter, RESULT)
    send(limiter, reply("b", metadata={"usage": {"inputTokens": 90, "outputTokens": 10, "totalTokens": 100}}))
    with pytest.raises(MaxTotalTokensReachedError) as raised:
        send(limiter, RESULT)
    assert (raised.value.limit, raised.value.count) == (100, 100)


@pytest.mark.parametrize("limit", [-1, True, 1.5, "3"])
@pytest.mark.parametrize("name", ["max_tool_iters", "max_tool_calls", "max_parallel_tool_calls", "max_total_tokens"])
def test_other_limits_are_refused(name: str, limit: Any) -> None:
    with pytest.raises(ValueError, match=name):
        ToolLimiter(**{name: limit})


# --- parallel calls ---


def test_calls_run_by_their_order_in_the_reply_whatever_the_order_of_arrival() -> None:
    limiter = ToolLimiter(max_parallel_tool_calls=2)
    send(limiter, reply("a", "b", "c", "d"))
    events = {call_id: before(call_id) for call_id in "dcba"}
    for event in events.values():
        send(limiter, event)
    assert [events[call_id].cancel_tool is False for call_id in "abcd"] == [True, True, False, False]
    assert str(events["c"].cancel_tool).startswith("Max parallel tool calls (2) reached")
    assert limiter.cancelled_tool_call_count == 2


def test_a_cancelled_call_tried_again_is_counted_once() -> None:
    limiter = ToolLimiter(max_parallel_tool_calls=0)
    send(limiter, reply("a"))
    for _ in range(2):
        send(limiter, before("a"))
    assert limiter.cancelled_tool_call_count == 1


def test_a_retried_call_keeps_its_place() -> None:
    limiter = ToolLimiter(max_parallel_tool_calls=2)
    send(limiter, reply("a", "b"))
    events = [before(call_id) for call_id in ("a", "a", "a", "b")]
    for event in events:
        send(limiter, event)
    assert all(event.cancel_tool is False for event in events)


def test_every_reply_has_its_own_parallel_calls() -> None:
    limiter = ToolLimiter(max_parallel_tool_calls=1)
    for call_ids in (("a", "b"), ("c", "d")):
        send(limiter, reply(*call_ids))
        first, second = map(before, call_ids)
        send(limiter, second)
        send(limiter, first)
        assert first.cancel_tool is False
        assert second.cancel_tool
        send(limiter, RESULT)


def test_a_call_that_is_not_in_the_reply_takes_a_free_place() -> None:
    limiter = ToolLimiter(max_parallel_tool_calls=1)
    send(limiter, reply("a"))
    renamed, another = before("x"), before("y")
    send(limiter, renamed)
    send(limiter, another)
    assert renamed.cancel_tool is False
    assert another.cancel_tool


# --- errors ---


@pytest.mark.parametrize(
    "error_class", [MaxToolIterationsReachedError, MaxToolCallsReachedError, MaxTotalTokensReachedError]
)
def test_errors_pickle(error_class: type[ToolLimitReachedError]) -> None:
    error = pickle.loads(pickle.dumps(error_class(3, 4)))
    assert type(error) is error_class
    assert (error.limit, error.count) == (3, 4)
    assert str(error) == f"{error_class.WHAT}=3 is reached (4 counted)"


# --- a real agent loop ---


class ScriptedModel(Model):
    """Answers with `calls_per_reply` tool calls, for ever; reports usage."""

    def __init__(self, calls_per_reply: int = 1) -> None:
        self.calls_per_reply = calls_per_reply
        self.replies = 0

    def update_config(self, **model_config: Any) -> None: ...

    def get_config(self) -> Any:
        return {}

    def structured_output(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        self.replies += 1
        yield {"messageStart": {"role": "assistant"}}
        for index in range(self.calls_per_reply):
            use = {"toolUseId": f"r{self.replies}c{index}", "name": "note"}
            yield {"contentBlockStart": {"start": {"toolUse": use}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": f'{{"number": {index}}}'}}}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use"}}
        usage = {"inputTokens": 10 * self.replies, "outputTokens": 5, "totalTokens": 10 * self.replies + 5}
        yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 1}}}


def make_agent(model: Model, limiter: ToolLimiter, executor: Any, ran: list[int]) -> Agent:
    @tool
    async def note(number: int) -> str:
        """Note a number.

        Args:
            number: The number.
        """
        ran.append(number)
        return "noted"

    return Agent(
        model=model,
        tools=[note],
        hooks=[limiter],
        tool_executor=executor,
        callback_handler=None,
        context_manager=False,
    )


EXECUTORS = pytest.mark.parametrize("executor", [ConcurrentToolExecutor(), SequentialToolExecutor()])


@EXECUTORS
@pytest.mark.parametrize(
    ("options", "error_class", "replies"),
    [
        ({"max_tool_iters": 1}, MaxToolIterationsReachedError, 1),
        ({"max_tool_iters": 3}, MaxToolIterationsReachedError, 3),
        ({"max_tool_calls": 5}, MaxToolCallsReachedError, 2),
        ({"max_total_tokens": 35}, MaxTotalTokensReachedError, 3),
    ],
)
async def test_the_loop_ends_at_a_complete_iteration(executor, options, error_class, replies):
    model, limiter, ran = ScriptedModel(calls_per_reply=3), ToolLimiter(**options), []
    agent = make_agent(model, limiter, executor, ran)
    with pytest.raises(EventLoopException) as raised:
        await agent.invoke_async("go")
    assert type(raised.value.__cause__) is error_class
    assert type(raised.value.original_exception) is error_class
    assert model.replies == replies
    assert [message["role"] for message in agent.messages] == ["user", *["assistant", "user"] * replies]
    calls = [block["toolUse"]["toolUseId"] for block in agent.messages[-2]["content"]]
    results = [block["toolResult"]["toolUseId"] for block in agent.messages[-1]["content"]]
    assert calls == results
    assert len(ran) == 3 * replies


@EXECUTORS
async def test_excess_parallel_calls_are_answered_and_the_loop_goes_on(executor: Any) -> None:
    model, ran = ScriptedModel(calls_per_reply=4), []
    limiter = ToolLimiter(max_tool_iters=2, max_parallel_tool_calls=2)
    agent = make_agent(model, limiter, executor, ran)
    with pytest.raises(EventLoopException):
        await agent.invoke_async("go")
    assert sorted(ran) == [0, 0, 1, 1]
    assert limiter.cancelled_tool_call_count == 4
    results = [block["toolResult"] for block in agent.messages[-1]["content"]]
    assert [result["status"] for result in results] == ["success", "success", "error", "error"]
    assert results[2]["content"][0]["text"].startswith("Max parallel tool calls (2) reached")


async def test_counts_add_up_over_invocations_until_reset() -> None:
    model, limiter = ScriptedModel(), ToolLimiter(max_tool_iters=2)
    agent = make_agent(model, limiter, SequentialToolExecutor(), [])
    for replies in (2, 3):
        with pytest.raises(EventLoopException):
            await agent.invoke_async("go")
        assert model.replies == replies
    limiter.reset()
    with pytest.raises(EventLoopException):
        await agent.invoke_async("go")
    assert model.replies == 5
