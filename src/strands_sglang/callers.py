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
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import weakref
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

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

from .conversation.messages import read_message, report_refused
from .conversation.options import RefusedResults
from .exceptions import MessageConversionError
from .template import ControlTokens
from .trajectory import CallOrigin, Role, TrajectoryForest, Turn

_agents = itertools.count()
"""Numbers of agents, of all models: one may work for an agent with another model."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Place:
    """The loop of an agent, or a tool that it runs. Tools are not held: contexts outlive what runs in them.

    Attributes:
        agent_id: Identity of the agent.
        outer: The place in which its run began.
        in_tool: In a tool, not in the loop.
        in_agent_tool: The tool is an agent, by the SDK's word.
        is_over: It has ended.
        task: The task that it was entered in, weakly.
    """

    agent_id: str
    outer: _Place | None
    in_tool: bool = False
    in_agent_tool: bool = False
    is_over: bool = False
    task: Any = field(default_factory=lambda: weakref.ref(cast(Any, asyncio.current_task())))

    def role_within(self, has_tools: bool | None) -> Role:
        """The role of an agent whose run begins here, by whether it has tools; None for a call without an agent."""
        if not self.in_tool or (self.in_agent_tool and has_tools is None):
            return Role.SUMMARY
        return Role.SUBAGENT if self.in_agent_tool or has_tools else Role.TOOL


_current_place: ContextVar[_Place | None] = ContextVar("strands_sglang_place", default=None)


@contextmanager
def outermost() -> Iterator[None]:
    """What runs in the block works for nobody outside of it."""
    token = _current_place.set(None)
    try:
        yield
    finally:
        _current_place.reset(token)


def _place() -> _Place | None:
    """The innermost place that has not ended."""
    place = _current_place.get()
    while place is not None and place.is_over:
        place = place.outer
    return place


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

    def leave(self) -> None:
        """Note that its loop has ended."""
        if self.place is not None:
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
        self._pending: dict[str, list[Turn]] = {}
        self._answers: dict[str, str] = {}

    def reset(self) -> None:
        """Forget all calls; agents stay known."""
        self._pending.clear()
        self._answers.clear()

    def identify(self, invocation_state: Mapping[str, Any] | None, cancel_signal: threading.Event | None) -> Caller:
        """The caller of a model call, hooked if its agent is known."""
        place, state = _place(), invocation_state or {}
        cycle = state.get("event_loop_cycle_id")  # the SDK repeats a call within one
        attempt = None if cycle is None else str(cycle)
        if cancel_signal is None:
            begun = _current_place.get()  # memory extracts beyond the loop, in a task that it began there
            if begun is not None and begun.task() is not asyncio.current_task():
                place = begun
            if place is None:
                return Caller(attempt=attempt)
            return Caller(role=place.role_within(None), parent_agent=place.agent_id, attempt=attempt)
        known = self._known_by(cancel_signal)
        agent: Any = state.get("agent")
        if agent is None or getattr(agent, "cancel_signal", None) is not cancel_signal:
            agent = known.agent() if known.agent is not None else None
        is_hooked = agent is not None and getattr(agent, "model", None) is self._model()
        if is_hooked:
            self.watch(agent)
            known.last = agent.messages[-1] if agent.messages else None
        if is_hooked and (place is None or place.agent_id != known.id):
            self._enter(known)  # the agent was not known when its run began
        while place is not None and (place.is_over or place.agent_id == known.id):
            place = place.outer
        role, parent = Role.MAIN, None
        if place is not None:
            role, parent = place.role_within(agent is None or _has_tools(agent)), place.agent_id
        return Caller(
            agent=getattr(agent, "name", None),
            agent_id=known.id,
            role=role,
            parent_agent=parent,
            attempt=attempt,
            is_hooked=is_hooked,
        )

    def watch(self, agent: Any) -> None:
        """Know an agent, from now on, by hooks."""
        known = self._known_by(agent.cancel_signal)
        if known.agent is not None:
            return
        known.agent = weakref.ref(agent)
        # Not only where it is needed: another agent may take over a malformed call, in a snapshot.
        agent.add_hook(self._answer_malformed_call, BeforeToolCallEvent)
        agent.add_hook(partial(self._message_added, known), MessageAddedEvent, order=HookOrder.SDK_FIRST)
        agent.add_hook(partial(self._invocation_ended, known), AfterInvocationEvent)
        agent.add_hook(self._report_refused_result, AfterToolCallEvent)
        agent.add_hook(lambda event: self._enter(known), BeforeInvocationEvent, order=HookOrder.SDK_FIRST)
        agent.add_hook(lambda event: known.leave(), AfterInvocationEvent, order=HookOrder.SDK_LAST + 1)
        agent.add_middleware(ExecuteToolStage, partial(self._in_tool, known))

    def _known_by(self, signal: threading.Event) -> _Known:
        known = self._known.get(signal)
        return known or self._known.setdefault(signal, _Known(id=f"agent-{next(_agents)}"))

    # ---- places ------------------------------------------------

    def _enter(self, known: _Known) -> None:
        known.place = _Place(agent_id=known.id, outer=_place())
        _current_place.set(known.place)

    async def _in_tool(self, known: _Known, context: Any, next_fn: Any) -> AsyncGenerator[Any, None]:
        """Middleware around a tool of an agent, in the background too."""
        before, is_agent = _current_place.get(), getattr(context.tool, "tool_type", None) == "agent"
        place = _Place(agent_id=known.id, outer=_place(), in_tool=True, in_agent_tool=is_agent)
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
        if caller.is_hooked and caller.agent_id is not None:
            self._pending.setdefault(caller.agent_id, []).append(turn)

    def _message_added(self, known: _Known, event: MessageAddedEvent) -> None:
        known.last, pending = event.message, self._pending.get(known.id)
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
        messages, pending = event.agent.messages, self._pending.get(known.id)
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
        model, content = self._model(), event.result.get("content")
        if model is None or model.config["refused_results"] != RefusedResults.REPORT:
            return
        # Most results are one plain text, and to read each of them here would cost 80 calls of our code a turn.
        if isinstance(content, list) and [*map(type, content)] == [dict] and [*content[0]] == ["text"]:
            text, is_any_text_shown = content[0]["text"], model.config["control_tokens"] != ControlTokens.ERROR
            if is_any_text_shown and isinstance(text, str) and text.isascii():
                return
        with suppress(MessageConversionError):  # the problem of each block is found below
            await model.read_images([read_message({"role": "user", "content": [{"toolResult": event.result}]})])
        tools = event.agent.tool_registry.get_all_tool_specs()
        find_problem = partial(model.find_problem, role="tool", tools=tools)
        event.result = cast(ToolResult, report_refused(event.result, find_problem))


def _has_tools(agent: Any) -> bool:
    """True for an agent that can do more than answer."""
    return any(tool.tool_type != "structured_output" for tool in agent.tool_registry.registry.values())


def _turn_in(turns: list[Turn], message: Mapping[str, Any]) -> Turn | None:
    """The latest of these turns that a message is."""
    try:
        observed = read_message(message)
    except MessageConversionError:  # no model gives such a reply; a hook wrote it
        return None
    return next((turn for turn in reversed(turns) if turn.reply.is_seen_in(observed)), None)
