"""The agent behind a call, the fate of its answer, and the results given to malformed tool calls.

The SDK does not tell a model provider which agent calls. `invocation_state["agent"]` may be another agent (parallel
nodes of a graph share one dictionary), but every agent has one cancel signal for life and hands it on with each call.
So the signal is the agent's identity, and the agent found in the dictionary is believed where its model and its signal
are those of the call; it is remembered from then on.

Hooks on a known agent report facts to the forest: which reply was added to its messages, and which were not when its
invocation ended. They also answer malformed calls. The SDK turns arguments that are not valid JSON into `{}` and runs
the tool with them; instead the call is cancelled before it runs, with the parser's words as the tool result. Where the
agent is not known, a malformed call gets a name that the SDK refuses by itself and that carries the parser's words too.
Last, they replace tool results that no chat template can show, where the option `refused_results` asks for it.

What a caller is to others, its role, is where its run began: in a tool of an agent, in the loop of one, or in neither.
A context variable knows the place, as it follows into tasks and threads. Hooks and a middleware on known agents set it.

An agent is known from its first own call on, and hooks of it may ask others before. So a place is entered, too, where
the SDK asks the model for its `model_id`, for its traces: when an invocation begins, before the first hook, and when a
call begins. Its agent's own call claims it. It is a value in OpenTelemetry's context, which the SDK sets back when the
invocation ends, however it ends.

A call by nobody known and outside of all places is a main one only as long as no agent calls the model. Once one does,
such calls are its machinery: a summary that the program asks for between two invocations, say.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import weakref
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from opentelemetry import context as opentelemetry
from strands.hooks import (
    AfterInvocationEvent,
    AfterToolCallEvent,
    BeforeInvocationEvent,
    BeforeToolCallEvent,
    HookOrder,
    MessageAddedEvent,
)
from strands.middleware import ExecuteToolStage
from strands.types.tools import ToolResult

from .conversation.messages import read_message, report_refused, to_strands
from .conversation.model_options import RefusedResults
from .exceptions import MessageConversionError
from .template import ControlTokens
from .trajectory import CallOrigin, Role, TrajectoryForest, Turn

_agents = itertools.count()
"""Numbers of agents, of all models: one may work for an agent with another model."""


def _new_id() -> str:
    return f"agent-{next(_agents)}"


@dataclass(slots=True, kw_only=True, eq=False)
class _Place:
    """The loop of an agent, or a tool that it runs. Tools are not held: contexts outlive what runs in them.

    Attributes:
        outer: The place in which its run began.
        agent_id: Identity of the agent; for a loop of nobody known yet, made when something asks for it.
        in_tool: In a tool, not in the loop.
        in_agent_tool: The tool is an agent, by the SDK's word.
        is_claimed: The agent is known.
        is_invocation: The SDK began an invocation, or a call, there.
        is_over: It has ended.
        task: The task that it was entered in, weakly.
        begun: OpenTelemetry's context with which it began, weakly; None for what hooks entered.
        event: Its only event, weakly: a message that is added outside of its agent's loop.
    """

    outer: _Place | None
    agent_id: str | None = None
    in_tool: bool = False
    in_agent_tool: bool = False
    is_claimed: bool = True
    is_invocation: bool = False
    is_over: bool = False
    task: Any = None
    begun: weakref.ref[opentelemetry.Context] | None = None
    event: weakref.ref[MessageAddedEvent] | None = None

    @property
    def owner(self) -> str:
        """Identity of the agent."""
        self.agent_id = self.agent_id or _new_id()
        return self.agent_id

    @property
    def is_left(self) -> bool:
        """True if it ended, or the SDK has restored OpenTelemetry's earlier context."""
        if self.is_over or self.begun is None:
            return self.is_over or (self.event is not None and self.event() is None)
        context = opentelemetry.get_current()
        place = context.get(_PLACE) if context is not self.begun() else None  # the SDK puts a span on top
        while isinstance(place, _Place) and place is not self:
            place = place.outer
        return place is not self

    def role_within(self, has_tools: bool | None) -> Role:
        """The role of an agent whose run begins here, by whether it has tools; None for a call without an agent."""
        if not self.in_tool or (self.in_agent_tool and has_tools is None):
            return Role.SUMMARY
        return Role.SUBAGENT if self.in_agent_tool or has_tools else Role.TOOL


_current_place: ContextVar[_Place | None] = ContextVar("strands_sglang_place", default=None)
_PLACE = opentelemetry.create_key("strands_sglang_place")


