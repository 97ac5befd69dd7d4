"""A memory of followed histories, so that the next call follows only the new messages.

A client sends the whole history with every call, in fresh copies. Following it message by message costs microseconds
each, which adds up over hundreds of turns. So the messages that were followed are kept, and one comparison of lists in
C finds where to go on. It is cheap because copies of a message share their texts: where two texts are one object,
nothing is read.

Equality in Python is laxer than what a template prints: `1 == True`, and the order of keys does not count. So it
decides only where that cannot matter: for messages of nothing but text, and for replies that were recognised as samples
of this forest, of which only ids and texts count. Any other message is compared by its JSON.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from .fingerprint import encode_value
from .turn import Turn

_RESULT_KEYS = frozenset({"toolUseId", "status", "content"})
_ATOMS = frozenset({str, int, float, bool, type(None), bytes})  # immutable, so shared with a copy
_CAPACITY = 64  # histories per forest that are remembered; a forgotten one is followed from its start


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


@dataclass(slots=True, kw_only=True, eq=False)
class FollowedHistory:
    """A history that was followed; `context` is the digest of the prompt before it, and the calling agent."""

    context: Hashable
    messages: list[Any]
    walk: Walk


class HistoryMemory:
    """The most recent histories and how far each was followed."""

    def __init__(self) -> None:
        self._histories: list[FollowedHistory] = []

    def recall(self, context: Hashable, messages: list[Any]) -> FollowedHistory | None:
        """The longest history of this context that these messages are, or begin with."""
        best: FollowedHistory | None = None
        # The longest: a shorter one of the same conversation would have its messages followed again.
        for known in self._histories:
            longer = best is None or len(known.messages) > len(best.messages)
            if longer and known.context == context and messages[: len(known.messages)] == known.messages:
                best = known
        return best

    def remember(
        self,
        context: Hashable,
        messages: list[Any],
        walk: Walk,
        *,
        recalled: FollowedHistory | None,
        samples: Collection[int],
    ) -> None:
        """Keep a followed history in place of the recalled one; `samples` index the further messages sampled here."""
        history = recalled or FollowedHistory(context=context, messages=[], walk=walk)
        done = len(history.messages)
        history.messages += [_kept(messages[i], is_sample=i in samples) for i in range(done, len(messages))]
        history.walk = walk
        others = [known for known in self._histories if known is not recalled]
        self._histories = [*others[-(_CAPACITY - 1) :], history]


class _Exactly:
    """Stands for a message among those that are kept, and equals a message with the same JSON."""

    __slots__ = ("_json",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, message: Mapping[str, Any]) -> None:
        self._json = encode_value(message)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and encode_value(other) == self._json


def _kept(message: Mapping[str, Any], *, is_sample: bool) -> Any:
    """Comparison key: equal if and only if the message locates the same turn. It shares nothing mutable with it."""
    return copy_data(message) if is_sample or _is_text(message) else _Exactly(message)


def copy_data(value: Any) -> Any:
    """`copy.deepcopy` at a fraction of its time for what messages consist of; a list that stands twice becomes two."""
    kind = type(value)
    if kind is dict:
        return {key: item if type(item) is str else copy_data(item) for key, item in value.items()}
    if kind is list:
        return list(map(copy_data, value))
    return value if kind in _ATOMS else copy.deepcopy(value)


def _is_text(message: Mapping[str, Any]) -> bool:
    """True for a message of nothing but role and text, its own or of tool results, in plain types."""
    content = message.get("content")
    if type(message) is not dict or len(message) != 2 or type(message.get("role")) is not str:
        return False
    return type(content) is str or (type(content) is list and all(map(_is_text_block, content)))


def _is_text_block(block: Any) -> bool:
    if type(block) is not dict or len(block) != 1:
        return False
    if type(block.get("text")) is str:
        return True
    result = block.get("toolResult")
    if type(result) is not dict:
        return False
    for key, value in result.items():
        if key == "content":
            if type(value) is not list or not all(map(_is_text_part, value)):
                return False
        elif key not in _RESULT_KEYS or type(value) is not str:
            return False
    return "content" in result


def _is_text_part(part: Any) -> bool:
    return type(part) is dict and len(part) == 1 and type(part.get("text")) is str
