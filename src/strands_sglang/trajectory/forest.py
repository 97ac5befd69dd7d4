"""The trajectory forest: every token that was sent or sampled, the path each call extends, and the fate of each sample.

**Which path a call extends.** Turns form trees. A call is located by its history: a chain of the keys of its messages:

- the input of an earlier call again: another sample of it is wanted; a sibling turn;
- a held path plus new messages that are not assistant turns: the normal case; extend it;
- anything else (trimmed, summarised or edited history, another system prompt, other tools): a new root.

A reply in the history is a turn of this forest if it stands at the place where that turn was sampled and its call ids,
text and reasoning agree. Agents come first: a call extends turns of its own agent. Where its agent never sampled at
that place (a new agent object goes on with a conversation, a snapshot is loaded elsewhere), it may go on with the turn
of another agent of the same name and role, provided that only one agent can be meant. Anything else is a new root:
exact, but slower.

**The fate of a sample.** A sample counts as used unless a recorded fact says that it was thrown away.

These facts prove use:

- the reply stands in the history of a later call of its agent, also one that starts a new root;
- the caller reports that it keeps the reply (`keep`): the SDK added it to the agent's messages.

These facts prove that a sample was thrown away, unless one of those above is known or follows:

- its agent asks again within the same step (`attempt`): a retry, a rejected answer, a second sample by middleware;
- another sample of the same step is proved to be used: a step keeps one;
- the caller reports it (`discard`), or began to deliver the reply and never finished (`delivering`): the stream was
  closed, the call was cancelled, the invocation ended without the reply among the agent's messages.

Nothing is committed by a call that fails or is cancelled. All methods may be called from several threads.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple, NoReturn

from ..exceptions import TrajectoryError
from .history import LOST_FATES, Fate, Follower, History, Records, RootReason
from .media import Medium, media_growth
from .message import Message
from .turn import CallOrigin, Completion, Role, ToolCall, Turn
from .views import Trajectory


class ForestFacts(NamedTuple):
    """Facts of a forest beyond its turns.

    Attributes:
        fates: What became of samples, by the index of the turn; those of which nothing is known are left out.
        current: Index of the end of the current path, or None.
        call_count: Number of call ids that were given out.
        foreign_ids: Call ids of supplied histories.
    """

    fates: Mapping[int, str] = {}
    current: int | None = None
    call_count: int = 0
    foreign_ids: Collection[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Location(CallOrigin):
    """The place of a call in the forest.

    Attributes:
        key: Digest of the whole input.
        context: Digest of the text printed before the messages.
        parent: The turn to extend, or None for a new root.
        first_new: Index of the first message whose tokens are not held yet (0 for a new root).
        reason: Why it is a new root; None where it extends a path.
        epoch: The forest's epoch at the time.
    """

    key: bytes
    context: bytes
    parent: Turn | None
    first_new: int
    reason: RootReason | None = None
    epoch: int = 0

    def as_root(self) -> Location:
        """The same call, but with the whole history rendered afresh."""
        return replace(self, parent=None, first_new=0, reason=RootReason.REQUESTED)


class TrajectoryForest:
    """All turns of one conversation, in order of commit.

    Args:
        has_memory: Follow a history from where its last call ended; False follows each from its start.
    """

    def __init__(self, *, has_memory: bool = True) -> None:
        self._lock = threading.RLock()
        self._epoch = 0
        self._has_memory = has_memory
        self._records = self._no_records()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a trajectory forest cannot be copied or pickled: give every rollout its own model (they may share "
            "client= and tokenizer=); to branch one, use agent.take_snapshot() and load_snapshot()"
        )

    def reset(self) -> None:
        """Forget every turn. Call ids start over."""
        with self._lock:
            self._records = self._no_records()
            self._epoch += 1

    def _no_records(self) -> Records:
        return Records(memory=object() if self._has_memory else None)

    @property
    def epoch(self) -> int:
        """Counts resets, so that a call in flight across a reset is not committed into the new episode."""
        return self._epoch

    @property
    def turns(self) -> tuple[Turn, ...]:
        """All turns in order of commit."""
        return tuple(self._records.turns)

    @property
    def current(self) -> Turn | None:
        """The end of the current path: the turn committed last, or the one kept in its place.

        Turns of sub-agents, summaries and tools count only where no main agent has one.
        """
        return self._records.current

    @property
    def sampled_tokens(self) -> int:
        """Number of tokens sampled in all turns, thrown-away samples included."""
        return self._records.sampled

    def trajectories(self) -> list[Trajectory]:
        """Every path, with each sampled token trained in exactly one of them; thrown-away samples come last."""
        with self._lock:
            lost = {index for index, fate in self._records.fates.items() if fate in LOST_FATES}
            records = self._records
            exported = _export(records.turns, discarded=lost, current=records.current)
            for path in exported:
                if (found := records.attributed.get(path.order[-1])) is not None:
                    path.role, path.parent = found
                    path.trainable = path.role.is_agent
            return exported

    # ---- locating ------------------------------------------------

    def locate(self, context: bytes, history: History, caller: CallOrigin) -> Location:
        """Find the path a call extends, and record what the call proves about earlier samples.

        Args:
            context: Digest of the text printed before the messages and fixed for a path: system prompt, tools, template
                arguments.
            caller: Who asks; known by its name where it has no `agent_id`.
        """
        with self._lock:
            agent_id = caller.agent if caller.agent_id is None else caller.agent_id
            if caller.attempt is not None:
                # The same step again: the caller would not repeat it had it kept the first answer.
                for earlier in self._records.with_step(agent_id, caller.attempt):
                    self._discard(earlier)
            follower = Follower(self._records, context, caller.agent, agent_id, caller.role)
            walk = follower.follow_on((context, caller.agent, agent_id), history)
            # A reply that stands in a history was used, even if it was believed lost.
            for turn in follower.seen:
                self._keep(turn)
            reason = walk.unmatched
            if reason is None and (walk.turn is None or walk.matched == walk.length):
                # Nothing can be appended to a reply; neither can a reply that nobody sampled here.
                reason = RootReason.FIRST if walk.turn is None else RootReason.HISTORY
            return Location(
                key=walk.key,
                context=context,
                parent=walk.turn if reason is None else None,
                first_new=walk.matched if reason is None else 0,
                reason=reason,
                epoch=self._epoch,
                agent=caller.agent,
                agent_id=agent_id,
                role=caller.role,
                parent_agent=caller.parent_agent,
                attempt=caller.attempt,
            )

    def held_part(self, context: bytes, history: History) -> tuple[Turn | None, int]:
        """The last turn of this history that is held, whoever sampled it, and the number of messages up to it."""
        with self._lock:
            follower = Follower(self._records, context, None, Follower.ANYONE)
            walk = follower.follow_on((context, Follower.ANYONE), history)
            return (None, 0) if walk.unmatched is not None else (walk.turn, walk.matched)

    # ---- recording ------------------------------------------------

    def commit(
        self,
        location: Location,
        *,
        prompt_ids: array[int],
        completion: Completion,
        reply: Message,
        calls: Sequence[ToolCall] = (),
        media: Sequence[Medium] = (),
        is_constrained: bool = False,
        is_recalled: bool = False,
    ) -> Turn:
        """Record a finished call.

        Args:
            location: Where it belongs, from `locate`.
            prompt_ids: The ids that were appended to the path before sampling.
            reply: The reply as the caller is given it, by which it is recognised.
            is_constrained: A grammar decided which tokens could be sampled.
            is_recalled: It was sampled in another forest, which trains it.

        Raises:
            TrajectoryError: The forest was reset since the call was located.
        """
        with self._lock:
            records, parent = self._records, location.parent
            if location.epoch != self._epoch:
                raise TrajectoryError(
                    "the trajectory was reset while a call on it was in flight; the sample is dropped"
                )
            turn = Turn(
                index=len(records.turns),
                parent=parent,
                key=location.key,
                reply=reply,
                prompt_ids=prompt_ids,
                completion=completion,
                calls=tuple(calls),
                media=tuple(media),
                is_constrained=is_constrained,
                is_recalled=is_recalled,
                start=parent.end if parent is not None else 0,
                growth=(parent.growth if parent is not None else 0) + media_growth(media),
                **location.origin,
            )
            records.add(turn, location.context)
            # Budgets count the tokens that this episode sampled, and a recalled turn was paid for elsewhere.
            if not is_recalled:
                records.sampled += len(completion.output_ids)
            held = records.current
            if turn.role is Role.MAIN or held is None or held.role is not Role.MAIN:  # helpers do not hide the agent
                records.current = turn
            return turn

    def show(self, turn: Turn) -> None:
        """Make a turn the end of the current path, which the linear views show."""
        with self._lock:
            if self._is_held(turn):
                self._records.current = turn

    def keep(self, turn: Turn) -> None:
        """Record that the caller uses a reply."""
        with self._lock:
            if self._is_held(turn):
                self._keep(turn)

    def discard(self, turn: Turn) -> None:
        """Record that the caller threw a reply away."""
        with self._lock:
            if self._is_held(turn):
                self._discard(turn)

    def attribute(self, turn: Turn, role: Role, parent: str | None) -> None:
        """Record the caller of a turn that was unknown when it was sampled."""
        with self._lock:
            if self._is_held(turn):
                self._records.attributed[turn.index] = role, parent

    @contextmanager
    def delivering(self, turn: Turn) -> Iterator[None]:
        """Until the block ends well, a reply that is handed on in it counts as thrown away."""
        with self._lock:
            if self._is_held(turn):
                self._records.fates.setdefault(turn.index, Fate.UNDELIVERED)
        try:
            yield
        except BaseException:  # the stream was closed: the caller throws the answer away
            self.discard(turn)
            raise
        with self._lock:
            if self._is_held(turn) and self._records.fates.get(turn.index) is Fate.UNDELIVERED:
                del self._records.fates[turn.index]

    def discard_undelivered(self, turn: Turn) -> None:
        """Record that a reply was thrown away, unless it was handed on whole."""
        with self._lock:
            if self._is_held(turn) and self._records.fates.get(turn.index) is Fate.UNDELIVERED:
                self._discard(turn)

    def _is_held(self, turn: Turn) -> bool:
        """True for a turn of this episode."""
        turns = self._records.turns
        return turn.index < len(turns) and turns[turn.index] is turn

    def _keep(self, turn: Turn) -> None:
        records = self._records
        if records.fates.get(turn.index) is Fate.USED:
            return
        records.fates[turn.index] = Fate.USED
        if turn.attempt is None:
            return
        # A step keeps one sample, so its others were thrown away.
        others = [t for t in records.with_step(turn.agent_id, turn.attempt) if t is not turn]
        if records.current in others and records.fates.get(records.current.index) is not Fate.USED:
            records.current = turn
        for other in others:
            self._discard(other)

    def _discard(self, turn: Turn) -> None:
        records = self._records
        if records.fates.get(turn.index) is Fate.USED:
            return  # use is proved by a later history, discarding is only concluded
        records.fates[turn.index] = Fate.DISCARDED
        if records.current is turn:
            records.current = turn.parent

    # ---- facts beyond the turns ------------------------------------------------------

    def facts(self) -> ForestFacts:
        """Facts that a forest of the same turns lacks."""
        with self._lock:
            records = self._records
            current = None if records.current is None else records.current.index
            return ForestFacts(dict(records.fates), current, records.call_count, frozenset(records.foreign_ids))

    def restore(self, facts: ForestFacts) -> None:
        """Set the facts beyond the turns, which are committed again."""
        with self._lock:
            records = self._records
            records.fates = {i: Fate(fate) for i, fate in facts.fates.items() if i < len(records.turns)}
            if facts.current is None or facts.current < len(records.turns):  # otherwise of an unreported turn
                records.current = None if facts.current is None else records.turns[facts.current]
            records.call_count, records.foreign_ids = facts.call_count, set(facts.foreign_ids)

    def context_of(self, turn: Turn) -> bytes:
        """The context of a turn's location."""
        return self._records.contexts[turn.index]

    # ---- call ids ------------------------------------------------

    def reserve_call_ids(self, messages: Iterable[Message]) -> None:
        """Keep the call ids of a supplied history out of those handed out later."""
        with self._lock:
            self._records.foreign_ids.update([call.id for message in messages for call in message.calls])

    def next_call_id(self) -> str:
        """A call id new to this episode: nine ASCII alphanumerics, as the strictest template demands."""
        with self._lock:
            # Ids number the calls of an episode, not of the process: a template may print them, and equal seeds must
            # give equal prompts.
            while True:
                call_id = f"call{self._records.call_count:05d}"
                self._records.call_count += 1
                if call_id not in self._records.foreign_ids:
                    return call_id


