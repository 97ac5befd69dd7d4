"""The state of a session, which its log keeps and a restart restores, without HTTP and without answers in flight."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..conversation import Conversation
from ..conversation.messages import to_strands
from ..trajectory import History, Trajectory, Turn
from .answers import Answers
from .counters import Counters
from .reward import Reward
from .session_options import SessionOptions
from .telemetry import Telemetry
from .translation import Translation


@dataclass(slots=True, eq=False)
class MainAgent:
    """The agent that began, among those with tools or those without: its last turn, and the history up to it."""

    name: str | None
    turn: Turn | None = None
    history: History = field(default_factory=History)


@dataclass(slots=True, eq=False, kw_only=True)
class SessionState:
    """A rollout as its events leave it.

    Attributes:
        id: Its name in paths.
        clients: Counters by client.
        secret: Key of its receipts, and of the ids that clients are given.
        main_agents: The agent that began, by whether it has tools.
        began: Time of the first request, or None.
        has_ended: The final answer was asked for.
        reward: The reward that was set, or None before.
        is_reward_final: The reward has been exported, or was sent with the close: it does not change any more.
        is_sealed: Later requests are refused.
    """

    id: str
    conversation: Conversation
    options: SessionOptions = field(default_factory=SessionOptions)
    labels: Mapping[str, Any] = field(default_factory=dict)
    telemetry: Telemetry = field(default_factory=Telemetry)
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    clients: dict[str, Counters] = field(default_factory=dict)
    main_agents: dict[bool, MainAgent] = field(default_factory=dict)
    began: float | None = None
    has_ended: bool = False
    reward: Reward | None = None
    is_reward_final: bool = False
    is_sealed: bool = False
    translation: Translation = field(init=False)
    answers: Answers = field(init=False)

    @property
    def counters(self) -> Counters:
        """Counts of all clients together, as they are now."""
        return sum(self.clients.values(), Counters())

    @property
    def trajectories(self) -> list[Trajectory]:
        """Every path of the session; each sampled token carries loss in exactly one of them."""
        return self.conversation.trajectories

    @property
    def history(self) -> list[dict[str, Any]]:
        """The conversation of the main agent with its last reply, as Strands messages.

        The main agent is the one that began. Requests without tools (titles, summaries) count only without others.
        """
        return list(map(to_strands, self.main_agent.history))

    @property
    def last_turn(self) -> Turn | None:
        """The turn that gave the last reply of `history`."""
        return self.main_agent.turn

    @property
    def main_agent(self) -> MainAgent:
        """The agent that began: one with tools, if any has been seen."""
        return self.main_agents.get(True) or self.main_agents.get(False) or MainAgent(None)
