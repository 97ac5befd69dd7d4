"""Strands messages to chat-template messages: nothing is lost, nothing is invented."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from strands_sglang.conversation.messages import (
    AnsweredCall,
    format_content_block,
    format_messages,
    format_tool_specs,
    sort_tool_results,
    to_chat_messages,
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


# --- text ---


def test_plain_messages() -> None:
    messages = [user(text("Hello, world!")), assistant(text("Hi"))]
    assert format_messages(messages) == [
        {"role": "user", "content": "Hello, world!"},
        {"role": "assistant", "content": "Hi"},
    ]


def test_no_messages() -> None:
    assert format_messages([]) == []


def test_the_system_prompt_comes_first() -> None:
    assert format_messages([user(text("q"))], "Be brief.")[0] == {"role": "system", "content": "Be brief."}


def test_system_content_blocks_are_joined_as_the_sdk_does() -> None:
    prompt = [{"text": "a"}, {"cachePoint": {"type": "default"}}, {"text": "b"}]
    assert format_messages([], prompt) == [{"role": "system", "content": "a\nb"}]


@pytest.mark.parametrize("prompt", [None, "", []])
def test_an_empty_system_prompt_is_none(prompt: Any) -> None:
    assert format_messages([user(text("q"))], prompt) == [{"role": "user", "content": "q"}]


def test_all_text_blocks_are_kept_and_words_do_not_merge() -> None:
    assert format_messages([user(text("first"), text("second"))])[0]["content"] == "first\nsecond"


def test_a_text_is_kept_to_the_character() -> None:
    assert format_messages([user(text("  a\n\n"))])[0]["content"] == "  a\n\n"


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_empty_content_stays_an_empty_message(role: str) -> None:
    assert format_messages([{"role": role, "content": []}]) == [{"role": role, "content": ""}]


def test_plain_string_content() -> None:
    assert format_messages([{"role": "user", "content": "hi"}]) == [{"role": "user", "content": "hi"}]


def test_cache_points_carry_nothing() -> None:
    assert format_messages([user(text("a"), {"cachePoint": {"type": "default"}})])[0]["content"] == "a"


# --- calls and reasoning ---


def test_calls_of_the_history_are_structured() -> None:
    message = assistant(text("Let me see."), use("t1", "search", q="x"), use("t2", "calc"))
    assert format_messages([message]) == [
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "search", "arguments": {"q": "x"}}},
                {"id": "t2", "type": "function", "function": {"name": "calc", "arguments": {}}},
            ],
        }
    ]


def test_a_message_of_calls_only_has_empty_content() -> None:
    assert format_messages([assistant(use("t1"))])[0]["content"] == ""


def test_reasoning_is_kept_apart() -> None:
    blocks = [{"reasoningContent": {"reasoningText": {"text": part}}} for part in ("one", "two")]
    message = format_messages([assistant(blocks[0], text("answer"), blocks[1])])[0]
    assert message == {"role": "assistant", "content": "answer", "reasoning_content": "one\ntwo"}


def test_redacted_reasoning_is_refused() -> None:
    with pytest.raises(MessageConversionError, match="reasoningContent"):
        format_messages([assistant({"reasoningContent": {"redactedContent": b"?"}})])


# --- tool results ---


def test_a_tool_result() -> None:
    messages = [assistant(use("call_1", "search")), user(result("call_1", text("ok")))]
    assert format_messages(messages)[1] == {
        "role": "tool",
        "content": "ok",
        "tool_call_id": "call_1",
        "name": "search",
    }


def test_a_tool_result_without_its_call_has_no_name() -> None:
    assert format_messages([user(result("call_1", text("ok")))]) == [
        {"role": "tool", "content": "ok", "tool_call_id": "call_1"}
    ]


def test_parallel_results_come_in_the_order_of_the_calls() -> None:
    ids = ["search:9", "search:10", "calc:11"]
    results = [result(call_id, text(call_id)) for call_id in ("calc:11", "search:10", "search:9")]
    messages = format_messages([assistant(*map(use, ids)), user(*results)])
    assert [message["tool_call_id"] for message in messages[1:]] == ids
    assert [message["content"] for message in messages[1:]] == ids


def test_results_without_calls_keep_their_order_behind_the_others() -> None:
    results = [result("z"), result("b"), result("y"), result("a")]
    messages = format_messages([assistant(use("a"), use("b")), user(*results)])
    assert [message["tool_call_id"] for message in messages[1:]] == ["a", "b", "z", "y"]


def test_only_the_last_assistant_turn_orders_results() -> None:
    messages = [
        assistant(use("call_0", "old"), use("call_1", "old")),
        user(result("call_0"), result("call_1")),
        assistant(use("call_1", "new"), use("call_0", "new")),
        user(result("call_0"), result("call_1")),
    ]
    tools = [(message["tool_call_id"], message["name"]) for message in format_messages(messages)[-2:]]
    assert tools == [("call_1", "new"), ("call_0", "new")]


def test_all_blocks_of_a_result_are_kept() -> None:
    content = format_messages([user(result("t", text("rows:"), {"json": {"stadt": "Zürich", "n": 1}}, text("end")))])
    assert content[0]["content"] == 'rows:\n{"stadt": "Zürich", "n": 1}\nend'


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("no such file", "Error: no such file"),
        ("Errors found: 3", "Error: Errors found: 3"),
        ("Error: ValueError - bad", "Error: ValueError - bad"),  # the tool says so itself
        ("error: bad", "error: bad"),
        ("\nError: bad", "\nError: bad"),
    ],
)
def test_the_model_is_told_once_that_a_tool_failed(said: str, shown: str) -> None:
    assert format_messages([user(result("t", text(said), status="error"))])[0]["content"] == shown


def test_a_failed_tool_without_words() -> None:
    assert format_messages([user(result("t", status="error"))])[0]["content"] == "Error:"


def test_results_come_before_the_text_of_their_message() -> None:
    messages = format_messages([assistant(use("t")), user(text("And now?"), result("t", text("ok")))])
    assert [(message["role"], message["content"]) for message in messages[1:]] == [("tool", "ok"), ("user", "And now?")]


def test_words_that_the_sdk_puts_in_the_place_of_an_empty_reply_are_not_printed() -> None:
    history = [assistant(text("[blank text]")), user(text("[blank text]"))]
    assert [message["content"] for message in format_messages(history)] == ["", "[blank text]"]


@pytest.mark.parametrize("block", [{"image": {}}, {"guardContent": {"text": {"text": "x"}}}])
def test_a_system_prompt_of_other_blocks_than_text_is_refused(block: dict[str, Any]) -> None:
    with pytest.raises(MessageConversionError, match="system prompt"):
        format_messages([user(text("q"))], [{"text": "Be brief."}, block])


def test_new_messages_alone_know_the_calls_before_them() -> None:
    history = [user(text("q")), assistant(use("b", "two"), use("a", "one"))]
    new = [user(result("a", text("1")), result("b", text("2")))]
    calls = {"b": AnsweredCall(0, "b", "two"), "a": AnsweredCall(1, "a", "one")}
    alone = to_chat_messages(new, calls=calls, first=2).messages
    assert alone == format_messages([*history, *new])[2:]
    assert [message["name"] for message in alone] == ["two", "one"]


# --- images ---


def test_images_stand_where_they_were() -> None:
    conversation = to_chat_messages([user(text("a"), text("b"), IMAGE, text("c"))])
    assert conversation.messages[0]["content"] == [
        {"type": "text", "text": "a\nb"},
        {"type": "image"},
        {"type": "text", "text": "c"},
    ]
    assert conversation.images == [PNG]


def test_images_of_tool_results_are_collected_in_the_order_of_the_prompt() -> None:
    def picture(data: bytes) -> dict[str, Any]:
        return {"image": {"format": "jpeg", "source": {"bytes": data}}}

    messages = [
        assistant(use("a"), use("b")),
        user(picture(b"3"), result("b", picture(b"2")), result("a", picture(b"1"))),
    ]
    assert to_chat_messages(messages).images == [b"1", b"2", b"3"]


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


def test_base64_text_is_an_image_too() -> None:
    image = {"image": {"format": "png", "source": {"bytes": base64.b64encode(PNG).decode()}}}
    assert to_chat_messages([user(image)]).images == [PNG]


def test_a_failed_tool_with_an_image_is_marked() -> None:
    content = format_messages([user(result("t", IMAGE, status="error"))])[0]["content"]
    assert content == [{"type": "text", "text": "Error:"}, {"type": "image"}]


@pytest.mark.parametrize(
    "source", [{"location": {"type": "s3", "uri": "s3://bucket/x"}}, {"bytes": "not base64!"}, {"bytes": "ü"}, {}, None]
)
def test_an_image_without_data_is_refused(source: Any) -> None:
    with pytest.raises(MessageConversionError, match="'image' block"):
        to_chat_messages([user({"image": {"format": "png", "source": source}})])


# --- what has no place ---


@pytest.mark.parametrize("kind", ["document", "video", "audio", "citationsContent", "guardContent", "telepathy"])
def test_unsupported_blocks_are_named(kind: str) -> None:
    with pytest.raises(MessageConversionError) as raised:
        format_messages([user(text("a")), user({kind: {}})])
    assert f"message 1 (user): a {kind!r} block" in str(raised.value)


def test_an_unsupported_block_in_a_result_is_located() -> None:
    with pytest.raises(MessageConversionError, match=r"message 5 \(user\), result of 't': a 'document' block"):
        to_chat_messages([user(result("t", {"document": {}}))], first=5)


@pytest.mark.parametrize("block", [{}, "text", None])
def test_what_is_no_block_is_refused(block: Any) -> None:
    with pytest.raises(MessageConversionError, match="is not a content block"):
        format_messages([user(block)])


def test_calls_of_a_user_and_results_of_an_assistant_are_refused() -> None:
    with pytest.raises(MessageConversionError, match="toolUse"):
        format_messages([user(use("t"))])
    with pytest.raises(MessageConversionError, match="toolResult"):
        format_messages([assistant(result("t"))])


def test_a_json_block_that_is_not_json_is_refused() -> None:
    with pytest.raises(MessageConversionError, match="not JSON"):
        format_messages([user(result("t", {"json": {1, 2}}))])


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(MessageConversionError, match="'tool'"):
        format_messages([{"role": "tool", "content": "x"}])


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
    with pytest.raises(KeyError, match="inputSchema"):
        format_tool_specs([{"name": "t", "description": ""}])


@pytest.mark.parametrize(
    "message",
    [
        user(text("a\ud800")),
        user(result("t", {"json": {"a": ["\udfff"]}})),
        assistant({"reasoningContent": {"reasoningText": {"text": "\ud83d"}}}),
    ],
    ids=["text", "json", "reasoning"],
)
def test_half_a_surrogate_pair_is_refused_with_its_place(message: dict[str, Any]) -> None:
    with pytest.raises(MessageConversionError, match=r"message 0 .*lone surrogates"):
        format_messages([message])


@pytest.mark.parametrize(
    ("block", "what"),
    [
        ({"toolUse": {"name": "f", "input": {}}}, "'toolUse' block has no 'toolUseId'"),
        ({"toolUse": {"toolUseId": "t", "input": {}}}, "'toolUse' block has no 'name'"),
        ({"toolUse": None}, "'toolUse' block has no 'toolUseId'"),
        ({"toolResult": {"content": []}}, "'toolResult' block has no 'toolUseId'"),
        ({"reasoningContent": {"reasoningText": None}}, "'reasoningContent' block has no text"),
    ],
)
def test_blocks_with_parts_missing_are_named(block: dict[str, Any], what: str) -> None:
    role = user if "toolResult" in block else assistant
    with pytest.raises(MessageConversionError, match=f"message 0 .*{what}"):
        format_messages([role(block)])
