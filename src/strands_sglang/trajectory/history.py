"""Follows histories through the turns of an episode, with a memory, so that the next call follows only new messages.

A client sends the whole history with every call. Following it costs microseconds a message, which adds up over
hundreds of turns. So followed messages are kept, and one comparison of lists in C finds where to go on: a message that
was read once is the same object in every history.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Generic, NamedTuple, TypeVar

from .message import Message, digest, digest_after
from .turn import Role, Turn

_CAPACITY = 64  # histories that are remembered; a forgotten one is followed from its start


class RootReason(StrEnum):
    """Reason for a new root."""

    FIRST = "first"
    """Nothing of the history was sampled here, and it holds no reply: a conversation begins."""
    CONTEXT = "context"
    """The same conversation under another system prompt, other tools or template arguments."""
    EDITED = "edited"
    """At the place of a sample stands another reply."""
    HISTORY = "history"
    """The messages before a reply changed (trimmed, summarised, rewritten), or the reply comes from elsewhere."""
    REQUESTED = "requested"
    """The caller, or the reasoning policy `branch`, asked for a fresh prompt."""


class Walk(NamedTuple):
    """The end of the part of a history that is held.

    Attributes:
        key: Digest so far.
        turn: The last held turn that was met.
        matched: Number of messages up to and including it.
        unmatched: Why an assistant message after it is not a sample made at that place, or None where there is none.
    """

    key: bytes
    turn: Turn | None = None
    matched: int = 0
    unmatched: RootReason | None = None


V = TypeVar("V")


class FollowedHistory(NamedTuple, Generic[V]):
    """A history that was followed, and where to; `context` is what else that depends on."""

    context: Hashable
    messages: list[Message]
    end: V


class HistoryMemory(Generic[V]):
    """The most recent histories and where each led."""

    def __init__(self) -> None:
        self._histories: list[FollowedHistory[V]] = []

    def recall(self, context: Hashable, messages: Sequence[Message]) -> FollowedHistory[V] | None:
        """The longest history of this context that these messages are, or begin with."""
        best: FollowedHistory[V] | None = None
        # The longest: a shorter one of the same conversation would have its messages followed again.
        for known in self._histories:
            longer = best is None or len(known.messages) > len(best.messages)
            if longer and known.context == context and messages[: len(known.messages)] == known.messages:
                best = known
        return best

    def remember(self, history: FollowedHistory[V], *, recalled: FollowedHistory[V] | None) -> None:
        """Keep a followed history, in place of the recalled one that it continues."""
        others = [known for known in self._histories if known is not recalled]
        self._histories = [*others[-(_CAPACITY - 1) :], history]


class Fate(StrEnum):
    """Known facts about a committed sample."""

    USED = "used"
    UNDELIVERED = "undelivered"
    DISCARDED = "discarded"


LOST_FATES = frozenset({Fate.UNDELIVERED, Fate.DISCARDED})


@dataclass(slots=True, kw_only=True)
class Records:
    """All of an episode."""

    turns: list[Turn] = field(default_factory=list)
    contexts: list[bytes] = field(default_factory=list)
    """The context of every turn."""
    by_input: dict[bytes, list[Turn]] = field(default_factory=dict)
    by_reply: dict[tuple[tuple[str, ...], str], list[Turn]] = field(default_factory=dict)
    """The first `sorted_turns` turns by call ids and text."""
    sorted_turns: int = 0
    by_step: dict[tuple[str | None, str], list[Turn]] = field(default_factory=dict)
    fates: dict[int, Fate] = field(default_factory=dict)
    attributed: dict[int, tuple[Role, str | None]] = field(default_factory=dict)
    """Role and parent of turns whose caller was not known when they were sampled, by index."""
    current: Turn | None = None
    sampled: int = 0
    call_count: int = 0
    given_ids: set[str] = field(default_factory=set)
    foreign_ids: set[str] = field(default_factory=set)
    memory: HistoryMemory[Walk] | None = None

    def with_reply(self, observed: Message) -> list[Turn]:
        """Turns with these calls and this text. Only a history that was edited asks, so they are sorted then."""
        for turn in self.turns[self.sorted_turns :]:
            self.by_reply.setdefault(turn.reply.visible, []).append(turn)
        self.sorted_turns = len(self.turns)
        return self.by_reply.get(observed.visible, [])


@dataclass(slots=True)
class Follower:
    """Follows a history through the forest for one agent."""

    ANYONE: ClassVar[str] = "*"
    """Takes whatever turn fits, whoever sampled it."""

    records: Records
    context: bytes
    agent: str | None
    agent_id: str | None
    role: Role = Role.MAIN
    seen: list[Turn] = field(default_factory=list)
    """Turns whose replies stand in the part of the history that was followed."""

    def follow_from_memory(self, caller: Hashable, messages: Sequence[Message]) -> Walk:
        """Follow a history from where the last one of `caller` ended."""
        memory = self.records.memory
        if memory is None:
            return self.follow(Walk(key=self.context), messages, 0)
        history = list(messages)
        known = memory.recall(caller, history)
        before, done = (known.end, len(known.messages)) if known is not None else (Walk(key=self.context), 0)
        walk = self.follow(before, history, done)
        memory.remember(FollowedHistory(caller, history, walk), recalled=known)
        return walk

    def follow(self, walk: Walk, messages: Sequence[Message], start: int) -> Walk:
        """Go on with `messages[start:]` from where the messages before led."""
        key, turn, matched, unmatched = walk.key, walk.turn, walk.matched, walk.unmatched
        for i in range(start, len(messages)):
            message = messages[i]
            if message.role == "assistant":
                if turns := self._turns_at(key, message):
                    found = turns[0]
                    if len(turns) > 1:
                        reach = [self._reach(turn, messages, i + 1) for turn in turns]
                        found = turns[reach.index(max(reach))]
                    self.seen.append(found)
                    key = _key_after(found)
                    turn, matched, unmatched = found, i + 1, None
                    continue
                unmatched = unmatched or self._reason(key, message)
            key = digest_after(key, message)
        return Walk(key=key, turn=turn, matched=matched, unmatched=unmatched)

    def _reach(self, turn: Turn, messages: Sequence[Message], start: int) -> int:
        """Index up to which a history goes on as calls after this turn did: what tells equal samples apart."""
        keys, reach = [_key_after(turn)], start
        for i in range(start, len(messages)):
            message, turns = messages[i], list[Turn]()
            if message.role == "assistant":
                turns = [each for key in keys for each in self._turns_at(key, message)]
            keys = [_key_after(each) for each in turns] or [digest_after(key, message) for key in keys]
            if turns or not self.records.by_input.keys().isdisjoint(keys):
                reach = i + 1
        return reach

    def _turns_at(self, key: bytes, observed: Message) -> Sequence[Turn]:
        """The turns sampled at this place that an assistant message may be, the likeliest first."""
        candidates = self.records.by_input.get(key)
        if not candidates:
            return ()
        matching = [turn for turn in candidates if turn.reply.is_seen_in(observed)]
        # A client may name calls by ids of its own; ids that were given out here can only mean those very calls.
        if not matching and self.records.given_ids.isdisjoint(observed.call_ids):
            matching = [turn for turn in candidates if turn.reply.is_seen_in(observed, with_ids=False)]
        if proved := [turn for turn in matching if turn.index == observed.receipt]:
            return proved
        own = [turn for turn in matching if self.agent_id in (turn.agent_id, self.ANYONE)]
        # Who is not known by its identity may be known by its name, unless several of that name answered alike. Roles
        # do not mix on a path, for it is trained or not as a whole.
        if not own and not any(turn.agent_id == self.agent_id for turn in candidates):
            own = [turn for turn in matching if None in (turn.agent, self.agent) or turn.agent == self.agent]
            own = [turn for turn in own if turn.role is self.role]
            if len({turn.agent_id for turn in own}) > 1:
                return ()
        return own if len(own) < 2 else self._by_likelihood(own, observed)

    def _by_likelihood(self, turns: Sequence[Turn], observed: Message) -> Sequence[Turn]:
        """Equal samples of one agent, the best match first: same reasoning, not discarded, and the latest."""
        fates = self.records.fates
        return sorted(
            turns,
            key=lambda turn: (
                turn.reply.reasoning.strip() == observed.reasoning.strip(),
                fates.get(turn.index) not in LOST_FATES,
                turn.index,
            ),
            reverse=True,
        )

    def _reason(self, key: bytes, observed: Message) -> RootReason:
        """Why an assistant message is not a turn at its place; marks a sample of its agent found in it as used."""
        own = [turn for turn in self.records.with_reply(observed) if turn.reply.is_seen_in(observed)]
        own = [turn for turn in own if turn.agent_id == self.agent_id]
        if own:
            turn = self._by_likelihood(own, observed)[0]
            self.seen.append(turn)
            if self.records.contexts[turn.index] != self.context:
                return RootReason.CONTEXT
        return RootReason.EDITED if key in self.records.by_input else RootReason.HISTORY


def _key_after(turn: Turn) -> bytes:
    """What came before a turn is known by the turn, so its messages need no digest of their own."""
    return digest(b"turn", turn.index.to_bytes(8, "little"))