def _export(turns: Sequence[Turn], *, discarded: Collection[int], current: Turn | None) -> list[Trajectory]:
    """A trajectory for every path of used turns, then one for every discarded turn that nothing follows.

    Each turn is trained in the first trajectory that holds it. A used turn is always held by a path of used turns, so
    leaving the discarded trajectories out loses none of its tokens. Recalled ones are trained by another forest.
    """
    followed: set[int] = set()
    followed_by_used: set[int] = set()
    for turn in reversed(turns):  # a turn is committed after its parent, so its successors are seen before it
        if turn.parent is not None:
            followed.add(turn.parent.index)
            if turn.index not in discarded or turn.index in followed_by_used:
                followed_by_used.add(turn.parent.index)
    used = [turn for turn in turns if turn.index not in discarded and turn.index not in followed_by_used]
    thrown_away = [turn for turn in turns if turn.index in discarded and turn.index not in followed]
    paths = [tuple(leaf.path()) for leaf in (*used, *thrown_away)]
    main = next((path for path in paths if path[-1] is current), None) or next(
        (path for path in paths if current in path), None
    )
    owned = {turn.index for turn in turns if turn.is_recalled}
    # In this order: used paths first, so that dropping discarded paths never drops the owner of a used token.
    result = []
    for path in paths:
        trained = tuple(turn.index not in owned for turn in path)
        owned.update(turn.index for turn in path)
        result.append(
            Trajectory.from_turns(path, trained=trained, is_discarded=path[-1].index in discarded, is_main=path is main)
        )
    return result
