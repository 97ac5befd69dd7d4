"""Bad input to the gateway: every field of every dialect by type, headers and paths. No 500s, no dead server."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from strands_sglang.exceptions import SGLangHTTPError
from tests.provider_support import Replay, completion
from tests.unit.gateway_support import ANTHROPIC_TOOLS, CALL, CHAT_TOOLS, GOOGLE_TOOLS, RESPONSES_TOOLS, Rig, rig

DEEP: Any = "x"
for _ in range(900):
    DEEP = [DEEP]
VALUES: list[Any] = [
    None, True, 5, -1, 0.5, 10**400, "", "text", "\r\n\x00", "x" * 5000, [], [5], ["text"], [[]], {}, {"a": 5},
    {"type": "text"}, {"type": 5},
]  # fmt: skip
FOUND = {"type": "tool_reference", "tool_name": "fetch"}
PIXEL = "data:image/png;base64,AAAA"
SCHEMA_FORMAT = {"type": "json_schema", "json_schema": {"name": "t", "schema": {"type": "object"}}}

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "m", "max_tokens": 9, "max_completion_tokens": 9, "n": 1, "stop": ["x"], "stream": False,
        "stream_options": {"include_usage": True}, "logprobs": True, "return_token_ids": True, "tools": CHAT_TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "add"}}, "response_format": SCHEMA_FORMAT,
        "parallel_tool_calls": False, "temperature": 0.5, "top_p": 1, "top_k": 5, "seed": 3, "user": "u", "unknown": 1,
        "modalities": ["text"], "functions": None, "web_search_options": {},
        "messages": [
            {"role": "system", "content": "S"},
            {"role": "user", "name": "Ann", "content": [{"type": "text", "text": "Hi"}]},
            {"role": "assistant", "content": None, "refusal": "No."},
            {
                "role": "assistant", "content": "A", "reasoning_content": "R",
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
        ],
    },
    "/v1/responses": {
        "model": "m", "instructions": "I", "max_output_tokens": 9, "stream": False, "include": ["x"],
        "tools": [*RESPONSES_TOOLS, {"type": "web_search"}, {"type": "custom", "name": "exec"}], "tool_choice": "auto",
        "text": {"format": {"type": "text"}}, "previous_response_id": None, "return_token_ids": True,
        "temperature": 0.5, "reasoning": {"effort": "low", "context": "auto"}, "conversation": None, "prompt": None,
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "D"}]},
            {"type": "additional_tools", "tools": [
                {"type": "namespace", "name": "functions", "tools": [{"type": "custom", "name": "more"}]},
            ]},
            {"role": "user", "content": "Hi"},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "R"}], "encrypted_content": "AAAA"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A"}]},
            {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
            {"type": "function_call_output", "call_id": "c1", "output": "3"},
            {"type": "custom_tool_call", "call_id": "c2", "name": "exec", "input": "x"},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "x"}]},
            {"type": "local_shell_call", "call_id": "c3", "action": {"type": "exec", "command": ["ls"]}},
            {"type": "tool_search_call", "call_id": "c4", "arguments": {}},
            {"type": "tool_search_output", "call_id": "c4", "tools": [{"name": "add"}]},
            {"type": "agent_message", "author": "a", "content": [{"type": "input_text", "text": "x"}]},
            {"type": "web_search_call", "id": "w"},
            {"role": "user", "content": "Hi"},
        ],
    },
    "/v1/messages": {
        "model": "m", "max_tokens": 9, "system": [{"type": "text", "text": "S"}], "stop_sequences": ["x"],
        "stream": False, "tools": ANTHROPIC_TOOLS, "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}, "temperature": 0.5,
        "metadata": {"user_id": "u"}, "thinking": {"type": "adaptive"}, "thread": None, "mcp_servers": [],
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {"role": "system", "content": "S", "clear_at": "never"},
            {
                "role": "assistant",
                "content": [
                    {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                    {"type": "compaction", "content": "C"},
                    {"type": "thinking", "thinking": "T", "signature": "AAAA"},
                    {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
                    {"type": "tool_use", "id": "c2", "name": "add", "input": {"a": 2}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "3", "is_error": False},
                    {"type": "tool_result", "tool_use_id": "c2", "content": [FOUND]},
                ],
            },
        ],
    },
    "/v1beta/models/m:generateContent": {
        "systemInstruction": {"role": "user", "parts": [{"text": "S"}]}, "safetySettings": [], "cachedContent": None,
        "tools": [
            *GOOGLE_TOOLS, {"googleSearch": {}},
            {"function_declarations": [
                {"name": "sub", "parameters": {
                    "type": "OBJECT", "nullable": True, "properties": {"n": {"type": "ARRAY", "maxItems": "3"}},
                }},
            ]},
        ],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["add"]}},
        "generationConfig": {
            "maxOutputTokens": 9, "temperature": 0.5, "topK": 5.0, "seed": 3, "candidateCount": 1,
            "stopSequences": ["x"], "responseMimeType": "application/json", "responseSchema": {"type": "OBJECT"},
            "responseLogprobs": True, "thinkingConfig": {"includeThoughts": True},
        },
        "contents": [
            {"role": "user", "parts": [{"text": "Hi"}]},
            {"role": "model", "parts": [
                {"executableCode": {"code": "1"}}, {"text": "T", "thought": True}, {"text": "A"},
                {"functionCall": {"name": "add", "args": {"a": 1}}, "thoughtSignature": "AAAA"},
                {"functionCall": {"id": "c2", "name": "add", "args": {"a": 1}}},
            ]},
            {"role": "user", "parts": [
                {"functionResponse": {"name": "add", "response": {"output": "3"}}},
                {"functionResponse": {"id": "c2", "name": "add", "response": {"error": "no"}, "parts": []}},
            ]},
        ],
    },
}  # fmt: skip
IMAGES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"type": "image_url", "image_url": {"url": PIXEL}},
    "/v1/responses": {"type": "input_image", "image_url": PIXEL},
    "/v1/messages": {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
    "/v1beta/models/m:generateContent": {"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
}
# Counts what the same code has read.
BODIES["/v1/messages/count_tokens"] = {**BODIES["/v1/messages"], "messages": BODIES["/v1/messages"]["messages"][:1]}
BODIES["/v1beta/models/m:countTokens"] = {
    "generateContentRequest": {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}
}


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a body at which a value stands."""
    if at:
        yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*at, key))


