"""What clients send and what the model calls is kept exactly: long integers, keys, types, and replies that fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from strands_sglang.gateway.dialects import CHAT_COMPLETIONS
from strands_sglang.gateway.exact_json import dumps, loads
from strands_sglang.gateway.translation import Translation
from strands_sglang.tool_parsers.values import JSONError
from tests.provider_support import completion
from tests.unit.gateway_support import (
    ANTHROPIC_TOOLS,
    CHAT_TOOLS,
    GOOGLE_TOOLS,
    RESPONSES_TOOLS,
    Rig,
    assert_prefix,
    rig,
    trained_once,
)

USER = {"role": "user", "content": "go"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [USER], "tools": CHAT_TOOLS},
    "/v1/messages": {"messages": [USER], "tools": ANTHROPIC_TOOLS, "max_tokens": 999},
    "/v1/responses": {"input": "go", "tools": RESPONSES_TOOLS},
    "/v1beta/models/m:generateContent": {"contents": [{"parts": [{"text": "go"}]}], "tools": GOOGLE_TOOLS},
    "/v1beta/models/m:streamGenerateContent?alt=sse": {
        "contents": [{"parts": [{"text": "go"}]}], "tools": GOOGLE_TOOLS,
    },
}  # fmt: skip


def call_of(**arguments: Any) -> str:
    return f'<tool_call>{{"name": "add", "arguments": {json.dumps(arguments)}}}</tool_call>'


async def text_of(r: Rig, path: str, body: dict[str, Any]) -> tuple[int, str]:
    async with r.http.post(f"{r.session.anthropic_url}{path}", json={"model": "m", **body}, headers=r.headers) as got:
        return got.status, await got.text()


@pytest.mark.parametrize("value", [2**63, 2**64, -(2**63) - 1, 3 * 10**200])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
async def test_a_call_holds_an_integer_of_any_length(path: str, stream: bool, value: int) -> None:
    async with rig([completion(call_of(a=value))]) as r:
        status, text = await text_of(r, path, BODIES[path] | ({} if "models" in path else {"stream": stream}))
        assert status == 200 and str(value) in text
        assert r.session.counters.undelivered == 0 and trained_once(r.session)


@pytest.mark.parametrize("as_text", [False, True])
async def test_foreign_histories_schemas_and_results_keep_long_integers(as_text: bool) -> None:
    n = 123456789012345678901234567890
    use = {"id": "t", "name": "add", "input": {"a": n}}
    schema = {"type": "object", "properties": {"a": {"type": "integer", "maximum": n + 1}}}
    path, result = "/v1/messages", {"type": "tool_result", "tool_use_id": "t", "content": f"{n + 2}"}
    body: dict[str, Any] = {
        "messages": [USER, {"role": "assistant", "content": [{"type": "tool_use", **use}]},
                     {"role": "user", "content": [result]}],
        "tools": [{"name": "add", "input_schema": schema}], "max_tokens": 9,
    }  # fmt: skip
    if as_text:
        call = {"id": "t", "type": "function", "function": {"name": "add", "arguments": json.dumps(use["input"])}}
        path, tools = "/v1/chat/completions", [{"type": "function", "function": {"name": "add", "parameters": schema}}]
        said = {"role": "assistant", "tool_calls": [call]}
        body = {"messages": [USER, said, {"role": "tool", "tool_call_id": "t", "content": f"{n + 2}"}], "tools": tools}
    async with rig([completion("ok")]) as r:
        assert (await text_of(r, path, body))[0] == 200
        prompt = r.session.conversation.text_of(r.prompts[0])
        assert all(f"{n + more}" in prompt for more in range(3))


async def test_a_key_given_twice_is_refused_and_in_arguments_of_the_history_kept_as_text() -> None:
    async with rig([completion("ok")]) as r:
        raw = b'{"model": "m", "messages": [{"role": "user", "content": "a", "content" : "b\\u003a"}]}'
        headers = {**r.headers, "content-type": "application/json"}
        async with r.http.post(f"{r.session.base_url}/chat/completions", data=raw, headers=headers) as response:
            assert response.status == 400
            assert "'content' is given twice" in (await response.json())["error"]["message"]
        double = {"system_instruction": {"parts": []}, "systemInstruction": {"parts": []}}
        body = {**BODIES["/v1beta/models/m:generateContent"], **double}
        refused = await r.post("/v1beta/models/m:generateContent", body, status=400)
        assert "two spellings" in refused["error"]["message"]
        call = {"id": "t", "type": "function", "function": {"name": "add", "arguments": '{"a": 51, "a": 52}'}}
        said = [
            USER,
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "t", "content": "x"},
        ]
        await r.chat(said, tools=CHAT_TOOLS)
        prompt = r.session.conversation.text_of(r.prompts[0])
        assert "51" in prompt and "52" in prompt


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b'{"a": 1, "b": {"a": 1}}', {"a": 1, "b": {"a": 1}}),
        (b'{"a" :1, "a" :1}', "given twice"),
        (b'[{"a": "\\u003a", "b": 1, "b": 1}]', "given twice"),
        (b'["a:b", "\\u003a"]', ["a:b", ":"]),
        (b"[18446744073709551616, 1.0, true]", [2**64, 1.0, True]),
        (b'"1234567890123456789012"', "1234567890123456789012"),
        (b'["x\\ud83d", "\\ud83d\\ude00"]', ["x\ufffd", "\U0001f600"]),
        (b'{"\\ud83d": 1, "\\ud83e": 2}', "surrogate"),
        (b"1e999", "too large"),
        (b'{"x": -1e-400}', "-1e-400 is too small"),
        (b"[0." + b"0" * 400 + b"1]", "too small"),
        (b"[0e-400, -0.0, 5e-324, 1E-300]", [0.0, -0.0, 5e-324, 1e-300]),
        (b"[123456789012345678901, NaN]", "NaN is not"),
        (b"1" * 5000, "digits"),
        (b"[" * 100 + b"]" * 100, None),
        (b"[" * 101 + b"]" * 101, "more than 100 levels"),
        (b"[123456789012345678901," + b"[" * 100 + b"]" * 101, "more than 100 levels"),
        (b"[" * 10**6, "more than 100 levels"),
        (b"\xff", "utf-8"),
    ],
)
def test_json_is_read_as_it_is_written_or_refused(raw: bytes, value: Any) -> None:
    try:
        read = loads(raw)
    except JSONError as error:
        assert isinstance(value, str) and value in str(error)
        return
    assert value is None or (read == value and repr(read) == repr(value))
    assert loads(dumps(read)) == read


@pytest.mark.parametrize("path", BODIES)
async def test_a_reply_that_cannot_be_written_fails_once_and_is_not_owed(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, fails = Translation.write, [True]

    def reply(*args: Any) -> Any:
        return replace(given(*args), text=object()) if fails and fails.pop() else given(*args)

    monkeypatch.setattr(Translation, "write", reply)
    stream = {} if "models" in path else {"stream": True}
    async with rig([completion("first"), completion("second")]) as r:
        status, text = await text_of(r, path, BODIES[path] | stream)
        assert status == 500 and "internal error" in text
        assert [t.is_discarded for t in r.session.trajectories] == [True]
        status, text = await text_of(r, path, BODIES[path] | stream)
        assert status == 200 and "second" in text and len(r.prompts) == 2
        assert (r.session.counters.undelivered, r.session.counters.replayed) == (1, 0)


async def test_a_reply_that_cannot_be_written_ends_an_open_stream_with_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = Translation.write
    monkeypatch.setattr(Translation, "write", lambda *args: replace(given(*args), text=object()))
    async with rig([replace(completion("first"), delay=0.2)], hold=0.01, ping_interval=0.05) as r:
        (failed,) = await r.events("/v1/chat/completions", BODIES["/v1/chat/completions"])
        assert failed["error"]["code"] == "unwritable"
        assert [t.is_discarded for t in r.session.trajectories] == [True]


async def test_an_unexpected_error_ends_an_open_stream_with_an_error_that_hides_it() -> None:
    async def fail(*_: Any) -> Any:
        await asyncio.sleep(0.2)
        raise RuntimeError("a secret")

    async with rig([fail], hold=0.01, ping_interval=0.05) as r:
        (failed,) = await r.events("/v1/chat/completions", BODIES["/v1/chat/completions"])
        assert failed["error"]["code"] == "internal" and "a secret" not in str(failed)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"a": 1}, {"a": True}),
        ({"a": 1}, {"a": 1.0}),
        ({"a": 0}, {"a": False}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 0.0}, {"a": -0.0}),
        ({"a": 10**30}, {"a": 1e30}),
    ],
)
@pytest.mark.parametrize("dialect", ["messages", "google", "chat"])
async def test_the_model_sees_the_bytes_of_this_request_not_of_an_equal_one_before(
    dialect: str, before: Any, after: Any
) -> None:
    def history(given: Any) -> tuple[str, dict[str, Any]]:
        if dialect == "messages":
            use = {"type": "tool_use", "id": "t", "name": "add", "input": given}
            result = {"type": "tool_result", "tool_use_id": "t", "content": "x"}
            said = [USER, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
            return "/v1/messages", {"messages": said, "tools": ANTHROPIC_TOOLS, "max_tokens": 9}
        if dialect == "chat":
            call = {"id": "t", "type": "function", "function": {"name": "add", "arguments": given}}
            said = [USER, {"role": "assistant", "tool_calls": [call]}]
            said.append({"role": "tool", "tool_call_id": "t", "content": "x"})
            return "/v1/chat/completions", {"messages": said, "tools": CHAT_TOOLS}
        answer = {"functionResponse": {"id": "t", "name": "add", "response": given}}
        said = [{"parts": [{"text": "go"}]}, {"role": "model", "parts": [{"functionCall": {"id": "t", "name": "add"}}]}]
        said.append({"role": "user", "parts": [answer]})
        return "/v1beta/models/m:generateContent", {"contents": said, "tools": GOOGLE_TOOLS}

    async with rig([completion("1"), completion("2")]) as r, rig([completion("2")]) as fresh:
        for given in (before, after):
            assert (await text_of(r, *history(given)))[0] == 200
        assert (await text_of(fresh, *history(after)))[0] == 200
        assert r.prompts[1] == fresh.prompts[0] != r.prompts[0]


async def test_equal_bytes_are_still_read_once() -> None:
    async with rig([completion("1"), completion("2")]) as r:
        first = await r.chat([USER])
        said = first["choices"][0]["message"]
        await r.chat([USER, said, USER])
        reading = r.session.translation.readings(CHAT_COMPLETIONS)._recent
        assert len(reading) == 1 and len(reading[0].values) == 3
        assert_prefix(r)


async def test_labels_that_are_not_json_are_called_that() -> None:
    async with rig([]) as r:
        with pytest.raises(ValueError, match="labels must hold JSON values only"):
            r.gateway.open(labels={"task": object()})
        with pytest.raises(ValueError, match="labels is nested more than 100 levels deep"):
            r.gateway.open(labels={"task": loads(b"[" * 100 + b"]" * 100)})
        session = r.gateway.open(labels={"seed": 2**70})
        shown = await r.call("GET", f"/sessions/{session.id}")
        assert shown["labels"] == {"seed": 2**70}


# ---- what tools made and the model cannot be shown --------------------------------------

ANTHROPIC_PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="}}
TEXT = {"type": "text", "text": "In [1]: plot"}
DATA_URL = "data:image/png;base64,iVBORw0KGgo="
TEXT_ONLY = "image cannot be shown: this model takes text only"
SYSTEM_ONLY = "image cannot be shown: a system message holds text only"
Shown = tuple[str, list[Any], str]


def shown_by_anthropic(*content: Any, beside: tuple[Any, ...] = (), words: str = TEXT_ONLY) -> Shown:
    result = {"type": "tool_result", "tool_use_id": "ID", "content": list(content)}
    return "/v1/messages", [{"role": "user", "content": [result, *beside]}], words


def shown_by_chat(content: Any, *more: Any, words: str = TEXT_ONLY) -> Shown:
    return "/v1/chat/completions", [{"role": "tool", "tool_call_id": "ID", "content": content}, *more], words


def shown_by_responses(*output: Any, words: str = TEXT_ONLY) -> Shown:
    return "/v1/responses", [{"type": "function_call_output", "call_id": "ID", "output": list(output)}], words


def shown_by_google(part: Any, *, beside: bool = False, words: str = TEXT_ONLY) -> Shown:
    result = {"id": "ID", "name": "add", "response": {"output": "x"}, "parts": [] if beside else [part]}
    parts = [{"functionResponse": result}, *([part] if beside else ())]
    return "/v1beta/models/m:generateContent", [{"role": "user", "parts": parts}], words


PIXELS = {"type": "image_url", "image_url": {"url": DATA_URL}}
AS_OTHERS = ("chat, as a user", "chat, by the system")
SHOWN = {
    "PNG": shown_by_anthropic(ANTHROPIC_PNG),
    "notebook": shown_by_anthropic(TEXT, ANTHROPIC_PNG, words=f"In [1]: plot\n{TEXT_ONLY}"),
    "PDF": shown_by_anthropic(TEXT, PDF, words="a 'document' part is not supported"),
    "PDF beside a result": shown_by_anthropic(TEXT, beside=(PDF,), words="a 'document' part is not supported"),
    "PNG beside a result": shown_by_anthropic(TEXT, beside=(ANTHROPIC_PNG,)),
    "image without a source": shown_by_anthropic({"type": "image"}, words="images must be base64"),
    "image with a text as source": shown_by_anthropic({"type": "image", "source": "abc"}, words="must be base64"),
    "image of no text": shown_by_anthropic(
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": 1}}, words="is not base64"
    ),
    "unknown kind": shown_by_anthropic({"type": "hologram"}, words="a 'hologram' part is not supported"),
    "view_image": shown_by_responses({"type": "input_image", "image_url": DATA_URL}),
    "image by file id": shown_by_responses(
        {"type": "input_image", "file_id": "f"}, words="the gateway fetches nothing"
    ),
    "file id": shown_by_responses({"type": "input_file", "file_id": "f"}, words="'input_file' part is not supported"),
    "chat": shown_by_chat([PIXELS]),
    "chat, remote": shown_by_chat(
        [{**PIXELS, "image_url": "https://example.org"}], words="the gateway fetches nothing"
    ),
    "chat, as a user": shown_by_chat("see:", {"role": "user", "content": [TEXT, PIXELS]}),
    "chat, remote, as a user": shown_by_chat(
        "see:",
        {"role": "user", "content": [{**PIXELS, "image_url": "https://example.org"}]},
        words="the gateway fetches nothing",
    ),
    "chat, by the system": shown_by_chat("see:", {"role": "system", "content": [TEXT, PIXELS]}, words=SYSTEM_ONLY),
    "responses, by the developer": (
        "/v1/responses",
        [
            {"type": "function_call_output", "call_id": "ID", "output": "see:"},
            {"role": "developer", "content": [{"type": "input_image", "image_url": DATA_URL}]},
        ],
        SYSTEM_ONLY,
    ),
    "google": shown_by_google({"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}}),
    "google, no type": shown_by_google({"inlineData": {"data": "AAAA"}}, words="an image needs a mimeType"),
    "google, no data": shown_by_google({"inlineData": {"mimeType": "image/png"}}, words="is not base64"),
    "google, PDF": shown_by_google(
        {"inlineData": {"mimeType": "application/pdf", "data": "A"}}, words="application/pdf"
    ),
    "google, file": shown_by_google({"fileData": {"fileUri": "u"}}, beside=True, words="'file_data' part is not"),
}


async def after_a_call(r: Rig, path: str, said: list[Any], status: int = 200) -> Any:
    """The answer to a history of a question, the call that it got, and what is said then."""
    body = BODIES[path]
    name = next(name for name in ("messages", "input", "contents") if name in body)
    first = await r.post(path, {"model": "m", **body})
    history = [USER] if name == "input" else list(body[name])
    if name == "input":
        reply, call = first["output"], first["output"][-1]["call_id"]
    elif name == "contents":
        reply = [first["candidates"][0]["content"]]
        call = reply[0]["parts"][-1]["functionCall"]["id"]
    elif path == "/v1/messages":
        reply, call = [{"role": "assistant", "content": first["content"]}], first["content"][-1]["id"]
    else:
        reply = [first["choices"][0]["message"]]
        call = reply[0]["tool_calls"][0]["id"]
    said = json.loads(json.dumps(said).replace('"ID"', f'"{call}"'))
    return await r.post(path, {"model": "m", **body, name: [*history, *reply, *said]}, status=status)


RESULTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "/v1/messages": lambda content: {
        "role": "user", "content": [{"type": "tool_result", "tool_use_id": "ID", "content": content}]
    },
    "/v1/chat/completions": lambda content: {"role": "tool", "tool_call_id": "ID", "content": content},
    "/v1/responses": lambda content: {"type": "function_call_output", "call_id": "ID", "output": content},
}  # fmt: skip


@pytest.mark.parametrize("path", RESULTS)
@pytest.mark.parametrize("content", [TEXT, [TEXT["text"]]])
async def test_a_result_may_be_a_single_part_or_a_list_of_texts(path: str, content: Any) -> None:
    async with rig([completion(call_of(a=1)), completion("I see.")]) as r:
        await after_a_call(r, path, [RESULTS[path](content)])
        shown = r.session.conversation.text_of(r.prompts[1])
        assert f"<tool_response>{TEXT['text']}</tool_response>" in shown and r.session.counters.unshown == 0


@pytest.mark.parametrize("message", [{"text": "hello"}, {"content": None}])
@pytest.mark.parametrize("role", ["user", "system"])
async def test_a_message_without_content_is_refused(message: dict[str, Any], role: str) -> None:
    async with rig([]) as r:
        body = {"model": "m", "messages": [{"role": role, **message}, {"role": "user", "content": "Go."}]}
        error = (await r.post("/v1/chat/completions", body, status=400))["error"]
        assert error["message"] == "messages[0].content is missing"


@pytest.mark.parametrize("shape", SHOWN)
async def test_a_model_reads_that_what_a_tool_made_cannot_be_shown_and_goes_on(shape: str) -> None:
    path, said, words = SHOWN[shape]
    async with rig([completion(call_of(a=1)), completion("I see.")]) as r:
        await after_a_call(r, path, said)
        assert words in r.session.conversation.text_of(r.prompts[1])
        assert r.session.counters.unshown == 1 and r.session.counters.extended == 1
        assert_prefix(r)


@pytest.mark.parametrize("options", [{"refused_results": "raise"}, {"strict": True}])
@pytest.mark.parametrize(
    "shape", ["PNG", "PDF", "view_image", "chat, as a user", "chat, by the system", "google, file"]
)
async def test_a_gateway_can_refuse_it(shape: str, options: dict[str, Any]) -> None:
    path, said, _ = SHOWN[shape]
    async with rig([completion(call_of(a=1))], **options) as r:
        await after_a_call(r, path, said, status=400)
        assert r.session.counters.unshown == 0 and len(r.prompts) == 1


@pytest.mark.parametrize("part", [ANTHROPIC_PNG, PDF, {"type": "hologram"}])
async def test_what_the_user_gives_is_refused(part: Any) -> None:
    async with rig([completion("Hi.")]) as r:
        await r.messages([{"role": "user", "content": [part]}], status=400)
        said = await r.messages([USER])
        more = {"role": "user", "content": [part]}
        await r.messages([USER, {"role": "assistant", "content": said["content"]}, more], status=400)
        assert len(r.prompts) == 1
