"""All that touches private parts of the Strands SDK.

What the SDK does between two model calls grows with the turns before: it copies the history deeply, twice; writes it as
JSON for spans that nobody records; and runs each turn inside the one before. Inside a step of an `Environment`, patches
at the SDK's own call sites do the same with less. Agents outside a step keep the SDK as it is, and so does everybody
under `STRANDS_ROLLOUT_PLAIN=1`. The last two patches are no fast paths and always on.

| patch | call site | instead |
|---|---|---|
| `shared_history` | `_handle_model_execution` copies the history for model middleware | where there is some |
| | `_normalize_messages` copies it again | for a model that only reads, what it changes |
| `flat_loop` | `recurse_event_loop` runs the next turn inside this one | it runs after this one |
| `silent_spans` | `Tracer._add_event_messages` writes JSON, then asks the span | it asks first |
| - | `ToolExecutor` runs tools and hooks around them in tasks, where `sys.exit()` ends the process | it is an error |
| - | `_BackgroundTasks.submit_tool_call` begins a background task | the step hears of its agent, and ends it |

A patch knows the code that it was written for by its digest. Where the SDK has other code, it is not applied, and the
step runs on the plain SDK.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import inspect
import re
from collections.abc import AsyncGenerator, Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from types import SimpleNamespace
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

import strands.event_loop.event_loop as event_loop
import strands.event_loop.streaming as streaming
import strands.tools.executors._executor as executor
from strands.background_tasks._background_tasks import _BackgroundTasks
from strands.background_tasks._errors import BackgroundTaskTimeoutError
from strands.memory.extraction.coordinator import ExtractionCoordinator
from strands.middleware import ExecuteToolStage, InvokeModelStage
from strands.middleware.stages import InvokeModelContext
from strands.telemetry.metrics import Trace
from strands.telemetry.tracer import Tracer
from strands.tools.executors import ConcurrentToolExecutor
from strands.tools.executors._executor import ToolExecutor
from strands.types._events import StartEvent, ToolResultEvent
from strands.types.tools import AgentTool

from strands_sglang.fast_paths import FastPath, turned_off

from .deadline import wrap_exit
from .termination import Phase

current_step: ContextVar[Any] = ContextVar("strands_env_step", default=None)
"""The step that the calling code runs in, threads and tasks started by it included; None outside.

`add_agent`, where it has one, is given every agent that begins a background task.
"""


@dataclass(frozen=True, eq=False, kw_only=True)
class Patch:
    """A fast path around the SDK, or another change to it inside a step.

    Attributes:
        path: None for a change that is always on.
        names: Replaced names: owner, name there, replacement.
        relies_on: Other code of the SDK that it needs unchanged: owner and name.
        digest: Digest of the code that it was written for, as `code` gives it.
    """

    path: FastPath | None
    names: tuple[tuple[Any, str, Any], ...]
    relies_on: tuple[tuple[Any, str], ...]
    digest: str

    def set(self, off: Collection[FastPath]) -> None:
        """Apply the patch, or take it back where its fast path is `off` or the SDK has other code."""
        is_on = self.path not in off and _code_digest(self) == self.digest
        for owner, name, replacement in self.names:
            if is_on != (vars(owner).get(name) is replacement):
                setattr(owner, name, replacement if is_on else _ORIGINALS[owner, name])

    def code(self) -> str:
        """The code of the SDK that it relies on, and every line there that uses what it replaces."""
        parts = [inspect.getsource(getattr(owner, name)) for owner, name in self.relies_on]
        for owner, name, _ in self.names:
            lines = inspect.getsource(inspect.getmodule(owner) or owner).splitlines()
            parts += [line for line in lines if re.search(rf"\b{name}\b", line)]
        return "\n".join(parts)


@cache
def _code_digest(patch: Patch) -> str:
    try:
        return hashlib.sha256(patch.code().encode()).hexdigest()[:16]
    except (AttributeError, OSError, TypeError) as error:
        return repr(error)


@contextmanager
def inside_a_step(step: object = True) -> Iterator[None]:
    """Make this the current step, and apply the patches to the agents that run inside the block."""
    off = turned_off()
    for patch in PATCHES:
        patch.set(off)
    token = current_step.set(step)
    try:
        yield
    finally:
        current_step.reset(token)


def only_reads(stream: Callable[..., Any]) -> bool:
    """True for a model's `stream` that promises only to read its messages.

    A wrapper makes no promise, though `functools.wraps` copies that of what it wraps.
    """
    return getattr(stream, "only_reads_messages", False) is True and not hasattr(stream, "__wrapped__")


def function_of(tool: AgentTool) -> Callable[..., Any] | None:
    """The function of a decorated tool; None for any other tool."""
    return getattr(tool, "_tool_func", None)


def with_function(tool: AgentTool, function: Callable[..., Any]) -> AgentTool:
    """A decorated tool with another function; the SDK's validation and context injection stay."""
    twin = copy.copy(tool)
    twin._tool_func = function  # type: ignore[attr-defined]
    return twin


