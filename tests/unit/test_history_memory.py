"""A history is taken for a continued one only where following it again would lead to the same place."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from strands_sglang.trajectory.history import HistoryMemory, Walk

WALK = Walk(key=b"here")
QUESTION = {"role": "user", "content": [{"text": "Hi"}]}
RESULT = {"toolUseId": "a", "status": "success", "content": [{"text": "4"}]}


def remembered(*messages: Any, samples: tuple[int, ...] = ()) -> HistoryMemory:
    memory = HistoryMemory()
    memory.remember("agent", list(messages), WALK, recalled=None, samples=samples)
    return memory


def is_known(memory: HistoryMemory, *messages: Any) -> bool:
    return memory.recall("agent", list(messages)) is not None


def results(**changes: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"toolResult": {**RESULT, **changes}}]}


def use(**arguments: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"toolUse": {"toolUseId": "a", "name": "add", "input": arguments}}]}


def picture(data: bytes) -> dict[str, Any]:
    return {"role": "user", "content": [{"image": {"format": "png", "source": {"bytes": data}}}]}


@pytest.mark.parametrize(
    ("message", "other"),
    [
        (QUESTION, {"role": "user", "content": [{"text": "Ha"}]}),
        (QUESTION, {"role": "user", "content": [{"text": "Hi"}, {"text": ""}]}),
        (QUESTION, {"role": "system", "content": [{"text": "Hi"}]}),
        (results(), results(status="error")),
        (use(x=1), use(x=True)),
        (results(content=[{"json": {"a": 1, "b": 2}}]), results(content=[{"json": {"b": 2, "a": 1}}])),
        (results(content=[{"json": 1}]), results(content=[{"json": 1.0}])),
        (picture(b"1"), picture(b"2")),
        (results(content=[{"json": 2**70}]), results(content=[{"json": 2**70 + 1}])),
        (results(content=[{"json": "\ud800"}]), results(content=[{"json": "\ud801"}])),
    ],
    ids=["text", "blocks", "role", "status", "argument", "key order", "number", "image", "long integer", "surrogate"],
)
def test_another_message_is_noticed(message: dict[str, Any], other: dict[str, Any]) -> None:
    memory = remembered(QUESTION, message)
    assert is_known(memory, copy.deepcopy(QUESTION), copy.deepcopy(message), use(x=1))
    assert not is_known(memory, QUESTION, other, use(x=1))


def test_a_message_that_its_owner_changes_in_place_is_noticed() -> None:
    question, reply = copy.deepcopy(QUESTION), use(x=1)
    memory = remembered(question, reply, samples=(1,))
    assert is_known(memory, question, reply)
    reply["content"][0]["toolUse"]["name"] = "subtract"
    assert not is_known(memory, question, reply)


def test_the_longest_history_is_recalled_and_extended_in_its_place() -> None:
    memory = remembered(QUESTION)
    messages = [QUESTION, use(x=1), results()]
    memory.remember("agent", messages, Walk(key=b"there"), recalled=memory.recall("agent", messages), samples=(1,))
    known = memory.recall("agent", [*messages, use(x=1)])
    assert (len(known.messages), known.walk.key) == (3, b"there")
    assert not is_known(memory, QUESTION)
    assert memory.recall("another", messages) is None
