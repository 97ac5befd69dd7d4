"""The longest history that a call continues is recalled, and kept in its place."""

from __future__ import annotations

from strands_sglang.trajectory.history import FollowedHistory, HistoryMemory, Walk


def test_the_longest_history_is_recalled_and_extended_in_its_place() -> None:
    memory = HistoryMemory()
    memory.remember(FollowedHistory("agent", [b"q"], Walk(key=b"here")), recalled=None)
    longer = FollowedHistory("agent", [b"q", b"a", b"r"], Walk(key=b"there"))
    memory.remember(longer, recalled=memory.recall("agent", longer.keys))
    assert memory.recall("agent", [*longer.keys, b"more"]) is longer
    assert memory.recall("agent", [b"q"]) is memory.recall("another", longer.keys) is None
    other = FollowedHistory("agent", [b"q"], Walk(key=b"here"))
    memory.remember(other, recalled=None)
    assert memory.recall("agent", longer.keys) is longer and memory.recall("agent", [b"q", b"b"]) is other