def memory_saves(agent: Any) -> list[asyncio.Task[Any]]:
    """The tasks in which the memory of an agent asks the model for facts and saves them."""
    coordinator = getattr(getattr(agent, "memory_manager", None), "_coordinator", None)
    return list(coordinator._chains.values()) if isinstance(coordinator, ExtractionCoordinator) else []


_END_SECONDS = 10.0
_tool_tasks: WeakKeyDictionary[Any, WeakSet[asyncio.Task[Any]]] = WeakKeyDictionary()
"""The tasks of event loops in which tools of an agent with background tasks run."""


def watch_background_tasks(agent: Any) -> None:
    """Know where an agent's background tasks run, for `end_background_tasks`. Once is enough."""
    if isinstance(getattr(agent, "_background_tasks", None), _BackgroundTasks) and agent not in _tool_tasks:
        _tool_tasks[agent] = tasks = WeakSet[asyncio.Task[Any]]()
        agent.add_middleware(ExecuteToolStage, partial(_note_task, tasks))


async def _note_task(tasks: WeakSet[asyncio.Task[Any]], context: Any, next_fn: Any) -> AsyncGenerator[Any, None]:
    if (task := asyncio.current_task()) is not None:
        tasks.add(task)
    async for event in next_fn(context):
        yield event


async def end_background_tasks(agent: Any) -> None:
    """Cancel the background tasks of an agent that are queued or running, and wait for their end.

    Raises:
        BackgroundTaskTimeoutError: One did not end.
    """
    for save in (saves := memory_saves(agent)):
        save.cancel()
    await asyncio.gather(*saves, return_exceptions=True)
    tasks = getattr(agent, "_background_tasks", None)
    if not isinstance(tasks, _BackgroundTasks):  # None, or a mock of users' tests
        return
    manager = tasks._manager
    # The newest first: those that wait are not to start in the place of one that ends.
    await asyncio.gather(*(manager.cancel(task["task_id"]) for task in reversed(await manager.list())))
    await manager.wait_for_idle(timeout=_END_SECONDS)
    # The SDK takes a tool for ended when it has asked the tool's event loop to cancel it. A sub-agent in it still ends.
    here = asyncio.get_running_loop()
    own = asyncio.current_task()
    ending = [task for task in _tool_tasks.get(agent, ()) if task is not own and task.get_loop() is here]
    if ending and (await asyncio.wait(ending, timeout=_END_SECONDS))[1]:
        raise BackgroundTaskTimeoutError(_END_SECONDS)


# ---- shared_history -------------------------------------------------------------------------------------------------


class _Uncopied:
    """Stands for the copy of a list until `_model_context` knows whether one is needed."""

    __slots__ = ("value",)

    def __init__(self, value: list[Any]) -> None:
        self.value = value


class _Shared(list[Any]):
    """The messages of an agent without model middleware, on their way from its loop to the SDK's normalisation."""

    is_only_read = False


def _deepcopy(value: Any, memo: dict[int, Any] | None = None) -> Any:
    return _Uncopied(value) if type(value) is list and current_step.get() is not None else copy.deepcopy(value, memo)


