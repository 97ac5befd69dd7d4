"""Strands messages to chat-template messages: nothing is lost, nothing is invented."""

from __future__ import annotations

import base64
import copy
import threading
from functools import partial
from typing import Any

import pytest

from strands_sglang.conversation.history_reader import HistoryReader, StrandsReader
from strands_sglang.conversation.messages import (
    ShownCall,
    format_content_block,
    format_messages,
    format_tool_specs,
    is_read_as,
    read_message,
    read_messages,
    sort_tool_results,
    to_chat,
    to_strands,
)
from strands_sglang.exceptions import MessageConversionError

PNG = b"\x89PNG..."
IMAGE = {"image": {"format": "png", "source": {"bytes": PNG}}}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(value: str) -> dict[str, Any]:
    return {"text": value}


def use(call_id: str, name: str = "search", **arguments: Any) -> dict[str, Any]:
    return {"toolUse": {"toolUseId": call_id, "name": name, "input": arguments}}


def result(call_id: str, *content: Any, status: str = "success") -> dict[str, Any]:
    return {"toolResult": {"toolUseId": call_id, "status": status, "content": list(content)}}


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    """A message of a chat template."""
    return {"role": role, "content": content, **more}


def chat_of(*messages: Any) -> Any:
    return to_chat(read_messages(messages))


def called(call_id: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


BLANK = text("[blank text]")
CACHE_POINT = {"cachePoint": {"type": "default"}}
REASONING = [{"reasoningContent": {"reasoningText": {"text": part}}} for part in ("one", "two")]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([], []),
        ([user(text("  Hello\n\n")), assistant(text("Hi"))], [said("user", "  Hello\n\n"), said("assistant", "Hi")]),
        ([user(text("first"), CACHE_POINT, text("second"))], [said("user", "first\nsecond")]),
        ([user(), assistant()], [said("user", ""), said("assistant", "")]),
        ([{"role": "user", "content": "hi"}], [said("user", "hi")]),
        # The SDK's words for an empty reply are not printed, those of a user are.
        (
            [assistant(text("[blank text]")), user(text("[blank text]"))],
            [said("assistant", ""), said("user", "[blank text]")],
        ),
        (
            [assistant(text("Let me see."), use("t1", "search", q="x"), use("t2", "calc"))],
            [said("assistant", "Let me see.", tool_calls=[called("t1", "search", q="x"), called("t2", "calc")])],
        ),
        (
            [assistant(REASONING[0], text("answer"), REASONING[1])],
            [said("assistant", "answer", reasoning_content="one\ntwo")],
        ),
        ([user(result("t", text("ok")))], [said("tool", "ok", tool_call_id="t")]),
        (
            [user(result("t", text("rows:"), {"json": {"stadt": "Zürich", "n": 1}}, text("end")))],
            [said("tool", 'rows:\n{"stadt": "Zürich", "n": 1}\nend', tool_call_id="t")],
        ),
        (
            [assistant(use("t")), user(text("And now?"), result("t", text("ok")))],
            [
                said("assistant", "", tool_calls=[called("t", "search")]),
                said("tool", "ok", tool_call_id="t", name="search"),
                said("user", "And now?"),
            ],
        ),
    ],
)
def test_messages_keep_all_their_blocks(messages: list[Any], expected: list[Any]) -> None:
    assert format_messages(messages) == expected


@pytest.mark.parametrize(
    ("prompt", "shown"),
    [(None, None), ("", None), ([], None), ("Be brief.", "Be brief."), ([text("a"), CACHE_POINT, text("b")], "a\nb")],
)
def test_the_system_prompt_comes_first(prompt: Any, shown: str | None) -> None:
    expected = [said("user", "q")] if shown is None else [said("system", shown), said("user", "q")]
    assert format_messages([user(text("q"))], prompt) == expected


# --- tool results ---


@pytest.mark.parametrize(
    ("calls", "answered", "shown"),
    [
        ("search:9 search:10 calc:11", "calc:11 search:10 search:9", "search:9 search:10 calc:11"),
        ("a b", "z b y a", "a b z y"),
    ],
)
def test_parallel_results_come_in_the_order_of_the_calls(calls: str, answered: str, shown: str) -> None:
    results = [result(call_id, text(call_id)) for call_id in answered.split()]
    messages = format_messages([assistant(*map(use, calls.split())), user(*results)])[1:]
    assert [message["tool_call_id"] for message in messages] == shown.split()
    assert [message["content"] for message in messages] == shown.split()


