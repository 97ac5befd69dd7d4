"""Models of sub-agents: their failures end the step as what they are, and their agents' loops stay flat.

To the agent that called it, a sub-agent's failure is a tool result. An unreachable server is no
wrong answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from strands import Agent
from strands.hooks import AfterInvocationEvent, AfterToolsEvent, HookOrder
from strands.models import Model

from .termination import TerminationReason

if TYPE_CHECKING:
    from .scope import StepScope


def watch(model: Model, scope: StepScope, turns_per_invocation: int) -> None:
    """Note the failures of a model in the step, and keep the loop of every agent that uses it flat.

    Args:
        model: The model of a sub-agent.
        scope: The step it belongs to.
        turns_per_invocation: Turns after which the SDK's recursive loop is unwound.
    """
    stream, structured_output = model.stream, model.structured_output
    agents: list[Agent] = []

    async def watched(events: Any) -> AsyncIterator[Any]:
        try:
            async for event in events:
                yield event
        except Exception as error:
            if TerminationReason.from_error(error, default=TerminationReason.MODEL_ERROR).is_failure:
                scope.sub_agent_failures[id(model)] = error
            raise
        else:
            scope.sub_agent_failures.pop(id(model), None)  # a retry went well
        finally:
            if hasattr(events, "aclose"):
                await events.aclose()

    def watched_stream(*args: Any, **kwargs: Any) -> Any:
        agent = (kwargs.get("invocation_state") or {}).get("agent")
        if isinstance(agent, Agent) and not any(agent is known for known in agents):
            agents.append(agent)
            _Pacer(turns_per_invocation).attach(agent)
        return watched(stream(*args, **kwargs))

    def watched_output(*args: Any, **kwargs: Any) -> Any:
        return watched(structured_output(*args, **kwargs))

    model.stream = watched_stream  # type: ignore[method-assign]
    model.structured_output = watched_output  # type: ignore[method-assign]


class _Pacer:
    """Stops an agent behind its tools now and then, and lets it go on from there in a fresh loop."""

    def __init__(self, turns_per_invocation: int) -> None:
        self._turns_per_invocation = turns_per_invocation
        self._turns = 0
        self._paused = False

    def attach(self, agent: Agent) -> None:
        agent.hooks.add_callback(AfterToolsEvent, self._after_tools, order=HookOrder.SDK_LAST)
        agent.hooks.add_callback(AfterInvocationEvent, self._after_invocation)

    def _after_tools(self, event: AfterToolsEvent) -> None:
        self._turns += 1
        if self._turns % self._turns_per_invocation or event.end_turn:
            return
        agent = event.agent
        # A stop somebody else asked for is a real one. The SDK has no public view of a deferred stop.
        if not agent.cancel_signal.is_set() and not getattr(agent, "_deferred_cancel", False):
            agent.cancel(after_current_tools=True)
            self._paused = True

    def _after_invocation(self, event: AfterInvocationEvent) -> None:
        paused, self._paused = self._paused, False
        if not paused or event.result is None or event.result.stop_reason != "cancelled":
            return
        if not event.agent.cancel_signal.is_set():
            event.agent._deferred_cancel = False
            event.resume = []
