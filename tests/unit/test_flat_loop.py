"""Without its recursion the SDK's loop does what it does with it: same events, hooks, traces, spans and errors."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import strands.event_loop.event_loop as sdk
from pydantic import BaseModel
from strands import Agent, tool
from strands.agent import SlidingWindowConversationManager
from strands.hooks import (
    AfterInvocationEvent,
    AfterModelCallEvent,
    AfterToolsEvent,
    BeforeInvocationEvent,
    BeforeModelCallEvent,
    MessageAddedEvent,
)
from strands.telemetry.metrics import Trace
from strands.telemetry.tracer import get_tracer
from strands.types.exceptions import ContextWindowOverflowException

from strands_env.core import flat_loop
from strands_env.core.scope import EpisodeLimiter, LoopRecorder, StepScope
from strands_env.testing import ScriptedModel, call, reply

tracing = pytest.importorskip("opentelemetry.sdk.trace")
exporting = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")

NOTE = call("note", text="a")
EVENTS = (
    BeforeInvocationEvent,
    BeforeModelCallEvent,
    AfterModelCallEvent,
    AfterToolsEvent,
    MessageAddedEvent,
    AfterInvocationEvent,
)


class Verdict(BaseModel):
    """A verdict."""

    good: bool


@tool
async def note(text: str) -> str:
    """Note a text."""
    return f"noted {text}"


Setup = Callable[[Agent], dict[str, Any] | None]


def nothing(agent: Agent) -> None:
    """No further hooks."""


def on_turn(number: int, kind: Any, action: Callable[[Any], Any]) -> Setup:
    def setup(agent: Agent) -> None:
        seen: list[int] = []

        def callback(event: Any) -> None:
            seen.append(1)
            if len(seen) == number:
                action(event)

        agent.add_hook(callback, kind)

    return setup


def fail(event: Any) -> None:
    raise ValueError("no")


def cancel_now(event: Any) -> None:
    event.agent.cancel()


def cancel_after_tools(event: Any) -> None:
    event.agent.cancel(after_current_tools=True)


def end_turn(event: Any) -> None:
    event.end_turn = "enough"


def retry(event: Any) -> None:
    event.retry = True


def resume(event: Any) -> None:
    event.resume = "and again"


def limited(agent: Agent) -> dict[str, Any]:
    return {"limits": {"turns": 2}}


def structured(agent: Agent) -> dict[str, Any]:
    return {"structured_output_model": Verdict}


SCENARIOS: dict[str, tuple[list[Any], Setup]] = {
    "plain": ([NOTE, NOTE, reply("two", NOTE, NOTE), NOTE, "done"], nothing),
    "one turn": (["done"], nothing),
    "model error": ([NOTE, NOTE, ConnectionError("gone")], nothing),
    "model error at once": ([ConnectionError("gone")], nothing),
    "cut": ([NOTE, NOTE, reply("abc", stop_reason="max_tokens")], nothing),
    "overflow": ([NOTE, NOTE, ContextWindowOverflowException("full"), NOTE, "done"], nothing),
    "hook before a call fails": ([NOTE, NOTE, NOTE, "done"], on_turn(3, BeforeModelCallEvent, fail)),
    "hook after tools fails": ([NOTE, NOTE, NOTE, "done"], on_turn(2, AfterToolsEvent, fail)),
    "message hook fails": ([NOTE, NOTE, NOTE, "done"], on_turn(4, MessageAddedEvent, fail)),
    "cancelled": ([NOTE, NOTE, NOTE, "done"], on_turn(3, BeforeModelCallEvent, cancel_now)),
    "cancelled after tools": ([NOTE, NOTE, NOTE, "done"], on_turn(2, AfterToolsEvent, cancel_after_tools)),
    "turn ended": ([NOTE, NOTE, NOTE, "done"], on_turn(2, AfterToolsEvent, end_turn)),
    "retried": ([NOTE, NOTE, "bad", "done"], on_turn(3, AfterModelCallEvent, retry)),
    "resumed": ([NOTE, NOTE, "done", NOTE, NOTE, "done"], on_turn(1, AfterInvocationEvent, resume)),
    "limited": ([NOTE, NOTE, NOTE, "done"], limited),
    "structured": ([NOTE, NOTE, "done", call("Verdict", good=True)], structured),
}


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    exporter, provider = exporting.InMemorySpanExporter(), tracing.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(get_tracer(), "tracer", provider.get_tracer("test"))
    yield exporter


def in_a_step() -> Any:
    return StepScope(recorder=LoopRecorder(), limiter=EpisodeLimiter()).active()


def tree(trace: Trace) -> Any:
    return (trace.name, trace.end_time is not None, trace.message is None, [tree(child) for child in trace.children])


async def outcome(script: list[Any], setup: Setup, spans: Any) -> dict[str, Any]:
    """Everything that can be seen of a run."""
    spans.clear()
    seen: list[Any] = []
    agent = Agent(
        model=ScriptedModel(script),
        tools=[note],
        callback_handler=None,
        conversation_manager=SlidingWindowConversationManager(window_size=3),
        retry_strategy=None,
    )
    for kind in EVENTS:
        agent.add_hook(lambda event: seen.append(type(event).__name__), kind)
    options = setup(agent) or {}
    error = result = None
    try:
        async for event in agent.stream_async("go", **options):
            seen.append(sorted(event))
            result = event.get("result")
    except Exception as raised:
        error = [(type(link), str(link)) for link in (raised, raised.__cause__)]
    made = spans.get_finished_spans()
    names = {span.context.span_id: span.name for span in made}
    return {
        "events and hooks": seen,
        "error": error,
        "result": result and (result.stop_reason, result.message["content"], result.structured_output),
        "messages": [(message["role"], message["content"]) for message in agent.messages],
        "traces": [tree(trace) for trace in agent.event_loop_metrics.traces],
        "cycles": [len(each.cycles) for each in agent.event_loop_metrics.agent_invocations],
        "spans": [(span.name, span.parent and names[span.parent.span_id], span.status.status_code) for span in made],
    }


@pytest.mark.parametrize("name", SCENARIOS)
async def test_the_flat_loop_does_what_the_recursive_one_does(
    name: str, spans: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sdk, "recurse_event_loop", flat_loop._recursive)
    before = set(flat_loop._waiting)  # loops of other tests that were suspended, not ended
    with in_a_step():
        expected = await outcome(*SCENARIOS[name], spans)
        flat_loop.flatten_the_loop()
        assert await outcome(*SCENARIOS[name], spans) == expected
    assert set(flat_loop._waiting) <= before


async def test_a_turn_is_as_deep_as_the_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    depths = await depths_of_turns(monkeypatch)
    assert len(set(depths[1:])) == 1


async def test_agents_outside_a_step_keep_the_loop_of_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    depths = await depths_of_turns(monkeypatch, inside=False)
    assert depths == sorted(set(depths))


async def test_the_loop_of_the_sdk_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRANDS_ENV_FLAT_LOOP", "0")
    depths = await depths_of_turns(monkeypatch)
    assert depths == sorted(set(depths))


async def depths_of_turns(monkeypatch: pytest.MonkeyPatch, *, inside: bool = True) -> list[int]:
    """Number of frames above the model in every turn."""
    monkeypatch.setattr(sdk, "recurse_event_loop", flat_loop._recursive)
    flat_loop.flatten_the_loop()
    depths: list[int] = []

    def answer(messages: Any) -> Any:
        depths.append(len(inspect.stack(0)))
        return NOTE if len(depths) < 5 else "done"

    agent = Agent(model=ScriptedModel(answer), tools=[note], callback_handler=None)
    with in_a_step() if inside else contextlib.nullcontext():
        await agent.invoke_async("go")
    return depths


async def test_agents_at_once_and_agents_as_tools_keep_their_loops_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdk, "recurse_event_loop", flat_loop._recursive)
    flat_loop.flatten_the_loop()
    inner = Agent(
        model=ScriptedModel([NOTE, NOTE, "inner", NOTE, NOTE, "inner"]),
        name="inner",
        tools=[note],
        callback_handler=None,
    )
    ask = call("inner", input="?")
    model = ScriptedModel([NOTE, reply("both", NOTE, ask), NOTE, ask, "outer"])
    outer = Agent(model=model, tools=[note, inner.as_tool()], callback_handler=None)
    with in_a_step():
        result = await outer.invoke_async("go")
    assert str(result) == "outer\n"
    assert model.call_count == 5
    assert str(outer.messages).count("'text': 'inner\\n'") == 2


async def test_a_loop_that_is_closed_half_way_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdk, "recurse_event_loop", flat_loop._recursive)
    flat_loop.flatten_the_loop()
    # The SDK leaves its generators to be collected; what OpenTelemetry then logs would keep their frames alive.
    monkeypatch.setattr(logging.getLogger("opentelemetry.context"), "disabled", True)
    model = ScriptedModel([NOTE, NOTE, NOTE, "done"])
    agent = Agent(model=model, tools=[note], callback_handler=None)
    before = set(flat_loop._waiting)
    with in_a_step():
        async with contextlib.aclosing(agent.stream_async("go")) as events:
            async for _ in events:
                if model.call_count == 3:
                    break
        assert str(await agent.invoke_async("again")) == "done\n"
    gc.collect()
    for _ in range(100):  # generators that were left behind are closed by the event loop, from outside to inside
        await asyncio.sleep(0)
    assert set(flat_loop._waiting) <= before
