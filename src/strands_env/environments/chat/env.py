"""`ChatEnv`: a conversation of several turns in one step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from strands import Agent
from strands.agent.agent_result import AgentResult

from strands_env.core import Action, Environment, Observation

from .user import ScriptedUser, SimulatedUser


class ChatEnv(Environment):
    """An assistant and a simulated user talk until the user is done.

    The action's message is the user's first. The assistant's model sees one conversation, so its tokens are one
    trajectory in which only the assistant's own tokens carry loss; a user played by a model has a trajectory of its own
    in `StepResult.trajectories`. Without a user, or with `max_user_turns=0`, a step is one exchange.

    Args:
        user: The simulated user, or a list of what it says after its first message. None for a single exchange.
        max_user_turns: Messages of the user after the first.
        tools: Tools of the assistant.
        **options: Further arguments of `Environment`.

    Raises:
        ValueError: `max_user_turns` is negative.
    """

    default_system_prompt_path = Path(__file__).parent / "system_prompt.md"

    def __init__(
        self,
        *,
        user: SimulatedUser | Sequence[str] | None = None,
        max_user_turns: int = 10,
        tools: Sequence[Any] = (),
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if isinstance(max_user_turns, bool) or not isinstance(max_user_turns, int) or max_user_turns < 0:
            raise ValueError(f"max_user_turns must be a number of messages, 0 or more, got {max_user_turns!r}")
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