def test_only_the_last_assistant_turn_orders_results() -> None:
    messages = [
        assistant(use("call_0", "old"), use("call_1", "old")),
        user(result("call_0"), result("call_1")),
        assistant(use("call_1", "new"), use("call_0", "new")),
        user(result("call_0"), result("call_1")),
    ]
    tools = [(message["tool_call_id"], message["name"]) for message in format_messages(messages)[-2:]]
    assert tools == [("call_1", "new"), ("call_0", "new")]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("no such file", "Error: no such file"),
        ("Errors found: 3", "Error: Errors found: 3"),
        ("Error: ValueError - bad", "Error: ValueError - bad"),  # the tool says so itself
        ("error: bad", "error: bad"),
        ("\nError: bad", "\nError: bad"),
        (None, "Error:"),
    ],
)
def test_the_model_is_told_once_that_a_tool_failed(words: str | None, shown: str) -> None:
    content = [] if words is None else [text(words)]
    assert format_messages([user(result("t", *content, status="error"))])[0]["content"] == shown


def test_new_messages_alone_know_the_calls_before_them() -> None:
    history = [user(text("q")), assistant(use("b", "two"), use("a", "one"))]
    new = [user(result("a", text("1")), result("b", text("2")))]
    calls = {"b": ShownCall("b", "two"), "a": ShownCall("a", "one")}
    alone = to_chat(read_messages([*history, *new])[2:], calls=calls).messages
    assert alone == format_messages([*history, *new])[2:]
    assert [message["name"] for message in alone] == ["two", "one"]


# --- images ---


def test_images_stand_where_they_were() -> None:
    conversation = chat_of(user(text("a"), text("b"), IMAGE, text("c")))
    assert conversation.messages[0]["content"] == [
        {"type": "text", "text": "a\nb"},
        {"type": "image"},
        {"type": "text", "text": "c"},
    ]
    assert [image.data for image in conversation.images] == [PNG]
    failed = chat_of(user(result("t", text("no"), IMAGE, status="error")))
    assert failed.messages[0]["content"] == [{"type": "text", "text": "Error: no"}, {"type": "image"}]
    as_text = {"image": {"format": "png", "source": {"bytes": base64.b64encode(PNG).decode()}}}
    assert [image.data for image in chat_of(user(as_text)).images] == [PNG]


def test_images_of_tool_results_are_collected_in_the_order_of_the_prompt() -> None:
    def picture(data: bytes) -> dict[str, Any]:
        return {"image": {"format": "jpeg", "source": {"bytes": data}}}

    messages = [
        assistant(use("a"), use("b")),
        user(picture(b"3"), result("b", picture(b"2")), result("a", picture(b"1"))),
    ]
    assert [image.data for image in chat_of(*messages).images] == [b"1", b"2", b"3"]


def test_for_a_processor_every_content_is_parts_and_images_are_data_urls() -> None:
    part = {"type": "image", "image": "data:image/png;base64," + base64.b64encode(PNG).decode()}
    told = [{"type": "text", "text": "a\nb"}]
    messages = [user(text("a"), text("b"), IMAGE), assistant(use("c")), user(result("c", IMAGE, status="error"))]
    shown = format_messages(messages, "a\nb", is_multimodal=True)
    assert [message["content"] for message in shown] == [
        told,
        [*told, part],
        [],
        [{"type": "text", "text": "Error:"}, part],
    ]
    assert (format_content_block(text("a\nb"), True), format_content_block(IMAGE, True)) == (told[0], part)
    assert format_content_block({"json": {"a": 1}}) == '{"a": 1}'
    with pytest.raises(MessageConversionError, match="is_multimodal=True"):
        format_content_block(IMAGE)


def test_tool_results_are_sorted_by_id() -> None:
    messages = [assistant(text("on")), user(result("b"), result("a")), user(text("z"), text("y"))]
    assert sort_tool_results(messages) == [messages[0], user(result("a"), result("b")), messages[2]]


@pytest.mark.parametrize(
    "source", [{"location": {"type": "s3", "uri": "s3://bucket/x"}}, {"bytes": "not base64!"}, {"bytes": "ü"}, {}, None]
)
def test_an_image_without_data_is_refused(source: Any) -> None:
    with pytest.raises(MessageConversionError, match="'image' block"):
        read_message(user({"image": {"format": "png", "source": source}}))