@contextmanager
def outermost() -> Iterator[None]:
    """Code in the block works for nobody outside of it."""
    token = _current_place.set(None)
    try:
        yield
    finally:
        _current_place.reset(token)


def _remaining(place: _Place | None, agent_id: str = "") -> _Place | None:
    """The innermost place from here outwards that has not ended, and is not the agent's."""
    while place is not None and (place.agent_id == agent_id or place.is_left):
        place = place.outer
    return place


def _current_task() -> Any:
    return weakref.ref(cast(Any, asyncio.current_task()))


class NamedOptions(dict[str, Any]):
    """The options of a model, as the SDK is shown them: it asks for `model_id` where an agent begins something."""

    def get(self, name: str, default: Any = None) -> Any:
        """The value of an option; with it the place of whoever asks for the model's name is entered."""
        if name == "model_id":
            outer = _current_place.get()
            while outer is not None and not outer.is_claimed and outer.is_left:  # it never called
                outer = outer.outer
            place = _Place(outer=outer, is_claimed=False, is_invocation=True)
            context = opentelemetry.set_value(_PLACE, place)
            place.begun = weakref.ref(context)
            _current_place.set(place)
            opentelemetry.attach(context)  # the SDK sets it back with what it attached itself, just before
        return super().get(name, default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller(CallOrigin):
    """The agent that makes a call; with `is_hooked`, hooks on it report what becomes of its answers."""

    is_hooked: bool = False


@dataclass(slots=True, kw_only=True)
class _Known:
    """The agent with a cancel signal."""

    id: str
    agent: weakref.ref[Any] | None = None
    place: _Place | None = None
    """Its loop, while it runs."""
    last: Any = None
    """The latest message that was there before a call, or was reported since: only what follows it may be news."""

    def leave(self, event: MessageAddedEvent | None = None) -> None:
        """Note that its loop has ended, or that hooks have seen a message outside of it."""
        if self.place is not None and (event is None or self.place.event is not None):
            self.place.is_over = True
            if _current_place.get() is self.place:  # what its program does next is not the agent's
                _current_place.set(self.place.outer)


class Callers:
    """The agents that call one model.

    Args:
        model: The model; calls of other models are ignored.
    """

    def __init__(self, model: Any, forest: TrajectoryForest) -> None:
        self._model = weakref.ref(model)
        self._forest = forest
        self._known: weakref.WeakKeyDictionary[threading.Event, _Known] = weakref.WeakKeyDictionary()
        self._main_agents: dict[str, None] = {}
        self._strays: list[Turn] = []
        self._pending: dict[str, list[Turn]] = {}
        self._answers: dict[str, str] = {}

    def reset(self) -> None:
        """Forget all calls; agents stay known."""
        self._main_agents.clear()
        self._strays.clear()
        self._pending.clear()
        self._answers.clear()

    def identify(self, invocation_state: Mapping[str, Any] | None, cancel_signal: threading.Event | None) -> Caller:
        """The caller of a model call, hooked if its agent is known."""
        state = invocation_state or {}
        cycle = state.get("event_loop_cycle_id")  # the SDK repeats a call within one
        attempt = None if cycle is None else str(cycle)
        if cancel_signal is None:
            return self._identify_stray(attempt)
        place = _current_place.get()
        if place is not None and not place.is_claimed:  # of this call, for whose trace the SDK asked
            place = place.outer
            _current_place.set(place)
        agent: Any = state.get("agent")
        if agent is not None and getattr(agent, "cancel_signal", None) is not cancel_signal:
            agent = None
        # Of an agent with another model that one was asked for its name, so the place is not its own.
        is_anothers = agent is not None and getattr(agent, "model", None) is not self._model()
        known = self._known.get(cancel_signal) or self._known_by(cancel_signal, None if is_anothers else place)
        if agent is None and known.agent is not None:
            agent = known.agent()
            is_anothers = agent is not None and getattr(agent, "model", None) is not self._model()
        is_hooked = agent is not None and not is_anothers
        if is_hooked:
            if known.agent is None:
                self._watch(known, agent)
            known.last = agent.messages[-1] if agent.messages else None
        if place is None or place is not known.place or place.is_over:  # it was not known when its run began
            place = _remaining(place)
            if is_hooked or (agent is None and place is not None and not place.is_claimed):
                self._enter(known)
        role, parent = Role.MAIN, None
        if (place := _remaining(place, known.id)) is not None:
            role, parent = place.role_within(agent is None or _has_tools(agent)), place.owner
        elif known.id not in self._main_agents:
            self._note_main(known.id)
        return Caller(
            agent=getattr(agent, "name", None),
            agent_id=known.id,
            role=role,
            parent_agent=parent,
            attempt=attempt,
            is_hooked=is_hooked,
        )

    def identify_structured(self) -> Caller:
        """The caller of `structured_output`, which no agent passes anything to know it by."""
        place = _current_place.get()
        if place is None or place.is_left or place.in_tool or place.is_invocation:
            return self._identify_stray(None)
        return Caller()  # in an agent, but in no invocation of it: its own method asks

    def _identify_stray(self, attempt: str | None) -> Caller:
        """The caller of a call without an agent."""
        begun = _current_place.get()
        place = _remaining(begun)
        if begun is not None and not begun.is_claimed:  # memory, too, asks for the model's name
            begun = None if begun.outer is None or begun.outer.in_tool else begun.outer
        if begun is not None and begun.task is not None and begun.task() is not asyncio.current_task():
            place = begun  # memory extracts beyond the loop, in a task that it began there
        if place is not None:
            return Caller(role=place.role_within(None), parent_agent=place.owner, attempt=attempt)
        if not self._main_agents:
            return Caller(attempt=attempt)
        agents = list(self._main_agents)
        return Caller(role=Role.SUMMARY, parent_agent=agents[0] if len(agents) == 1 else None, attempt=attempt)

    def _note_main(self, agent_id: str) -> None:
        """An agent calls this model, so calls by nobody known were not an agent's."""
        self._main_agents.setdefault(agent_id)
        for turn in self._strays:
            self._forest.attribute(turn, Role.SUMMARY, agent_id)
        self._strays.clear()

    def watch(self, agent: Any) -> None:
        """Know an agent, from now on, by hooks."""
        known = self._known_by(agent.cancel_signal)
        if known.agent is None:
            self._watch(known, agent)

    def _watch(self, known: _Known, agent: Any) -> None:
        known.agent = weakref.ref(agent)
        # Not only where it is needed: another agent may take over a malformed call, in a snapshot.
        agent.add_hook(self._answer_malformed_call, BeforeToolCallEvent)
        # Functions: at every event the SDK asks whether a hook is asynchronous, and looks longer at a `partial`.
        agent.add_hook(lambda event: self._message_added(known, event), MessageAddedEvent, order=HookOrder.SDK_FIRST)
        agent.add_hook(lambda event: self._invocation_ended(known, event), AfterInvocationEvent)
        agent.add_hook(self._report_refused_result, AfterToolCallEvent)
        agent.add_hook(lambda event: self._enter(known), BeforeInvocationEvent, order=HookOrder.SDK_FIRST)
        agent.add_hook(lambda event: known.leave(), AfterInvocationEvent, order=HookOrder.SDK_LAST + 1)
        agent.add_hook(lambda event: known.leave(event), MessageAddedEvent, order=HookOrder.SDK_LAST + 1)
        agent.add_middleware(ExecuteToolStage, partial(self._in_tool, known))

    def _known_by(self, signal: threading.Event, place: _Place | None = None) -> _Known:
        """The agent with this signal; one that is new has the identity of the unclaimed place that it calls from."""
        known = self._known.get(signal)
        if known is None:
            place = _remaining(place)
            is_its_own = place is not None and not place.is_claimed
            known_id = place.owner if place is not None and is_its_own else _new_id()
            known = self._known.setdefault(signal, _Known(id=known_id))
        return known

    # ---- places ------------------------------------------------

    def _enter(self, known: _Known) -> None:
        place = _remaining(_current_place.get())
        if place is None or place.is_claimed:
            place = _Place(outer=place)
        place.agent_id, place.is_claimed, place.task = known.id, True, _current_task()
        if known.agent is not None:
            place.begun = None  # its hooks say when it ends
        known.place = place
        _current_place.set(place)

    async def _in_tool(self, known: _Known, context: Any, next_fn: Any) -> AsyncGenerator[Any, None]:
        """Middleware around a tool of an agent, in the background too."""
        before, is_agent = _current_place.get(), getattr(context.tool, "tool_type", None) == "agent"
        outer = _remaining(before)
        place = _Place(agent_id=known.id, outer=outer, in_tool=True, in_agent_tool=is_agent, task=_current_task())
        _current_place.set(place)
        try:
            async for event in next_fn(context):
                yield event
        finally:
            place.is_over = True
            _current_place.set(before)

    # ---- fates ------------------------------------------------

    def note_sampled(self, caller: Caller, turn: Turn) -> None:
        """Wait for what becomes of an answer, and answer its malformed calls."""
        for call in turn.calls:
            if call.error is not None:
                self._answers[call.id] = f"Error: malformed tool call, the tool was not run: {call.error}"
        if caller.agent_id is None and caller.role is Role.MAIN:
            self._strays.append(turn)
        if caller.is_hooked and caller.agent_id is not None:
            self._pending.setdefault(caller.agent_id, []).append(turn)

    def _message_added(self, known: _Known, event: MessageAddedEvent) -> None:
        known.last, pending = event.message, self._pending.get(known.id)
        if known.place is None or known.place.is_left:
            # Of a direct call of a tool, or with which the SDK repairs a history before an invocation begins. A hook
            # that fails keeps the later ones from running, so the place ends with the event at the latest.
            known.place = _Place(
                outer=_remaining(_current_place.get()),
                agent_id=known.id,
                is_invocation=True,  # what is asked here is not the agent's own `structured_output`
                task=_current_task(),
                event=weakref.ref(event),
            )
            _current_place.set(known.place)
        if event.message["role"] != "assistant" or not pending:
            return
        turn = _turn_in(pending, event.message)
        if turn is None:
            # Either a hook edited the answer, which has been used, if not word for word; or the SDK put words of its
            # own in the place of one that it did not read to the end.
            self._forest.discard_undelivered(pending.pop())
            return
        self._forest.keep(turn)
        pending.remove(turn)

    def _invocation_ended(self, known: _Known, event: AfterInvocationEvent) -> None:
        messages, pending, model = event.agent.messages, self._pending.get(known.id), self._model()
        if model is not None:
            model.conversation.free_scratch()
        if not pending:
            return
        start = 0 if known.last is None else len(messages)
        # By identity: an answer that was thrown away may read like an earlier one.
        start = next((i for i in range(len(messages), 0, -1) if messages[i - 1] is known.last), start)
        for message in messages[start:]:  # in case that another hook kept the report of one from arriving
            kept = _turn_in(pending, message) if message["role"] == "assistant" else None
            if kept is not None:
                self._forest.keep(kept)
                pending.remove(kept)
        for turn in pending:
            self._forest.discard(turn)
        pending.clear()

    def _answer_malformed_call(self, event: BeforeToolCallEvent[Any]) -> None:
        answer = self._answers.get(event.tool_use["toolUseId"])
        if answer is not None and getattr(event.agent, "model", None) is self._model():
            event.cancel_tool = answer

    async def _report_refused_result(self, event: AfterToolCallEvent[Any]) -> None:
        content, conversation = event.result.get("content"), getattr(self._model(), "conversation", None)
        if conversation is None or conversation.config["refused_results"] != RefusedResults.REPORT:
            return
        # Most results are one plain text, and to read each of them here would cost 80 calls of our code a turn.
        if type(content) is list and [*map(type, content)] == [dict] and [*content[0]] == ["text"]:
            text = content[0]["text"]
            is_any_text_shown = conversation.config["control_tokens"] != ControlTokens.ERROR
            if is_any_text_shown and type(text) is str and text.isascii():
                return
        with suppress(MessageConversionError):  # the problem of each block is found below
            await conversation.read_images([read_message({"role": "user", "content": [{"toolResult": event.result}]})])
        tools = event.agent.tool_registry.get_all_tool_specs()
        find_problem = partial(conversation.find_problem, role="tool", tools=tools)
        event.result = cast(ToolResult, report_refused(event.result, find_problem))


def _has_tools(agent: Any) -> bool:
    """True for an agent that can do more than answer."""
    return any(tool.tool_type != "structured_output" for tool in agent.tool_registry.registry.values())


def _turn_in(turns: list[Turn], message: Mapping[str, Any]) -> Turn | None:
    """The latest of these turns that a message is."""
    # Most are what the SDK made of the latest reply, and to read it anew would cost more than to write it.
    if to_strands(turns[-1].reply)["content"] == message.get("content"):
        return turns[-1]
    try:
        observed = read_message(message)
    except MessageConversionError:  # no model gives such a reply; a hook wrote it
        return None
    return next((turn for turn in reversed(turns) if turn.reply.is_seen_in(observed)), None)
