"""Histories as chains of messages, and how they are followed through the turns of an episode.

A client sends the whole history with every call. It is compared with earlier ones once, where it is read
(`conversation.history_reader`): the known part is the same chain again. Findings about a history (its canonical form,
its path) are kept on the chain, so that the cost of the next call is that of its new messages.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import reduce
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

from .message import Message, digest, digest_after
from .turn import Role, Turn

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class History:
    """A history: its last message, and the history before that message; the empty one has neither.

    Attributes:
        facts: Findings about it, by name; None without any, as for most histories of an episode.
    """

    before: History | None = field(default=None, repr=False)
    last: Message | None = None
    facts: dict[Hashable, Any] | None = field(default=None, repr=False)
    _key: bytes = field(default=b"", init=False, repr=False)
    _listed: list[Message] | None = field(default=None, init=False, repr=False)

    def and_then(self, messages: Iterable[Message]) -> History:
        """The history that goes on with these messages."""
        return reduce(History, messages, self)

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __reversed__(self) -> Iterator[Message]:
        at = self
        while at.before is not None and at.last is not None:
            yield at.last
            at = at.before

    # Without a call per message, here and below: every turn asks.

    @property
    def messages(self) -> Sequence[Message]:
        """All messages. They are kept as a list where they were asked for last, not at every message of an episode."""
        known, new = self, list[Message]()
        while (listed := known._listed) is None and known.before is not None and known.last is not None:
            new += (known.last,)
            known = known.before
        if new or listed is None:
            listed = self._listed = [*(listed or ()), *new[::-1]]
            if new:
                known._listed = None
        return listed

    def since(self, earlier: History) -> list[Message]:
        """The messages behind those of a history that it begins with."""
        at, new = self, list[Message]()
        while at is not earlier and at.before is not None and at.last is not None:
            new += (at.last,)
            at = at.before
        return new[::-1]

    def recall(self, name: Hashable) -> History:
        """The longest history that it is, or begins with, of which this fact is known; otherwise the empty one."""
        known = self
        while (known.facts is None or name not in known.facts) and known.before is not None:
            known = known.before
        return known

    def fact(self, name: Hashable, default: T) -> T:
        """A fact of this very history, or the default."""
        return default if self.facts is None else self.facts.get(name, default)

    def note(self, name: Hashable, fact: Any) -> None:
        """Keep a fact."""
        if self.facts is None:
            self.facts = {}
        self.facts[name] = fact

    def forget(self, name: Hashable) -> None:
        """Drop a fact, if it is known."""
        if self.facts is not None and self.facts.pop(name, None) is not None and not self.facts:
            self.facts = None

    def derive(self, name: Hashable, go_on: Callable[[T | None, list[Message]], T]) -> T:
        """A fact, which `go_on` makes from that of the longest history before and the messages behind it."""
        known = self.recall(name)
        before = cast("T | None", known.fact(name, None))
        if known is self and self.facts is not None and name in self.facts:
            return cast(T, before)
        fact = go_on(before, self.since(known))
        self.note(name, fact)
        return fact

    @property
    def key(self) -> bytes:
        """Digest of all messages, also across processes; made when it is asked for."""
        unknown, at = list[History](), self
        while at.before is not None and not at._key:
            unknown.append(at)
            at = at.before
        for each in reversed(unknown):
            assert each.before is not None and each.last is not None
            each._key = digest_after(each.before._key, each.last)
        return self._key


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
        length: Number of messages that were followed.
        turn: The last held turn that was met.
        matched: Number of messages up to and including it.
        unmatched: Why an assistant message after it is not a sample made at that place, or None where there is none.
    """

    key: bytes
    length: int = 0
    turn: Turn | None = None
    matched: int = 0
    unmatched: RootReason | None = None


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
    by_input: dict[bytes, tuple[Turn, ...] | Turn] = field(default_factory=dict)
    """Turns by their key: nearly always one, which needs no tuple."""
    by_reply: dict[tuple[tuple[str, ...], str], list[Turn]] = field(default_factory=dict)
    """The first `sorted_turns` turns by call ids and text."""
    sorted_turns: int = 0
    by_step: dict[str, tuple[Turn, ...] | Turn] = field(default_factory=dict)
    """Turns by the mark of their step, of any agent."""
    fates: dict[int, Fate] = field(default_factory=dict)
    attributed: dict[int, tuple[Role, str | None]] = field(default_factory=dict)
    """Role and parent of turns whose caller was not known when they were sampled, by index."""
    current: Turn | None = None
    sampled: int = 0
    call_count: int = 0
    given_ids: set[str] = field(default_factory=set)
    foreign_ids: set[str] = field(default_factory=set)
    memory: object | None = None
    """Names the walks of this episode among the facts of histories; None where each is followed from its start."""

    def add(self, turn: Turn, context: bytes) -> None:
        """Append a turn."""
        self.turns.append(turn)
        self.contexts.append(context)
        held = self.by_input.setdefault(turn.key, turn)
        if held is not turn:
            self.by_input[turn.key] = (*_each(held), turn)
        if turn.attempt is not None:
            held = self.by_step.setdefault(turn.attempt, turn)
            if held is not turn:
                self.by_step[turn.attempt] = (*_each(held), turn)
        self.given_ids.update([call.id for call in turn.calls])

    def with_input(self, key: bytes) -> tuple[Turn, ...]:
        """Turns whose input has this digest."""
        return _each(self.by_input.get(key, ()))

    def with_step(self, agent_id: str | None, attempt: str) -> list[Turn]:
        """Turns of one step of an agent."""
        return [turn for turn in _each(self.by_step.get(attempt, ())) if turn.agent_id == agent_id]

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
    """Takes any turn that fits, of any agent."""

    records: Records
    context: bytes
    agent: str | None
    agent_id: str | None
    role: Role = Role.MAIN
    seen: list[Turn] = field(default_factory=list)
    """Turns whose replies stand in the part of the history that was followed."""

    def follow_on(self, caller: Hashable, history: History) -> Walk:
        """Follow a history from where the last one of `caller` that it begins with ended."""
        start = Walk(key=self.context)
        if self.records.memory is None:
            return self.follow(start, history.messages)
        name = self.records.memory, caller
        known = history.recall(name)
        walk = self.follow(known.fact(name, start), history.messages)
        if known is not history:  # the longest is enough: a history that branches off before is followed anew
            known.forget(name)
            history.note(name, walk)
        return walk

    def follow(self, walk: Walk, messages: Sequence[Message]) -> Walk:
        """Go on with a history from where its first messages led."""
        key, start, turn, matched, unmatched = walk
        end = len(messages)
        for i in range(start, end):
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
        return Walk(key, end, turn, matched, unmatched)

    def _reach(self, turn: Turn, messages: Sequence[Message], start: int) -> int:
        """Index up to which a history goes on as calls after this turn did, which tells equal samples apart."""
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
        candidates = self.records.with_input(key)
        if not candidates:
            return ()
        matching = [turn for turn in candidates if turn.reply.is_seen_in(observed)]
        # A client may name calls by its own ids; ids that were given out here can only mean those very calls.
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


def _each(held: tuple[Turn, ...] | Turn) -> tuple[Turn, ...]:
    return held if isinstance(held, tuple) else (held,)


def _key_after(turn: Turn) -> bytes:
    """Turns identify the history before them, so its messages need no digest."""
    return digest(b"turn", turn.index.to_bytes(8, "little"))