def _model_context(*, agent: Any, messages: Any, model: Any, **others: Any) -> InvokeModelContext:
    """`InvokeModelContext`. Where the agent has no model middleware, nobody sees it but the SDK."""
    is_only_read = False
    if type(messages) is _Uncopied:
        if agent._middleware_registry.compose(InvokeModelStage, _no_middleware) is _no_middleware:
            messages = _Shared(messages.value)
            messages.is_only_read = is_only_read = only_reads(model.stream)
        else:
            messages = copy.deepcopy(messages.value)
    for name, value in others.items():  # tools and system prompt
        if type(value) is _Uncopied:
            others[name] = value.value if is_only_read else copy.deepcopy(value.value)
    return InvokeModelContext(agent=agent, messages=messages, model=model, **others)


async def _no_middleware(context: Any) -> AsyncGenerator[Any, None]:
    raise AssertionError("it is compared, never run")
    yield  # type: ignore[unreachable]


def _normalize_messages(messages: Any) -> Any:
    """`_normalize_messages`, message by message for a model that only reads: what it would leave alone is shared."""
    normalize = _ORIGINALS[streaming, "_normalize_messages"]
    if type(messages) is not _Shared or not messages.is_only_read:
        return normalize(messages)
    return [
        message if message.get("role") == "user" or _is_normal(message) else normalize([message])[0]
        for message in messages
    ]


def _is_normal(message: Any) -> bool:
    if message.get("role", "assistant") != "assistant":
        return True
    content = message.get("content")
    if type(content) is not list or not content:
        return False
    for block in content:
        if type(block) is not dict:
            return False
        if "text" in block and not (type(block["text"]) is str and block["text"].strip()):
            return False
        if "toolUse" in block:
            use = block["toolUse"]
            if type(use) is not dict or type(use.get("name")) is not str or not _is_valid_name(use["name"]):
                return False
    return True


@lru_cache(maxsize=4096)
def _is_valid_name(name: str) -> bool:
    return re.fullmatch(r"[a-zA-Z0-9_\-]{1,64}", name) is not None


# ---- flat_loop ------------------------------------------------------------------------------------------------------

_waiting: WeakKeyDictionary[Any, list[Trace]] = WeakKeyDictionary()
"""Trace of the next turn, if any, by the context the SDK makes for each running loop."""


async def _next_turns(
    agent: Any, invocation_state: dict[str, Any], structured_output_context: Any = None, limits: Any = None
) -> AsyncGenerator[Any, None]:
    """`recurse_event_loop`: all later turns where the first turn asks for the next one, nothing where a later one does.

    The recursive call is the last thing a turn does, so it can be made after the turn has returned.
    """
    call = (agent, invocation_state, structured_output_context, limits)
    if structured_output_context is None or current_step.get() is None:
        async for event in _ORIGINALS[event_loop, "recurse_event_loop"](*call):
            yield event
        return
    cycle = invocation_state["event_loop_cycle_trace"]
    trace = Trace("Recursive call", parent_id=cycle.id)
    cycle.add_child(trace)
    yield StartEvent()
    waiting = _waiting.get(structured_output_context)
    if waiting is not None:
        waiting.append(trace)
        return
    waiting = _waiting[structured_output_context] = [trace]
    traces = []
    try:
        while waiting:
            traces.append(waiting.pop())
            async for event in event_loop.event_loop_cycle(*call):
                yield event
    finally:
        del _waiting[structured_output_context]
    for trace in reversed(traces):
        trace.end()


# ---- silent_spans ---------------------------------------------------------------------------------------------------


def _add_event_messages(tracer: Tracer, span: Any, messages: Any) -> None:
    """`Tracer._add_event_messages`."""
    if span.is_recording() or current_step.get() is None:
        _ORIGINALS[Tracer, "_add_event_messages"](tracer, span, messages)


# ---- tools and background tasks of any agent in a step ---------------------------------------------------------------

# The tools of an environment's own agent have limits, which contain exits, too. Those of its sub-agents have none.


def _run_tool(context: Any, *args: Any) -> AsyncGenerator[Any, None]:
    """`_run_tool`: a tool that exits has failed."""
    events = _ORIGINALS[executor, "_run_tool"](context, *args)
    return events if current_step.get() is None else _failing_at_an_exit(events, context.tool_use)