# --- what has no place ---


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        *(
            (user({kind: {}}), rf"message 0 \(user\): a '{kind}' block")
            for kind in ("document", "video", "audio", "citationsContent", "guardContent", "telepathy")
        ),
        (user(result("t", {"document": {}})), r"message 0 \(user\), result of 't': a 'document' block"),
        *((user(block), "is not a content block") for block in ({}, "text", None)),
        (assistant({"reasoningContent": {"redactedContent": b"?"}}), "reasoningContent"),
        (user(use("t")), "toolUse"),
        (assistant(result("t")), "toolResult"),
        (user(result("t", {"json": {1, 2}})), "not JSON"),
        ({"role": "tool", "content": "x"}, "'tool'"),
        (user(text("a\ud800")), r"message 0 .*lone surrogates"),
        (user(result("t", {"json": {"a": ["\udfff"]}})), r"message 0 .*lone surrogates"),
        (assistant({"reasoningContent": {"reasoningText": {"text": "\ud83d"}}}), r"message 0 .*lone surrogates"),
        (assistant({"toolUse": {"name": "f", "input": {}}}), "message 0 .*'toolUse' block has no 'toolUseId'"),
        (assistant({"toolUse": {"toolUseId": "t", "input": {}}}), "message 0 .*'toolUse' block has no 'name'"),
        (assistant({"toolUse": None}), "message 0 .*'toolUse' block has no 'toolUseId'"),
        (user({"toolResult": {"content": []}}), "message 0 .*'toolResult' block has no 'toolUseId'"),
        (assistant({"reasoningContent": {"reasoningText": None}}), "message 0 .*'reasoningContent' block has no text"),
    ],
)
def test_what_has_no_place_is_refused_with_its_own(message: dict[str, Any], problem: str) -> None:
    with pytest.raises(MessageConversionError, match=problem):
        format_messages([message])
    with pytest.raises(MessageConversionError, match=problem.replace("message 0", "message 5")):
        read_message(message, 5)


@pytest.mark.parametrize("block", [{"image": {}}, {"guardContent": {"text": {"text": "x"}}}])
def test_a_system_prompt_of_other_blocks_than_text_is_refused(block: dict[str, Any]) -> None:
    with pytest.raises(MessageConversionError, match="system prompt"):
        format_messages([user(text("q"))], [{"text": "Be brief."}, block])


# --- tool specs ---


@pytest.mark.parametrize("wrap", [True, False])
def test_tool_specs(wrap: bool) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    spec = {"name": "add", "description": "Adds.", "inputSchema": {"json": schema} if wrap else schema}
    function = {"name": "add", "description": "Adds.", "parameters": schema}
    assert format_tool_specs([spec]) == [{"type": "function", "function": function}]


def test_a_schema_with_a_property_called_json_is_not_unwrapped() -> None:
    schema = {"type": "object", "properties": {"json": {"type": "string"}}}
    tools = format_tool_specs([{"name": "t", "description": "", "inputSchema": schema}])
    assert tools[0]["function"]["parameters"] is schema


def test_a_tool_spec_without_schema_is_an_error() -> None:
    with pytest.raises(MessageConversionError, match=r"tool 0 is .*inputSchema"):
        format_tool_specs([{"name": "t", "description": ""}])


# --- one form, read once ---

RESULT = {"toolUseId": "a", "status": "success", "content": [{"text": "4"}]}


def results(**changes: Any) -> dict[str, Any]:
    return user({"toolResult": {**RESULT, **changes}})


def picture(data: bytes) -> dict[str, Any]:
    return user({"image": {"format": "png", "source": {"bytes": data}}})


OTHERS = {
    "text": (user(text("Hi")), user(text("Ha"))),
    "role": (user(text("Hi")), {"role": "system", "content": [text("Hi")]}),
    "status": (results(), results(status="error")),
    "argument": (assistant(use("a", x=1)), assistant(use("a", x=True))),
    "key order": (results(content=[{"json": {"a": 1, "b": 2}}]), results(content=[{"json": {"b": 2, "a": 1}}])),
    "number": (assistant(use("a", x=1)), assistant(use("a", x=1.0))),
    "not a number": (assistant(use("a", x=float("nan"))), assistant(use("a", x=None))),
    "image": (picture(b"1"), picture(b"2")),
    "long integer": (assistant(use("a", x=2**70)), assistant(use("a", x=2**70 + 1))),
    "surrogate": (assistant(use("a", x="\ud800")), assistant(use("a", x="\ud801"))),
}


