"""Histories are chains: one that comes again is the same, and a longer one knows what was found out about it."""

from __future__ import annotations

from typing import Any

from strands_sglang.conversation.history_reader import StrandsReader
from strands_sglang.trajectory import History, Message


def messages(text: str) -> list[dict[str, Any]]:
    """New objects, as the messages of a client are."""
    return [{"role": "user", "content": [{"text": letter}]} for letter in text]


def test_a_fact_is_made_from_that_of_the_longest_history_before_and_the_messages_behind_it() -> None:
    reader, asked = StrandsReader(), list[str]()

    def spelled(text: str) -> str:
        def go_on(before: str | None, new: list[Message]) -> str:
            asked.append("".join(message.text for message in new))
            return (before or "") + asked[-1]

        return reader.read(messages(text)).derive("spelled", go_on)

    for text, new in (("qa", ["qa"]), ("qa", []), ("qarx", ["rx"]), ("qarxy", ["y"]), ("qbrx", ["qbrx"]), ("", [""])):
        asked.clear()
        assert (spelled(text), asked) == (text, new)


def test_equal_histories_have_one_key_wherever_they_were_read() -> None:
    keys = {StrandsReader().read(messages(text)).key for text in ("qa", "qa", "qb", "q", "qaa", "")}
    assert len(keys) == 5 and History().key == b""


def test_a_history_of_any_length_is_shown_and_freed() -> None:
    history = History().and_then(StrandsReader().read(messages("q")).messages * 200_000)
    assert len(history.key) == 16 and len(repr(history)) < 1000
    del history
