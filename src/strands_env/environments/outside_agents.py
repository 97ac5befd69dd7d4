"""Steps that an agent other than ours plays: the conversation they sample from, and their end as that of a step."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from strands import Agent
from strands.agent.agent_result import AgentResult
from strands.models import Model

from strands_env.core.metrics import note_usage
from strands_sglang.conversation import Conversation
from strands_sglang.trajectory import Turn

if TYPE_CHECKING:
    from strands_sglang.gateway import Session


def conversation_of(model: Model) -> Conversation:
    """The conversation of a step's model, in which an agent of any make samples.

    Raises:
        TypeError: The model has no exact tokens.
    """
    conversation = getattr(model, "conversation", None)
    if not isinstance(conversation, Conversation):
        raise TypeError(
            f"the environment needs a model with exact tokens (SGLangModel), got {type(model).__name__}: "
            "only its tokens are those of the episode"
        )
    return conversation


@contextlib.asynccontextmanager
async def session_of(
    conversation: Conversation, served: Mapping[str, Any] | None = None, **options: Any
) -> AsyncIterator[Session]:
    """A session on a conversation, of a gateway in this process. Its samples are trajectories of the step.

    Args:
        served: Options of the `Gateway` in place of a port of this machine.
        **options: Options of `Gateway.open`.
    """
    from strands_sglang.gateway import Gateway

    # The agent sees one session and nothing that makes or closes others.
    place: dict[str, Any] = {"host": "127.0.0.1", "model_name": "policy", "admin": False, **(served or {})}
    async with Gateway(client=conversation.client, tokenizer=conversation.tokenizer, **place) as gateway:
        session = gateway.open(conversation=conversation, **options)
        try:
            yield session
        except BaseException:
            await session.drop()
            raise
        await session.close()


def take_over(
    agent: Agent, conversation: Conversation, first_turn: int, history: Iterable[Any], last_turn: Turn | None
) -> None:
    """Give the step's agent the messages that were played, the tokens used, and the counts.

    Args:
        first_turn: Number of turns that the conversation had before.
        last_turn: Turn of the last message; titles and sub-agents may have come after it.
    """
    agent.messages.extend(history)
    if last_turn is not None:
        conversation.forest.show(last_turn)
    note_usage(agent.event_loop_metrics, conversation.forest.turns[first_turn:])


def result_of(agent: Agent, stop_reason: str = "end_turn", **state: Any) -> AgentResult:
    """The end of what was played, as that of an agent loop."""
    return AgentResult(
        stop_reason=stop_reason,  # type: ignore[arg-type]
        message=agent.messages[-1] if agent.messages else {"role": "assistant", "content": []},
        metrics=agent.event_loop_metrics,
        state=state,
    )