async def _failing_at_an_exit(events: AsyncGenerator[Any, None], tool_use: Any) -> AsyncGenerator[Any, None]:
    try:
        async for event in events:
            yield event
    except SystemExit as error:
        failure = wrap_exit(error, Phase.TOOL)
        content: list[Any] = [{"text": f"Error: {failure}"}]
        result: Any = {"toolUseId": str(tool_use.get("toolUseId")), "status": "error", "content": content}
        yield ToolResultEvent(result, exception=failure)


def _stream_with_trace(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
    """`ToolExecutor._stream_with_trace`: a hook around a tool that exits has raised an error."""
    events = _ORIGINALS[ToolExecutor, "_stream_with_trace"](*args, **kwargs)
    return events if current_step.get() is None else _raising_at_an_exit(events)


async def _raising_at_an_exit(events: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    try:
        async for event in events:
            yield event
    except SystemExit as error:
        raise wrap_exit(error, "hook") from error


async def _execute_background(*args: Any) -> Any:
    """`ToolExecutor._execute_background`: the same of a tool in the background."""
    try:
        return await _ORIGINALS[ToolExecutor, "_execute_background"](*args)
    except SystemExit as error:
        if current_step.get() is None:
            raise
        raise wrap_exit(error, "hook") from error


async def _submit_tool_call(tasks: _BackgroundTasks, *args: Any, **kwargs: Any) -> Any:
    """`_BackgroundTasks.submit_tool_call`: the step knows the agent first."""
    if (add_agent := getattr(current_step.get(), "add_agent", None)) is not None:
        add_agent(tasks._agent)
    return await _ORIGINALS[_BackgroundTasks, "submit_tool_call"](tasks, *args, **kwargs)


# ---- all of them ----------------------------------------------------------------------------------------------------


PATCHES: Final = (
    Patch(
        path=FastPath.SHARED_HISTORY,
        names=(
            (event_loop, "copy", SimpleNamespace(deepcopy=_deepcopy)),
            (event_loop, "InvokeModelContext", _model_context),
            (streaming, "_normalize_messages", _normalize_messages),
        ),
        relies_on=(
            (event_loop, "_handle_model_execution"),
            (event_loop, "_make_invoke_model_terminal"),
            (streaming, "stream_messages"),
            (streaming, "_normalize_messages"),
        ),
        digest="8c29bca82d1d16ef",
    ),
    Patch(
        path=FastPath.FLAT_LOOP,
        names=((event_loop, "recurse_event_loop", _next_turns),),
        relies_on=(
            (event_loop, "recurse_event_loop"),
            (event_loop, "event_loop_cycle"),
            (event_loop, "_handle_tool_execution"),
        ),
        digest="a4fac2df0bd3c623",
    ),
    Patch(
        path=FastPath.SILENT_SPANS,
        names=((Tracer, "_add_event_messages", _add_event_messages),),
        relies_on=((Tracer, "_add_event_messages"),),
        digest="38d1c1498f09249a",
    ),
    Patch(
        path=None,
        names=(
            (executor, "_run_tool", _run_tool),
            (ToolExecutor, "_stream_with_trace", staticmethod(_stream_with_trace)),
            (ToolExecutor, "_execute_background", _execute_background),
        ),
        relies_on=(
            (executor, "_run_tool"),
            (ToolExecutor, "_stream_with_trace"),
            (ToolExecutor, "_execute_background"),
            (ConcurrentToolExecutor, "_task"),
        ),
        digest="db1579ae360232ea",
    ),
    Patch(
        path=None,
        names=((_BackgroundTasks, "submit_tool_call", _submit_tool_call),),
        relies_on=((_BackgroundTasks, "submit_tool_call"), (ToolExecutor, "_stream")),
        digest="d2697196ae811d0b",
    ),
)

_ORIGINALS: Final[dict[tuple[Any, str], Any]] = {
    (owner, name): vars(owner).get(name) for patch in PATCHES for owner, name, _ in patch.names
}
