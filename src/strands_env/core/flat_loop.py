"""The SDK's agent loop without its recursion: what a turn costs does not grow with the turns before it.

The SDK's loop calls itself once a turn, through `recurse_event_loop`. Every event of a turn then passes through three
generators for each earlier turn, all of which stay alive, and the loop ends in a `RecursionError` after some 320 turns.
The recursive call is the last thing a turn does, so it can be made after the turn has returned. Agents that run inside
a step get this; events, hooks, traces, spans and errors are those of the recursive loop.

`STRANDS_ENV_FLAT_LOOP=0` leaves the SDK's loop as it is.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from typing import Any, Final
from weakref import WeakKeyDictionary

import strands.event_loop.event_loop as sdk
from strands.telemetry.metrics import Trace
from strands.types._events import StartEvent

from .scope import StepScope

_recursive: Final[Any] = getattr(sdk, "recurse_event_loop", None)

_waiting: WeakKeyDictionary[Any, list[Trace]] = WeakKeyDictionary()
"""Of each running loop, by the context the SDK makes for it: the trace of the turn that comes next, if any."""


def flatten_the_loop() -> None:
    """Let agents inside a step run without recursion; all others keep the SDK's loop."""
    if _recursive is not None and os.environ.get("STRANDS_ENV_FLAT_LOOP") != "0":
        sdk.recurse_event_loop = _next_turns


async def _next_turns(
    agent: Any, invocation_state: dict[str, Any], structured_output_context: Any = None, limits: Any = None
) -> AsyncGenerator[Any, None]:
    """All later turns where the first turn asks for the next one; nothing where a later turn asks."""
    call = (agent, invocation_state, structured_output_context, limits)
    if structured_output_context is None or StepScope.current() is None:
        async for event in _recursive(*call):
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
            async for event in sdk.event_loop_cycle(*call):
                yield event
    finally:
        del _waiting[structured_output_context]
    for trace in reversed(traces):
        trace.end()