def with_value(body: Any, at: tuple[Any, ...], value: Any) -> Any:
    """The body with another value at one place."""
    if not at:
        return value
    changed = copy.copy(body)
    changed[at[0]] = with_value(body[at[0]], at[1:], value)
    return changed


async def assert_alive(r: Rig) -> None:
    """The server answers, and lists its sessions."""
    async with r.http.get(f"{r.gateway.url}/sessions") as response:
        assert response.status == 200, await response.text()
    await r.chat([{"role": "user", "content": "Hi"}])


def replay() -> Replay:
    return Replay([completion(f"Hello.{CALL}")], cycle=True)


async def assert_never_fails(r: Rig, path: str, body: dict[str, Any]) -> None:
    """No value at any place of the body makes the server fail."""
    wrong: list[str] = []

    async def ask(at: tuple[Any, ...], value: Any) -> None:
        data = json.dumps(with_value(body, at, value))
        headers = {**r.headers, "Content-Type": "application/json"}
        async with r.http.post(f"{r.session.anthropic_url}{path}", data=data, headers=headers) as response:
            text = await response.text()
            if response.status >= 500:
                wrong.append(f"{at} = {repr(value)[:60]}: {response.status} {text[:200]}")
            assert len(text) < 20_000, "an error repeats what it was given"

    everywhere = [(at, value) for at in places(body) for value in VALUES]
    for first in range(0, len(everywhere), 40):
        await asyncio.gather(*(ask(at, value) for at, value in everywhere[first : first + 40]))
    assert not wrong, "\n".join(wrong)
    await assert_alive(r)


@pytest.mark.parametrize("path", BODIES)
async def test_any_value_in_any_field_is_served_or_refused(path: str) -> None:
    async with rig(replay(), client_sampling=True) as r:
        await r.post(path, BODIES[path])
        await assert_never_fails(r, path, BODIES[path])


@pytest.mark.parametrize("path", IMAGES)
async def test_any_value_in_an_image_is_refused(path: str) -> None:
    async with rig(replay()) as r:
        history = {"/v1/responses": "input", "/v1beta/models/m:generateContent": "contents"}.get(path, "messages")
        content = "parts" if history == "contents" else "content"
        await assert_never_fails(r, path, {"model": "m", history: [{"role": "user", content: [IMAGES[path]]}]})


# What no place of a body may hold, and text that is mended wherever it stands.
DEEPER, HALF = json.dumps({"x": DEEP}).encode(), json.dumps({"\ud800": "\ud800"}).encode()


@pytest.mark.parametrize("path", [*BODIES, "sessions"])
async def test_a_body_of_another_form_is_refused(path: str) -> None:
    async with rig(replay()) as r:
        url = f"{r.gateway.url}/sessions" if path == "sessions" else f"{r.session.anthropic_url}{path}"
        headers = {**r.headers, "Content-Type": "application/json"}
        for body in (b"", b"null", b"[]", b"5", b'"x"', b"{", b"\xff\xfe", b"[" * 2000, b'{"a":' * 2000, DEEPER, HALF):
            async with r.http.post(url, data=body, headers=headers) as response:
                assert response.status == (201 if path == "sessions" and not body else 400), body[:20]
        await assert_alive(r)


HEADS = [
    b"Authorization: Bearer \xff\xfe", b"x-api-key: \xe9", b"Host: [::1", b"Host: \xff", b"Origin: http://[::1",
    b"User-Agent: \xff\xfe\xfd/1.0", b"x-claude-code-agent-id: \xff\xfe",
    b'x-codex-turn-metadata: {"agent_name": "\xff"}', b"x-codex-turn-metadata: " + b"[" * 5000,
    b"x-stainless-retry-count: " + b"1" * 5000, "x-stainless-retry-count: ²".encode(), b"Content-Type: \xff",
    b"Content-Encoding: \xff", b"Accept: \xff",
]  # fmt: skip


@pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/models/%FF\xff", "sessions", "sessions/%FF"])
async def test_odd_headers_and_paths_are_served_or_refused(target: str) -> None:
    body = b'{"messages": [{"role": "user", "content": "Hi"}]}'
    async with rig(replay(), auto_sessions=True) as r:
        path = f"/{target}" if target.startswith("sessions") else f"/s/{r.session.id}{target}"
        method = "POST" if target.startswith("/v1/chat") else "GET"
        for head in HEADS:
            lines = [f"{method} {path} HTTP/1.1".encode("latin-1"), head, b"Connection: close"]
            for name, value in (
                (b"Host", b"localhost"), (b"Authorization", b"Bearer " + r.session.key.encode()),
                (b"Content-Type", b"application/json"), (b"Content-Length", str(len(body)).encode()),
            ):  # fmt: skip
                if not head.lower().startswith(name.lower() + b":"):
                    lines.append(name + b": " + value)
            reader, writer = await asyncio.open_connection("127.0.0.1", int(r.gateway.url.rpartition(":")[2]))
            writer.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)
            status = int((await reader.read()).split()[1])
            writer.close()
            assert status < 500, head
        await assert_alive(r)


async def test_labels_nested_deep_are_refused_and_hide_no_session() -> None:
    async with rig(replay()) as r:
        async with r.http.post(f"{r.gateway.url}/sessions", json={"labels": {"a": DEEP}}) as response:
            assert response.status == 400
        with pytest.raises(ValueError, match="labels"):
            r.gateway.open(labels={"a": object()})
        await assert_alive(r)


async def test_ignored_fields_are_named_within_bounds() -> None:
    async with rig(replay()) as r:
        many = {f"field-{index}-{'x' * 500}\r\nSet-Cookie: a": 1 for index in range(500)}
        url = f"{r.session.base_url}/chat/completions"
        body = {"messages": [{"role": "user", "content": "Hi"}], **many, "parallel_tool_calls": False}
        async with r.http.post(url, json=body, headers=r.headers) as response:
            assert response.status == 200
            assert len(response.headers["x-strands-ignored"]) < 4000
            assert "Set-Cookie" not in response.headers
        for number in range(30):
            await r.chat([{"role": "user", "content": "Hi"}], **{f"f{number}-{index}": 1 for index in range(20)})
        assert len(r.session.counters.ignored) <= 101


async def test_a_ban_on_parallel_calls_is_named_as_ignored() -> None:
    hi, ban = {"messages": [{"role": "user", "content": "Hi"}]}, {"parallel_tool_calls": False}
    choice = {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
    async with rig(replay()) as r:
        for path, body, name in (
            ("/v1/chat/completions", {**hi, **ban}, "parallel_tool_calls"),
            ("/v1/responses", {"input": "Hi", **ban}, "parallel_tool_calls"),
            ("/v1/messages", {**hi, **choice}, "disable_parallel_tool_use"),
        ):
            async with r.http.post(f"{r.session.anthropic_url}{path}", json=body, headers=r.headers) as response:
                assert response.headers["x-strands-ignored"] == name


async def test_neither_prompts_nor_keys_are_echoed_or_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    prompt, admin, upstream = "the-secret-of-this-machine", "admin-0123456789", "sk-upstream-0123456789"
    refused = SGLangHTTPError(401, f"wrong key {upstream}")
    async with rig([completion("Hello."), RuntimeError(prompt), refused], admin_key=admin) as r:
        key, told = r.session.key, ""
        chat, sessions = f"{r.session.base_url}/chat/completions", f"{r.gateway.url}/sessions"
        for url, role, given, status in (
            (chat, "user", key, 200), (chat, "user", key, 500), (chat, "user", key, 502), (chat, prompt, key, 400),
            (chat, "user", f"{key}x", 401), (sessions, "user", key, 401),
        ):  # fmt: skip
            body, headers = {"messages": [{"role": role, "content": prompt}]}, {"Authorization": f"Bearer {given}"}
            async with r.http.post(url, json=body, headers=headers) as response:
                told += await response.text() + str(response.headers)
                assert response.status == status, told
        async with r.http.get(sessions, headers={"x-api-key": admin}) as response:
            told += await response.text()
        assert not [secret for secret in (key, admin, upstream) if secret in told + caplog.text]
        assert prompt not in caplog.text


async def test_a_body_that_trickles_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strands_sglang.gateway.requests.BODY_SECONDS", 0.05)
    async with rig(replay()) as r:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(r.gateway.url.rpartition(":")[2]))
        head = f"POST /s/{r.session.id}/v1/messages HTTP/1.1\r\nHost: localhost\r\nx-api-key: {r.session.key}\r\n"
        writer.write(f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 408")
        writer.close()
        await assert_alive(r)
