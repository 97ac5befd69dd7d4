"""The state of a session, without HTTP and without answers in flight: its log keeps it, and a restart restores it.

An answer is written down before its first byte is sent, so a client never knows of a turn that a restart forgets. Its
fate (delivered, cut, failed) follows. After a kill, an answer of which nothing follows may have been read: its
turn counts as used, and the next equal request gets the same answer.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..backends.records import from_json, to_json
from ..conversation import Conversation, SampledTurn
from ..conversation.messages import to_strands
from ..exceptions import StateFullError
from ..trajectory import History, Location, Trajectory, Turn
from ..trajectory.forest import ForestFacts
from .answers import Answer, Answers
from .counters import Counters
from .dialects import RESPONSES
from .reward import Reward
from .session_options import SessionOptions
from .state import LogFile
from .telemetry import Telemetry
from .translation import Translation

_LOCATED = ("key", "agent", "agent_id", "attempt", "role", "parent_agent")
_COMMITTED = ("prompt_ids", "completion", "reply", "calls", "media", "is_constrained", "is_recalled")


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


class SessionLog:
    """Writes the events of a session to a file."""

    def __init__(self, session: SessionState, file: LogFile) -> None:
        self._session, self.file = session, file
        self._facts = ForestFacts()
        self._counts: dict[str, dict[str, Any]] = {}
        self._histories: dict[bytes, int] = {}  # the order of those written, by key
        self._history_count = 0
        self._kept: set[int] = set()

    # ---- writing ------------------------------------------------

    def note_question(self, answer: Answer, *, agent: str | None, has_tools: bool) -> None:
        """An answer begins to be sampled."""
        clients = self._session.clients
        self.note(
            asked=answer.number,
            key=answer.key.hex(),
            client=next((name for name, counters in clients.items() if counters is answer.counters), ""),
            created=answer.created,
            is_final=answer.is_final,
            agent=agent,
            has_tools=has_tools,
        )

    def note_answer(self, answer: Answer, history: History) -> None:
        """An answer to a history was sampled."""
        if self.file.is_closed:
            return
        sampled, session = answer.task.result(), self._session
        turn = sampled.turn
        event: dict[str, Any] = {"turn": turn_to_json(turn, session.conversation.forest.context_of(turn))}
        event |= {"stop": [sampled.stop_reason, sampled.stop_string], "think_end": sampled.think_end}
        for has_tools, main in session.main_agents.items():
            if main.turn is turn:
                event["main"] = [has_tools, self._history_to_json(history)]
        self.note_fate(answer, **event)

    def note_history(self, answer: Answer, history: History) -> None:
        """An answer can be named instead of its history, which is here as the client sent it."""
        if not self.file.is_closed and answer.number not in self._kept:
            self._kept.add(answer.number)
            self.note(answer=answer.number, kept=self._history_to_json(history))

    def note_fate(self, answer: Answer, **event: Any) -> None:
        """Log the fate of an answer."""
        self.note(answer=answer.number, fate=[answer.is_owed, answer.is_delivered, answer.is_lost], **event)

    def note(self, *, is_held: bool = True, **event: Any) -> None:
        """An event, with the changes of forest and counters since the last one.

        Raises:
            StateFullError: See `LogFile.append`.
        """
        if self.file.is_closed:
            return
        facts, before, counts_before = self._session.conversation.forest.facts(), self._facts, self._counts
        if facts != before:
            fates = {index: fate for index, fate in facts.fates.items() if before.fates.get(index) != fate}
            foreign = sorted(set(facts.foreign_ids).difference(before.foreign_ids))
            event["forest"] = [list(fates.items()), facts.current, facts.call_count, foreign]
            self._facts = facts
        clients = self._session.clients.items()
        counts = {name: {n: count for n, count in each.values().items() if count} for name, each in clients}
        if changed := {name: each for name, each in counts.items() if self._counts.get(name) != each}:
            event["counters"] = changed
            self._counts = counts
        try:
            self.file.append(event, is_held=is_held)
        except StateFullError:
            self._facts, self._counts = before, counts_before  # the next event has the changes
            raise

    def _history_to_json(self, history: History) -> list[Any]:
        """A history as the number of the earlier one that it begins with, and the other messages."""
        known = history
        while known.before is not None and known.key not in self._histories:
            known = known.before
        base = self._histories.get(known.key)
        self._histories[history.key] = self._history_count
        self._history_count += 1
        return [base, to_json(history.since(known))]

    # ---- reading ------------------------------------------------

    def restore(self, events: Iterator[Mapping[str, Any]]) -> None:
        """Bring the session to where its log ends."""
        session = self._session
        answers: dict[int, Answer] = {}
        histories: dict[int | None, History] = {None: History()}

        def read_history(value: list[Any]) -> History:
            base, new = value
            history = histories[base].and_then(from_json(new))
            histories[self._history_count] = history
            self._histories[history.key] = self._history_count
            self._history_count += 1
            return history

        for event in events:
            self._counts.update(event.get("counters", {}))
            for name, counts in event.get("counters", {}).items():
                session.clients.setdefault(name, Counters()).set(counts)
            if "asked" in event:
                answers[event["asked"]] = self._restore_question(event)
            if "answer" in event:
                answer = answers[event["answer"]]
                if "turn" in event:
                    turn = self._restore_answer(answer, event)
                    session.has_ended |= answer.is_final
                    if "main" in event:
                        has_tools, history = event["main"]
                        main = session.main_agents[has_tools]
                        main.turn, main.history = turn, History(read_history(history), turn.reply)
                if "kept" in event:
                    self._kept.add(answer.number)
                    readings = session.translation.readings(RESPONSES)
                    turn = answer.task.result().turn
                    session.translation.keep_response(readings, read_history(event["kept"]), turn)
                if "fate" in event:
                    answer.is_owed, answer.is_delivered, answer.is_lost = event["fate"]
            if "reward" in event:
                reward, names = event["reward"], session.translation.turn_names()
                session.reward = Reward.of(reward["reward"], reward["turns"], reward["info"], names)
            session.is_sealed |= event.get("closed", False)
            session.is_reward_final |= event.get("is_final", False)
            if "forest" in event:
                fates, current, call_count, foreign = event["forest"]
                before = self._facts
                foreign_ids = frozenset((*before.foreign_ids, *foreign))
                self._facts = ForestFacts({**before.fates, **dict(fates)}, current, call_count, foreign_ids)
        session.telemetry.restored += session.counters
        session.conversation.forest.restore(self._facts)
        for answer in answers.values():
            # Nobody knows whether a client has it: it is there for whoever repeats its request.
            if answer.is_lost:
                answer.turn = None
            answer.is_owed |= answer.turn is not None and not answer.is_delivered
            answer.is_lost |= answer.turn is None

    def _restore_question(self, event: Mapping[str, Any]) -> Answer:
        session = self._session
        answer = Answer(
            key=bytes.fromhex(event["key"]),
            counters=session.clients.setdefault(event["client"], Counters()),
            is_final=event["is_final"],
            created=event["created"],
        )
        answer.task = asyncio.get_running_loop().create_future()
        session.answers.add(answer)
        session.main_agents.setdefault(event["has_tools"], MainAgent(event["agent"]))
        if session.began is None:
            session.began = time.monotonic() - (time.time() - event["at"])
        return answer

    def _restore_answer(self, answer: Answer, event: Mapping[str, Any]) -> Turn:
        turn = answer.turn = restore_turn(self._session.conversation, event["turn"])
        self._session.translation.name_calls(turn)
        stop_reason, stop_string = event["stop"]
        answer.task.set_result(
            SampledTurn(turn=turn, stop_reason=stop_reason, stop_string=stop_string, think_end=event["think_end"])
        )
        return turn


def turn_to_json(turn: Turn, context: bytes) -> dict[str, Any]:
    """A turn; `context` is that of its location."""
    values = {name: to_json(getattr(turn, name)) for name in (*_LOCATED, *_COMMITTED)}
    return {"parent": None if turn.parent is None else turn.parent.index, "context": to_json(context), **values}


def restore_turn(conversation: Conversation, value: Mapping[str, Any]) -> Turn:
    """Commit a turn again, which `turn_to_json` wrote."""
    forest, read = conversation.forest, {name: from_json(each) for name, each in value.items()}
    parent = None if read["parent"] is None else forest.turns[read["parent"]]
    place = {name: read[name] for name in ("context", *_LOCATED)}
    location = Location(parent=parent, first_new=0, epoch=forest.epoch, **place)
    return conversation.commit(location, **{name: read[name] for name in _COMMITTED})
