"""Models of sub-agents: their failures end the step as what they are.

To the agent that called it, a sub-agent's failure is a tool result. An unreachable server is no wrong answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from strands.models import Model

from .termination import TerminationReason

if TYPE_CHECKING:
    from .scope import StepScope


def watch(model: Model, scope: StepScope) -> None:
    """Note the failures of a model in the step.

    Args:
        model: The model of a sub-agent.
        scope: The step it belongs to.
    """
    stream, structured_output = model.stream, model.structured_output

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
        return watched(stream(*args, **kwargs))

    def watched_output(*args: Any, **kwargs: Any) -> Any:
        return watched(structured_output(*args, **kwargs))

    model.stream = watched_stream  # type: ignore[method-assign]
    model.structured_output = watched_output  # type: ignore[method-assign]
