"""The longest history that a call continues is recalled, and kept in its place."""

from __future__ import annotations

from strands_sglang.trajectory import Message
from strands_sglang.trajectory.history import FollowedHistory, HistoryMemory


def history(text: str) -> list[Message]:
    """New objects, as the messages of a client are."""
    return [Message(role="user", parts=(letter,)) for letter in text]


def test_the_longest_history_is_recalled_and_extended_in_its_place() -> None:
    memory: HistoryMemory[str] = HistoryMemory()
    memory.remember(FollowedHistory("agent", history("q"), "here"), recalled=None)
    longer = FollowedHistory("agent", history("qar"), "there")
    memory.remember(longer, recalled=memory.recall("agent", history("qar")))
    assert memory.recall("agent", history("qar and more")) is longer
    assert memory.recall("agent", history("q")) is memory.recall("another", history("qar")) is None
    other = FollowedHistory("agent", history("q"), "here")
    memory.remember(other, recalled=None)
    assert memory.recall("agent", history("qar")) is longer and memory.recall("agent", history("qb")) is other
