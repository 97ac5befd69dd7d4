"""`ChatEnv`: a conversation of several turns with a simulated user, in one step."""

from __future__ import annotations

import copy
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

from strands import Agent
from strands.agent.agent_result import AgentResult
from strands.agent.conversation_manager import NullConversationManager
from strands.models import Model
from strands.types.exceptions import MaxTokensReachedException

from strands_env.core import Action, Environment, ModelFactory, Observation, TerminationReason
from strands_env.core.chat_messages import spoken_text
from strands_env.core.threads import default_threads
from strands_env.core.types import check_factory
from strands_sglang.exceptions import check_positive


class ChatEnv(Environment):
    """An assistant and a simulated user talk until the user is done.

    The action's message is the user's first. The assistant's model sees one conversation, so its tokens are one
    trajectory in which only the assistant's own tokens carry loss; a user played by a model has a separate trajectory
    in `StepResult.trajectories`. Without a user, or with `max_user_turns=0`, a step is one exchange.

    Args:
        user: The simulated user, or a list of its messages after the first. None for a single exchange.
        max_user_turns: Messages of the user after the first.
        **options: Further arguments of `Environment`.

    Raises:
        ValueError: `max_user_turns` is negative.
    """

    default_system_prompt_path = Path(__file__).with_name("prompts") / "chat.md"

    def __init__(
        self,
        *,
        user: SimulatedUser | Sequence[str] | None = None,
        max_user_turns: int = 10,
        tools: Sequence[Any] = (),
        **options: Any,
    ) -> None:
        super().__init__(**options)
        check_positive("messages", whole=True, zero=True, max_user_turns=max_user_turns)
        self.user = user if isinstance(user, SimulatedUser) else ScriptedUser(user or ())
        self.max_user_turns = max_user_turns
        self.tools = list(tools)

    def get_tools(self) -> list[Any]:
        """The assistant's tools."""
        return self.tools

    async def interact(self, agent: Agent, action: Action) -> AgentResult:
        """Let the two talk."""
        result = await self.invoke(agent, action.prompt)
        if self.max_user_turns == 0:
            return result
        user = self.user.begin(self, action)
        for turn in range(self.max_user_turns):
            if result.stop_reason != "end_turn":  # cancelled or cut short: the conversation is over
                return result
            answer = Observation.get_final_response([dict(result.message)]) or ""
            message = await user.reply(turn, answer, action)
            if message is None:
                return result
            result = await self.invoke(agent, message)
        return result


STOP = "###STOP###"
"""Ends the conversation when a model writes it."""

_INSTRUCTIONS = """\
You play the user in a conversation with an assistant. Stay in your role. Write only what the user says.

Your role and goal:
{role}

You opened the conversation with:
{opening}

Each message you get is the assistant's. Answer with the user's next message. When your goal is reached, or cannot be
reached, answer with {stop} and nothing else."""


class SimulatedUser(ABC):
    """Writes the user's messages after the first, which is the action's."""

    def begin(self, env: Environment, action: Action) -> SimulatedUser:
        """The user for one conversation, called while its step runs. The default has no state and serves all."""
        return self

    @abstractmethod
    async def reply(self, turn: int, answer: str, action: Action) -> str | None:
        """The user's next message to the assistant's last `answer`, or None to end the conversation.

        `turn` is the number of messages the user has written since the first.
        """


class ScriptedUser(SimulatedUser):
    """Says the same messages after the first, regardless of the answers."""

    def __init__(self, messages: Sequence[str]) -> None:
        if isinstance(messages, str):
            raise TypeError(f"messages must be a list of texts, got one text {messages!r}")
        self.messages = list(messages)

    async def reply(self, turn: int, answer: str, action: Action) -> str | None:
        """The message of that turn; None after the last."""
        return self.messages[turn] if turn < len(self.messages) else None


