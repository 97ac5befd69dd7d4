"""A memory of followed histories, so that the next call follows only the new messages.

A client sends the whole history with every call. Following it costs microseconds a message, which adds up over
hundreds of turns. So followed messages are kept, and one comparison of lists in C finds where to go on: a message that
was read once is the same object in every history.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from .message import Message
from .turn import Turn

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
