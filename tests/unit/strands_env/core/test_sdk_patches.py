"""With the patches the SDK does what it does without them: prompts, events, hooks, messages, traces, spans, errors."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import inspect
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import strands.event_loop.event_loop as event_loop
from pydantic import BaseModel
from strands import Agent, tool
from strands.agent import NullConversationManager, SlidingWindowConversationManager
from strands.hooks import (
    AfterInvocationEvent,
    AfterModelCallEvent,
    AfterToolCallEvent,
    AfterToolsEvent,
    BeforeInvocationEvent,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
    MessageAddedEvent,
)
from strands.middleware import InvokeModelStage
from strands.telemetry.metrics import Trace
from strands.telemetry.tracer import get_tracer
from strands.types.exceptions import ContextWindowOverflowException

from strands_env.core import sdk_patches
from strands_env.core.sdk_patches import PATCHES, inside_a_step
from strands_env.testing import ScriptedModel, call, reply
from strands_sglang.fast_paths import VARIABLE, FastPath

tracing = pytest.importorskip("opentelemetry.sdk.trace")
exporting = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")

NOTE = call("note", text="a")
TALK: list[Any] = [call("note", text="a"), call("no such tool"), call("note", text="b"), call("note"), "done", "done"]
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


@tool
async def late() -> str:
    """Come later."""
    return "late"


class Recorder(ScriptedModel):
    """Keeps a copy of what every call is given, and then spoils what it was given."""

    given: list[Any]

    async def stream(
        self, messages: Any, tool_specs: Any = None, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        self.given.append(copy.deepcopy((messages, tool_specs)))
        async for event in super().stream(messages, tool_specs, *args, **kwargs):
            yield event
        messages[0]["content"].append({"text": "spoilt"})
        messages[-1]["role"] = "spoilt"
        if tool_specs:
            tool_specs[0]["inputSchema"]["json"]["spoilt"] = True


class Reader(Recorder):
    """Keeps a copy of what every call is given, and changes nothing."""

    async def stream(self, messages: Any, tool_specs: Any = None, *args: Any, **kwargs: Any) -> Any:
        self.given.append(copy.deepcopy((messages, tool_specs)))
        async for event in ScriptedModel.stream(self, messages, tool_specs, *args, **kwargs):
            yield event

    stream.only_reads_messages = True  # type: ignore[attr-defined]


# ---- what happens in a run ------------------------------------------------------------------------------------------

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


def each_time(kind: Any, action: Callable[[Any], Any]) -> Setup:
    return lambda agent: agent.add_hook(action, kind)


def sets(name: str, value: Any) -> Callable[[Any], None]:
    return lambda event: setattr(event, name, value)


def fail(event: Any) -> None:
    raise ValueError("no")


def edit(event: Any) -> None:
    event.agent.messages[0]["content"].append({"text": "!"})


def replace(event: Any) -> None:
    event.agent.messages = list(event.agent.messages[-3:])


def shorten(event: Any) -> None:
    event.result["content"][0]["text"] = "short"


def rename(event: Any) -> None:
    event.tool_use["input"]["text"] = "other"


def mark(event: Any) -> None:
    event.message["content"].append({"text": "seen"})


def spoil_a_copy(event: Any) -> None:
    taken = copy.deepcopy(event.agent.messages)
    again = copy.deepcopy(taken)
    taken[0]["role"], taken[-1]["content"][:] = "spoilt", []
    assert again == event.agent.messages


def add_a_tool(event: Any) -> None:
    event.agent.tool_registry.process_tools([late])


def has_middleware(agent: Agent) -> None:
    async def spoil(context: Any, following: Any) -> AsyncGenerator[Any, None]:
        context.messages[0]["content"][0]["text"] = "only for this call"
        context.messages.append({"role": "user", "content": [{"text": "and this"}]})
        context.tool_specs[0]["description"] = "only for this call"
        async for event in following(context):
            yield event

    agent.add_middleware(InvokeModelStage, spoil)


def drop_middleware(event: Any) -> None:
    event.agent._middleware_registry._handlers.clear()


def both(*setups: Setup) -> Setup:
    return lambda agent: [setup(agent) for setup in setups] and None


SCENARIOS: dict[str, tuple[list[Any], Setup]] = {
    "plain": ([NOTE, NOTE, reply("two", NOTE, NOTE), NOTE, "done"], nothing),
    "odd replies": ([reply(" ", NOTE), call("no such tool"), call("a b", text="c"), call("note"), " "], nothing),
    "one turn": (["done"], nothing),
    "model error": ([NOTE, NOTE, ConnectionError("gone")], nothing),
    "model error at once": ([ConnectionError("gone")], nothing),
    "cut": ([NOTE, NOTE, reply("abc", stop_reason="max_tokens")], nothing),
    "overflow": ([NOTE, NOTE, ContextWindowOverflowException("full"), NOTE, "done"], nothing),
    "hook before a call fails": ([NOTE, NOTE, NOTE, "done"], on_turn(3, BeforeModelCallEvent, fail)),
    "hook after tools fails": ([NOTE, NOTE, NOTE, "done"], on_turn(2, AfterToolsEvent, fail)),
    "message hook fails": ([NOTE, NOTE, NOTE, "done"], on_turn(4, MessageAddedEvent, fail)),
    "cancelled": ([NOTE, NOTE, NOTE, "done"], on_turn(3, BeforeModelCallEvent, lambda event: event.agent.cancel())),
    "cancelled after tools": (
        [NOTE, NOTE, NOTE, "done"],
        on_turn(2, AfterToolsEvent, lambda event: event.agent.cancel(after_current_tools=True)),
    ),
    "turn ended": ([NOTE, NOTE, NOTE, "done"], on_turn(2, AfterToolsEvent, sets("end_turn", "enough"))),
    "retried": ([NOTE, NOTE, "bad", "done"], on_turn(3, AfterModelCallEvent, sets("retry", True))),
    "resumed": (
        [NOTE, NOTE, "done", NOTE, NOTE, "done"],
        on_turn(1, AfterInvocationEvent, sets("resume", "again")),
    ),
    "limited": ([NOTE, NOTE, NOTE, "done"], lambda _: {"limits": {"turns": 2}}),
    "structured": (
        [NOTE, NOTE, "done", call("Verdict", good=True)],
        lambda _: {"structured_output_model": Verdict},
    ),
    "history edited": (TALK, each_time(BeforeModelCallEvent, edit)),
    "history replaced": (TALK, each_time(BeforeModelCallEvent, replace)),
    "copies spoilt": (TALK, each_time(BeforeModelCallEvent, spoil_a_copy)),
    "results edited": (TALK, each_time(AfterToolCallEvent, shorten)),
    "calls edited": (TALK, each_time(BeforeToolCallEvent, rename)),
    "messages edited": (TALK, each_time(MessageAddedEvent, mark)),
    "middleware": (TALK, has_middleware),
    "middleware comes": (TALK, on_turn(2, BeforeModelCallEvent, lambda event: has_middleware(event.agent))),
    "middleware goes": (TALK, both(has_middleware, on_turn(3, BeforeModelCallEvent, drop_middleware))),
    "tool comes": (TALK, on_turn(2, BeforeModelCallEvent, add_a_tool)),
}


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    exporter, provider = exporting.InMemorySpanExporter(), tracing.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(get_tracer(), "tracer", provider.get_tracer("test"))
    yield exporter


def tree(trace: Trace) -> Any:
    return (trace.name, trace.end_time is not None, trace.message is None, [tree(child) for child in trace.children])


async def outcome(kind: type[Recorder], manager: Any, script: list[Any], setup: Setup, spans: Any) -> dict[str, Any]:
    """Everything that can be seen of a run."""
    spans.clear()
    seen: list[Any] = []
    model = kind(script)
    model.given = []
    earlier = [{"role": "user", "content": [{"text": "hi"}]}, {"role": "assistant", "content": []}]
    settings: dict[str, Any] = {"callback_handler": None, "retry_strategy": None, "conversation_manager": manager()}
    agent = Agent(model=model, tools=[note], messages=copy.deepcopy(earlier), **settings)
    for event_type in EVENTS:
        agent.add_hook(lambda event: seen.append(type(event).__name__), event_type)
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
    return _numbered(
        {
            "prompts": model.given,
            "events and hooks": seen,
            "error": error,
            "result": result and (result.stop_reason, result.message["content"], result.structured_output),
            "messages": [(message["role"], message["content"]) for message in agent.messages],
            "traces": [tree(trace) for trace in agent.event_loop_metrics.traces],
            "cycles": [len(each.cycles) for each in agent.event_loop_metrics.agent_invocations],
            "spans": [
                (
                    span.name,
                    span.parent and names[span.parent.span_id],
                    span.status.status_code,
                    [(e.name, _without_ids(e.attributes)) for e in span.events if e.name != "exception"],
                )
                for span in made
            ],
        }
    )


def _without_ids(attributes: Any) -> list[tuple[str, int]]:
    return [(name, len(str(value))) for name, value in (attributes or {}).items()]


def _numbered(value: Any) -> Any:
    """The value with call ids, which differ from run to run, numbered."""
    numbers: dict[str, int] = {}

    def numbered(item: Any) -> Any:
        if isinstance(item, dict):
            return {
                key: numbers.setdefault(inner, len(numbers)) if key == "toolUseId" else numbered(inner)
                for key, inner in item.items()
            }
        return [numbered(inner) for inner in item] if isinstance(item, list | tuple) else item

    return numbered(value)


@pytest.mark.parametrize(
    "manager",
    [NullConversationManager, lambda: SlidingWindowConversationManager(window_size=4, per_turn=True)],
    ids=["whole", "window"],
)
@pytest.mark.parametrize("kind", [Recorder, Reader])
@pytest.mark.parametrize("name", SCENARIOS)
async def test_each_patch_changes_nothing_that_can_be_seen(name, kind, manager, spans, monkeypatch):
    before = set(sdk_patches._waiting)  # loops of other tests that were suspended, not ended
    outcomes = {}
    for on in ("none", *(patch.path for patch in PATCHES if patch.path is not None), "all"):
        off = [] if on == "all" else [path for path in FastPath if path != on]
        monkeypatch.setenv(VARIABLE, ",".join(off))
        with inside_a_step():
            outcomes[on] = await outcome(kind, manager, *SCENARIOS[name], spans)
    plain = await outcome(kind, manager, *SCENARIOS[name], spans)
    for on, made in outcomes.items():
        assert made == plain, on
    assert set(sdk_patches._waiting) <= before


# ---- when a patch is applied ----------------------------------------------------------------------------------------


def test_the_sdk_has_the_code_that_the_patches_were_written_for() -> None:
    """If not, the new code has to be read; then the digest goes into the patch."""
    assert [sdk_patches._code_digest(patch) for patch in PATCHES] == [patch.digest for patch in PATCHES]


def applied() -> set[FastPath | None]:
    return {patch.path for patch in PATCHES for owner, name, made in patch.names if vars(owner)[name] is made}


def test_a_patch_is_applied_to_known_code_only_and_plain_mode_takes_all_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with inside_a_step():
        assert applied() == {patch.path for patch in PATCHES}

    async def recurse_event_loop(*args: Any) -> AsyncGenerator[Any, None]:
        yield "something else"

    known = sdk_patches._code_digest
    other = next(patch for patch in PATCHES if patch.path is FastPath.FLAT_LOOP)
    monkeypatch.setattr(sdk_patches, "_code_digest", lambda patch: "?" if patch is other else known(patch))
    with inside_a_step():
        assert applied() == {patch.path for patch in PATCHES} - {FastPath.FLAT_LOOP}
    monkeypatch.setenv(VARIABLE, "1")
    with inside_a_step():
        assert applied() == {None} and event_loop.copy is copy


# ---- what they save -------------------------------------------------------------------------------------------------


class Reading(ScriptedModel):
    """A model that only reads."""

    async def stream(self, *args: Any, **kwargs: Any) -> Any:
        async for event in super().stream(*args, **kwargs):
            yield event

    stream.only_reads_messages = True  # type: ignore[attr-defined]


class Overriding(Reading):
    """A model that may do anything, though it is made from one that only reads."""

    async def stream(self, *args: Any, **kwargs: Any) -> Any:
        async for event in super().stream(*args, **kwargs):
            yield event


@pytest.mark.parametrize(
    ("setup", "kind", "copies"),
    [(nothing, Reading, 0), (nothing, Overriding, 1), (nothing, ScriptedModel, 1), (has_middleware, Reading, 2)],
)
async def test_the_history_is_copied_where_somebody_may_change_it(setup: Setup, kind: Any, copies: int) -> None:
    copied: list[Any] = []

    class Text(str):
        def __deepcopy__(self, memo: Any) -> Text:
            copied.append(self)
            return self

    agent = Agent(model=kind(["done"]), tools=[note], callback_handler=None)
    agent.messages = [{"role": "user", "content": [{"text": "hi"}, {"text": Text("again")}]}]
    setup(agent)
    with inside_a_step():
        await agent.invoke_async("go")
    assert len(copied) == copies


async def depths_of_turns(*, inside: bool = True) -> list[int]:
    """Number of frames above the model in every turn."""
    depths: list[int] = []

    def answer(messages: Any) -> Any:
        depths.append(len(inspect.stack(0)))
        return NOTE if len(depths) < 5 else "done"

    agent = Agent(model=ScriptedModel(answer), tools=[note], callback_handler=None)
    with inside_a_step() if inside else contextlib.nullcontext():
        await agent.invoke_async("go")
    return depths


async def test_a_turn_is_as_deep_as_the_second_one() -> None:
    depths = await depths_of_turns()
    assert len(set(depths[1:])) == 1


async def test_agents_outside_a_step_keep_the_loop_of_the_sdk() -> None:
    with inside_a_step():
        pass
    depths = await depths_of_turns(inside=False)
    assert depths == sorted(set(depths))


async def test_agents_at_once_and_agents_as_tools_keep_their_loops_apart() -> None:
    script = [NOTE, NOTE, "inner", NOTE, NOTE, "inner"]
    inner = Agent(model=ScriptedModel(script), name="inner", tools=[note], callback_handler=None)
    ask = call("inner", input="?")
    model = ScriptedModel([NOTE, reply("both", NOTE, ask), NOTE, ask, "outer"])
    outer = Agent(model=model, tools=[note, inner.as_tool()], callback_handler=None)
    with inside_a_step():
        result = await outer.invoke_async("go")
    assert str(result) == "outer\n"
    assert model.call_count == 5
    assert str(outer.messages).count("'text': 'inner\\n'") == 2


async def test_a_loop_that_is_closed_half_way_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    # The SDK leaves its generators to be collected; what OpenTelemetry then logs would keep their frames alive.
    monkeypatch.setattr(logging.getLogger("opentelemetry.context"), "disabled", True)
    model = ScriptedModel([NOTE, NOTE, NOTE, "done"])
    agent = Agent(model=model, tools=[note], callback_handler=None)
    before = set(sdk_patches._waiting)
    with inside_a_step():
        async with contextlib.aclosing(agent.stream_async("go")) as events:
            async for _ in events:
                if model.call_count == 3:
                    break
        assert str(await agent.invoke_async("again")) == "done\n"
    gc.collect()
    for _ in range(100):  # generators that were left behind are closed by the event loop, from outside to inside
        await asyncio.sleep(0)
    assert set(sdk_patches._waiting) <= before


def test_messages_are_encoded_for_recording_spans_only() -> None:
    encoded: list[Any] = []

    class Content(list[Any]):
        def __iter__(self) -> Any:
            encoded.append(self)
            return super().__iter__()

    message: Any = {"role": "user", "content": Content([{"text": "hi"}])}
    events: list[str] = []
    with inside_a_step():
        for is_recording in (False, True):
            assert (events, encoded) == ([], [])
            span: Any = SimpleNamespace(
                is_recording=partial(bool, is_recording), add_event=lambda name, attributes=None: events.append(name)
            )
            get_tracer()._add_event_messages(span, [message])
    assert events and encoded