@dataclass(eq=False)
class ModelUser(SimulatedUser):
    """A model plays the user. Its tokens are a separate trajectory, named and not trained.

    Args:
        model_factory: Makes its model. None uses the environment's own factory.
        role: Who the user is and wants; a template of the fields of the task context, such as `"{goal}"`. A literal
            `{` is written `{{`.
        stop: Text it writes to end the conversation.
    """

    model_factory: ModelFactory | None = None
    _: KW_ONLY
    role: str
    agent_name: str = "user"
    trainable: bool = False
    stop: str = STOP
    _agent: Agent | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.model_factory is not None:
            check_factory(self.model_factory, "model_factory")

    def begin(self, env: Environment, action: Action) -> SimulatedUser:
        """A user with a model and a memory for this conversation."""
        fields = action.task_context.model_dump()
        try:
            role = self.role.format_map(fields)
        except KeyError as error:
            raise ValueError(
                f"the user's role names {error}, which is not a field of the task context: {sorted(fields)}"
            ) from None
        user = copy.copy(self)
        model = env.model_for(self.agent_name, trainable=self.trainable, model_factory=self.model_factory)
        instructions = _INSTRUCTIONS.format(role=role, opening=action.text, stop=self.stop)
        user._agent = user_agent(model, instructions, name=self.agent_name)
        return user

    async def reply(self, turn: int, answer: str, action: Action) -> str | None:
        """Its model's answer, of the user that `begin` returned."""
        if self._agent is None:
            raise RuntimeError("ModelUser.reply needs a conversation: use the user that begin() returns")
        text = await ask(self._agent, answer or "(no text)")
        return None if not text or self.stop in text else text


class ActorUser(SimulatedUser):
    """An `ActorSimulator` of strands-agents-evals plays the user (extra `strands-evals`). Its tokens are in no row.

    The conversation ends when the actor says so, after its own `max_turns`, or after the environment's.

    Args:
        make_actor: Makes the actor of one conversation from its task, as in
            `lambda action: ActorSimulator(profile, action.text, model=model_factory())`.
    """

    def __init__(self, make_actor: Callable[[Action], Any]) -> None:
        if not callable(make_actor):
            raise TypeError(f"make_actor={make_actor!r:.200}: expected a function that makes an actor from the task")
        self.make_actor = make_actor
        self._actor: Any = None

    def begin(self, env: Environment, action: Action) -> SimulatedUser:
        """A user whose actor has a memory of this conversation alone."""
        return ActorUser(self.make_actor)

    async def reply(self, turn: int, answer: str, action: Action) -> str | None:
        """The actor's next message; None where it ends the conversation."""

        def act() -> str | None:
            self._actor = self._actor or self.make_actor(action)  # which may ask a model for a profile
            message: str | None = self._actor.act(answer or "(no text)").structured_output.message
            return message if message and self._actor.has_next() else None

        return await default_threads.run(act)


def user_agent(model: Model, system_prompt: str, **options: Any) -> Agent:
    """An agent that plays a user, without the SDK's defaults that print, retry, and keep 40 messages."""
    return Agent(
        model=model,
        system_prompt=system_prompt,
        conversation_manager=NullConversationManager(),
        callback_handler=None,
        retry_strategy=None,
        agent_id=uuid.uuid4().hex,
        **options,
    )


async def ask(user: Agent, message: str) -> str:
    """The reply of a user played by an agent, without its reasoning; `RuntimeError` if it was cut off.

    A cut reply means that the conversation is broken, not truncated.
    """
    try:
        result = await user.invoke_async(message)
    except MaxTokensReachedException:
        limit = getattr(user.model, "length_limit", None)
        if TerminationReason.from_length_limit(limit) is not TerminationReason.MAX_TOKENS_REACHED:
            raise
        raise RuntimeError(
            f"the reply of the simulated user {user.name!r} was cut off: allow its model more tokens a reply"
        ) from None
    return spoken_text(result.message).strip()  # the assistant must not hear the reasoning