@pytest.mark.parametrize("name", OTHERS)
def test_messages_that_are_printed_otherwise_have_other_keys(name: str) -> None:
    one, other = OTHERS[name]
    assert read_message(one) == read_message(copy.deepcopy(one)) and read_message(one).key != read_message(other).key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (user(text("a"), CACHE_POINT, text("b")), {"role": "user", "content": "a\nb"}),
        (user(result("t", {"json": {"a": 1}})), user(result("t", text('{"a": 1}')))),
        (user({"text": "a", **IMAGE}), user(text("a"), IMAGE)),
        (user(text("a"), result("t", text("x"))), user(result("t", text("x")), text("a"))),
    ],
)
def test_messages_that_are_printed_alike_are_one(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert read_message(one) == read_message(other)


@pytest.mark.parametrize("histories", [partial(HistoryReader, 8, is_read_as), partial(HistoryReader, 8)])
@pytest.mark.parametrize("name", [name for name in OTHERS if name != "not a number"])
def test_a_history_is_read_again_only_where_it_is_another(name: str, histories: Any) -> None:
    seen: list[int] = []

    def read_one(item: Any, index: int, before: Any) -> Any:
        seen.append(index)
        return read_message(item, index, before)

    known, (one, other), question = histories(), OTHERS[name], user(text("q"))
    other_at = [0, 1, 2, 3] if len(histories.args) > 1 else [2, 3]
    for history, expected in (
        ([question, question, one], [0, 1, 2]),
        ([question, question, copy.deepcopy(one), question], [3]),
        ([question, question, other, question], other_at),
        ([question], [0]),
        ([question, question, other, question, question], [4]),
    ):
        seen.clear()
        assert known.read_items(history, read_one) == read_messages(history)
        assert seen == expected


# As the SDK writes them; each differs from the first in one thing, and is printed otherwise.
TURNS = [
    assistant(REASONING[0], text("on"), use("a", x=1, y=2), use("b")),
    assistant(REASONING[1], text("on"), use("a", x=1, y=2), use("b")),
    assistant(text("on"), use("a", x=1, y=2), use("b")),
    assistant(REASONING[0], text("off"), use("a", x=1, y=2), use("b")),
    assistant(REASONING[0], use("a", x=1, y=2), use("b")),
    assistant(REASONING[0], text("on"), use("a", x=1, y=2)),
    assistant(REASONING[0], text("on"), use("b"), use("a", x=1, y=2)),
    assistant(REASONING[0], text("on"), use("c", x=1, y=2), use("b")),
    assistant(REASONING[0], text("on"), use("a", "find", x=1, y=2), use("b")),
    assistant(REASONING[0], text("on"), use("a", x=1, y=2.0), use("b")),
    assistant(REASONING[0], text("on"), use("a", y=2, x=1), use("b")),
    assistant(REASONING[0], text("on"), use("a", x=True, y=2), use("b")),
    user(text("on")),
    user(result("a", text("x")), result("b", text("y"))),
    user(result("a", text("x")), result("b", text("z"))),
    user(result("a", text("x")), result("b", text("y"), status="error")),
    user(result("a", text("x")), result("b", text("y")), text("on")),
    user(result("a", text("x"))),
    user(result("b", text("y")), result("a", text("x"))),
]
ODD = [
    *[message for pair in OTHERS.values() for message in pair],
    assistant(REASONING[0], text("on"), use("a", x=1, y=2), use("b"), text("and")),
    {"role": "user", "content": "on"},
    {"role": "user", "content": {"text": "on"}},
    user({"text": "on", **IMAGE}),
    user(text("on"), CACHE_POINT),
    user(result("a", text("x"), text("y"))),
    user(result("a", {"text": "x", **IMAGE})),
    user(result("a")),
    user(result("a", {"json": "x"})),
    {"role": "user"},
    "on",
    None,
]


@pytest.mark.parametrize("number", range(len(TURNS)))
def test_a_message_is_known_by_what_was_read_from_it(number: int) -> None:
    read = read_message(TURNS[number])
    assert [is_read_as([copy.deepcopy(each)], [read]) for each in TURNS] == [each is TURNS[number] for each in TURNS]
    assert not any(is_read_as([each], [read]) and read_message(each) != read for each in ODD)
    assert not is_read_as([TURNS[number]] * 2, [read])


def test_threads_with_histories_that_begin_alike_read_their_own() -> None:
    histories, question = HistoryReader[Any](8, is_read_as), user(text("q"))
    histories.read_items([question], read_message)
    others: list[Any] = []

    def read_slowly(item: Any, index: int, before: Any) -> Any:
        other = threading.Thread(
            target=lambda: others.append(histories.read_items([question, assistant(text("b"))], read_message))
        )
        other.start()
        other.join(0.05)  # it has to wait
        threads.append(other)
        return read_message(item, index, before)

    threads: list[threading.Thread] = []
    own = histories.read_items([question, assistant(text("a"))], read_slowly)
    threads[0].join()
    assert [message.text for message in own] == ["q", "a"]
    assert [message.text for message in others[0]] == ["q", "b"]


def test_what_its_owner_changes_in_place_is_another_message() -> None:
    histories, reply = StrandsReader(), assistant(use("a", x=[1]))
    (before,) = histories.read([reply])
    reply["content"][0]["toolUse"]["input"]["x"].append(2)
    (after,) = histories.read([reply])
    assert (before.calls[0].input, after.calls[0].input) == ({"x": [1]}, {"x": [1, 2]})


def test_a_message_is_written_as_the_sdk_has_it() -> None:
    messages = [
        user(text("q"), IMAGE),
        assistant(REASONING[0], text("on"), use("a", x=1)),
        user({"toolResult": {"toolUseId": "a", "content": [text("no"), IMAGE], "status": "error"}}, text("and?")),
    ]
    assert list(map(to_strands, read_messages(messages))) == messages
