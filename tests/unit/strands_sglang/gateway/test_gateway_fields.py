"""Every field of a request is obeyed, ignored or refused for a reason: tables against the vendors' own clients."""

from __future__ import annotations

import re
import typing
from pathlib import Path
from typing import Any

import pytest

from strands_sglang.gateway.dialects import anthropic_messages, chat_completions, google, responses
from strands_sglang.gateway.dialects.reading import SHARED_FIELDS, Fields
from tests.provider_support import completion
from tests.unit.gateway_support import (
    ANTHROPIC_TOOLS,
    CALL,
    CHAT_TOOLS,
    GOOGLE_TOOLS,
    assert_prefix,
    rig,
)

USER = {"role": "user", "content": "go"}
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
GOOGLE = "/v1beta/models/m:generateContent"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [USER]},
    RESPONSES: {"input": "go"},
    MESSAGES: {"messages": [USER], "max_tokens": 99},
    GOOGLE: {"contents": [{"parts": [{"text": "go"}]}]},
}
TABLES: dict[str, tuple[str, Fields]] = {
    CHAT: ("Chat Completions", chat_completions.FIELDS),
    RESPONSES: ("Responses", responses.FIELDS),
    MESSAGES: ("Anthropic", anthropic_messages.FIELDS),
    GOOGLE: ("Google", google.FIELDS),
}
KINDS = ("read", "quiet", "named", "vendor_tools", "refused")
OF_THE_CLIENT = {  # of google-genai's configuration: options of the client, which no request holds
    "automatic_continuation", "automatic_function_calling", "http_options", "should_return_http_response",
}  # fmt: skip


def typed_fields(path: str) -> set[str]:
    """The fields of a request as the vendor's own client types them."""
    if path == GOOGLE:
        types = pytest.importorskip("google.genai.types", reason="the extra 'test' is not installed")
        models = (types.GenerateContentConfig, types.GenerationConfig)
        return {name for model in models for name in model.model_fields} - OF_THE_CLIENT
    if path == MESSAGES:
        pytest.importorskip("anthropic", reason="the extra 'test' is not installed")
        from anthropic.types.beta import message_count_tokens_params, message_create_params

        typed: list[Any] = [
            message_create_params.MessageCreateParamsStreaming,
            message_count_tokens_params.MessageCountTokensParams,
        ]
    else:
        pytest.importorskip("openai", reason="the extra 'test' is not installed")
        from openai.types.chat import completion_create_params
        from openai.types.responses import response_create_params

        typed = [
            completion_create_params.CompletionCreateParamsStreaming
            if path == CHAT
            else response_create_params.ResponseCreateParamsStreaming
        ]
    return {name for each in typed for name in typing.get_type_hints(each)}


@pytest.mark.parametrize("path", TABLES)
def test_no_field_of_a_vendors_client_is_without_a_fate(path: str) -> None:
    _, fields = TABLES[path]
    fates = [name for table in (fields, SHARED_FIELDS) for kind in KINDS for name in getattr(table, kind)]
    assert len(set(fates)) == len(fates)  # one each
    assert typed_fields(path) - {*fates} == set()


def test_the_documentation_has_the_tables_of_the_code() -> None:
    page = (Path(__file__).parents[4] / "docs/reference/gateway.md").read_text(encoding="utf-8")
    section = page.partition("## Fields of requests\n")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    told = {row[0].strip("| "): [set(re.findall("`([^`]+)`", cell)) for cell in row[1:]] for row in rows}
    assert told == {
        name: [set(fields.refused), fields.named | fields.vendor_tools, set(fields.quiet)]
        for name, fields in TABLES.values()
    }


HELD = {"type": "continue", "previous_message_id": "msg_1"}
SUMMARY = {"type": "compaction", "content": "They spoke of sums."}
CROPPED = {"type": "image", "transformations": {"oversized": "crop"}}
PARTIAL = {"functionCall": {"name": "add", "partialArgs": [{"jsonPath": "$.a"}], "willContinue": True}}


@pytest.mark.parametrize(
    ("path", "more", "words"),
    [
        (MESSAGES, {"thread": HELD}, "thread is not supported: no thread is held here; send the whole history"),
        (MESSAGES, {"thread": {"type": "create"}}, "thread is not supported"),
        (MESSAGES, {"compaction": {"type": "auto"}}, "compaction is not supported: ask for a summary"),
        (MESSAGES, {"container": {"skills": [{"type": "custom", "skill_id": "s"}]}}, "container is not supported"),
        (MESSAGES, {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "no history is edited"),
        (MESSAGES, {"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}}, "no history is edited"),
        (MESSAGES, {"messages": [{"role": "assistant", "content": [SUMMARY]}, USER]}, "stands for earlier messages"),
        (MESSAGES, {"messages": [{"role": "user", "content": [SUMMARY]}, USER]}, "'compaction' part"),
        (
            MESSAGES,
            {"messages": [USER, {"role": "system", "content": "Now.", "clear_at": "next_user_message"}]},
            "messages[1].clear_at is not supported",
        ),
        (RESPONSES, {"conversation": "conv_1"}, "send the whole input, or previous_response_id"),
        (RESPONSES, {"conversation": {"id": "conv_1"}}, "conversation is not supported"),
        (RESPONSES, {"prompt": {"id": "pmpt_1"}}, "send its text in instructions and input"),
        (RESPONSES, {"context_management": [{"type": "compaction"}]}, "send the history that the model is to see"),
        (RESPONSES, {"background": True}, "wait for the answer"),
        (RESPONSES, {"thread": HELD}, "nothing is held under it; send the whole history"),
        (CHAT, {"previous_response_id": "resp_1"}, "previous_response_id is not supported: nothing is held under it"),
        (CHAT, {"conversation": "conv_1"}, "conversation is not supported"),
        (CHAT, {"functions": [{"name": "f"}]}, "use tools"),
        (CHAT, {"audio": {"voice": "x", "format": "wav"}}, "replies are text"),
        (CHAT, {"modalities": ["text", "audio"]}, "replies are text"),
        (CHAT, {"documents": [{"text": "x"}]}, "write them into a message"),
        (
            CHAT,
            {"messages": [USER, {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}, USER]},
            "messages[1].function_call is not supported: send it as one of tool_calls",
        ),
        (CHAT, {"messages": [USER, {"role": "assistant", "audio": {"id": "a"}}, USER]}, "send its words as content"),
        (MESSAGES, {"messages": [{"role": "user", "content": [CROPPED]}]}, "send the image as the model is to see it"),
        (GOOGLE, {"cachedContent": "cachedContents/1"}, "cachedContent is not supported"),
        (GOOGLE, {"generationConfig": {"continuation_token": "eA=="}}, "continuation_token is not supported"),
        (GOOGLE, {"generationConfig": {"responseModalities": ["TEXT", "IMAGE"]}}, "replies are text"),
        (GOOGLE, {"contents": [{"role": "model", "parts": [PARTIAL]}, {"parts": [{"text": "go"}]}]}, "partial_args"),
        (CHAT, {"stream": "perhaps"}, "stream must be true or false, got 'perhaps'"),
        (CHAT, {"temperature": "nan"}, "temperature must be a number, got 'nan'"),
        (CHAT, {"n": "2"}, "one sample per request"),
        (CHAT, {"max_tokens": 10.5}, "max_tokens must be a positive integer"),
        (CHAT, {"max_tokens": True}, "max_tokens must be a positive integer"),
        (GOOGLE, {"generationConfig": {"topK": "many"}}, "topK must be an integer, got 'many'"),
    ],
)  # fmt: skip
async def test_what_would_change_the_meaning_of_the_messages_is_refused(
    path: str, more: dict[str, Any], words: str
) -> None:
    async with rig([]) as r:
        refused = await r.post(path, {**BODIES[path], **more}, status=400)
        assert words in refused["error"]["message"]
        assert r.session.failure is None and not r.prompts


FORCED = {"mode": "ANY", "allowedFunctionNames": "add"}
ORPHANS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "tool", "tool_call_id": "c", "content": "3"}]},
    RESPONSES: {"input": [{"type": "function_call_output", "call_id": "c", "output": "3"}]},
    MESSAGES: {
        "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "3"}]}]
    },
    GOOGLE: {"contents": [{"parts": [{"functionResponse": {"id": "c", "name": "add", "response": {"output": "3"}}}]}]},
}


@pytest.mark.parametrize("path", ORPHANS)
async def test_a_history_that_begins_in_the_middle_of_a_call_is_refused(path: str) -> None:
    """Whatever field told its client that the rest is held here."""
    async with rig([]) as r:
        refused = await r.post(path, {**BODIES[path], **ORPHANS[path], "held_by_the_server": "x"}, status=400)
        assert "answers no call of this history: send the whole history" in refused["error"]["message"]


UNSET: list[tuple[str, dict[str, Any]]] = [
    (
        MESSAGES,
        {"thread": None, "container": None, "context_management": {"edits": []}, "cache_control": {"type": "x"}},
    ),
    (MESSAGES, {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}}),
    (MESSAGES, {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": {"type": "all"}}]}}),
    (RESPONSES, {"conversation": None, "prompt": None, "background": False, "truncation": "auto", "store": True}),
    (CHAT, {"modalities": ["text"], "audio": None, "service_tier": "auto", "parallel_tool_calls": None}),
    (CHAT, {"max_tokens": "99", "stream": "false", "n": "1", "logprobs": 0}),
    (CHAT, {"max_completion_tokens": 99.0, "n": 1.0, "parallel_tool_calls": "true"}),
    (GOOGLE, {"generationConfig": {"maxOutputTokens": "99", "candidateCount": "1", "responseModalities": ["text"]}}),
]


async def test_fields_that_are_not_set_and_numbers_given_as_text_change_nothing() -> None:
    async with rig([completion("Hi.")] * len(UNSET)) as r:
        for path, more in UNSET:
            url = f"{r.session.anthropic_url}{path}"
            async with r.http.post(url, json={**BODIES[path], **more}, headers=r.headers) as response:
                assert response.status == 200, await response.text()
                assert "x-strands-ignored" not in response.headers
                assert response.content_type == "application/json"
        assert all(prompt == r.prompts[0] for prompt in r.prompts)
        limits = [request.fields["sampling_params"].get("max_new_tokens") for request in r.client.requests]
        assert limits[-3:] == [99, 99, 99]


@pytest.mark.parametrize(
    ("path", "more", "ignored"),
    [
        (CHAT, {"seed": 1, "verbosity": "low", "made_up": 1}, "made_up, seed, verbosity"),
        (GOOGLE, {"generationConfig": {"topP": 1, "seed": 2.0, "imageConfig": {"a": 1}}}, "imageConfig, seed, topP"),
        (GOOGLE, {"generation_config": {"top_p": "0.5"}}, "top_p"),
        (MESSAGES, {"tools": [{"name": "f", "strict": True, "input_examples": [{"a": 1}]}]}, "tools.input_examples"),
        (GOOGLE, {"tools": [{"functionDeclarations": [{"name": "f", "behavior": "BLOCKING"}]}]}, "tools.behavior"),
        (RESPONSES, {"text": {"verbosity": "low"}}, "text.verbosity"),
        (RESPONSES, {"reasoning": {"effort": "low", "context": "all_turns"}}, "reasoning.context"),
        (CHAT, {"messages": [{**USER, "name": "Ann"}]}, "messages.name"),
        (GOOGLE, {"tools": GOOGLE_TOOLS, "toolConfig": {"functionCallingConfig": FORCED}}, "toolConfig"),
        (MESSAGES, {"output_config": {"effort": "low", "task_budget": {"total": 9}}}, "output_config.task_budget"),
    ],
)  # fmt: skip
async def test_the_answer_names_a_field_without_effect_as_its_client_does(
    path: str, more: dict[str, Any], ignored: str
) -> None:
    async with rig([completion("Hi.")]) as r:
        url = f"{r.session.anthropic_url}{path}"
        async with r.http.post(url, json={**BODIES[path], **more}, headers=r.headers) as response:
            assert response.status == 200, await response.text()
            assert response.headers["x-strands-ignored"] == ignored


async def test_sampling_of_a_client_is_taken_as_the_numbers_that_it_means() -> None:
    async with rig([completion("Hi.")], client_sampling=True) as r:
        await r.chat([USER], temperature="0.5", top_k=40.0, seed="7")
        params = r.client.requests[0].fields["sampling_params"]
        assert [params[name] for name in ("temperature", "top_k", "sampling_seed")] == [0.5, 40, 7]
        assert isinstance(params["top_k"], int)


# ---- tools that the vendor runs ------------------------------------------------

SEARCH = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "sums"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []}
MCP = {"type": "mcp_tool_result", "tool_use_id": "m", "is_error": False, "content": "x"}
CODE = {"executableCode": {"language": "PYTHON", "code": "1+2"}, "thoughtSignature": "x"}
RAN = {"code_execution_result": {"outcome": "OUTCOME_OK", "output": "3"}}


@pytest.mark.parametrize(
    ("path", "vendors", "counts"),
    [
        (MESSAGES, [SEARCH, FOUND], {"server_tool_use": 1, "web_search_tool_result": 1}),
        (MESSAGES, [{"type": "fallback", "from": {}}, MCP], {"fallback": 1, "mcp_tool_result": 1}),
        (MESSAGES, [SUMMARY], {"compaction": 1}),
        (GOOGLE, [CODE, RAN], {"executable_code": 1, "code_execution_result": 1}),
        (GOOGLE, [{"toolCall": {"id": "t"}}], {"tool_call": 1}),
    ],
)
async def test_what_a_vendors_own_tools_left_in_a_reply_is_left_out_and_counted(
    path: str, vendors: list[Any], counts: dict[str, int]
) -> None:
    key, parts, role, tools = ("messages", "content", "assistant", ANTHROPIC_TOOLS)
    go, more = USER, {"max_tokens": 99}
    if path == GOOGLE:
        key, parts, role, tools = ("contents", "parts", "model", GOOGLE_TOOLS)
        go, more = {"role": "user", "parts": [{"text": "go"}]}, {}
    async with rig([completion(f"I will add.\n{CALL}"), completion("3."), completion("Yes.")]) as r:
        first = await r.post(path, {key: [go], "tools": tools, **more})
        said = first["candidates"][0]["content"]["parts"] if path == GOOGLE else first["content"]
        result: dict[str, Any] = {"functionResponse": {"name": "add", "response": {"output": "3"}}}
        if path == MESSAGES:
            result = {"type": "tool_result", "tool_use_id": said[-1]["id"], "content": "3"}
        alone = {"role": role, parts: vendors}  # as streams leave it
        history = [go, {"role": role, parts: [*vendors, *said]}, alone, {"role": "user", parts: [result]}]
        await r.post(path, {key: history, "tools": tools, **more})
        assert_prefix(r)
        twice = {name: 2 * count for name, count in counts.items()}
        assert r.session.counters.extended == 1 and r.session.counters.unknown_tools == twice
        # A reply of nothing else is left out whole: an empty one was never given.
        await r.post(path, {key: [go, alone, go], **more})
        assert r.session.counters.unknown_tools == {name: 3 * count for name, count in counts.items()}
        assert r.session.conversation.text_of(r.prompts[2]).count("assistant") == 1


@pytest.mark.parametrize(
    ("path", "more", "left_out"),
    [
        (MESSAGES, {"mcp_servers": [{"type": "url", "url": "https://x", "name": "x"}]}, {"mcp_servers": 1}),
        (CHAT, {"web_search_options": {"search_context_size": "low"}, "tools": CHAT_TOOLS}, {"web_search_options": 1}),
    ],
)
async def test_a_field_that_brings_a_vendors_tools_is_left_out_and_counted_as_they_are(
    path: str, more: dict[str, Any], left_out: dict[str, int]
) -> None:
    async with rig([completion("Hi.")]) as r:
        await r.post(path, {**BODIES[path], **more})
        assert r.session.counters.unknown_tools == left_out and not r.session.counters.ignored
    async with rig([], strict=True) as strict:
        await strict.post(path, {**BODIES[path], **more}, status=400)


async def test_a_refusal_in_a_history_is_what_was_said() -> None:
    async with rig([completion("Hi.")] * 2) as r:
        for said in ({"content": "I will not."}, {"content": None, "refusal": "I will not."}):
            await r.chat([USER, {"role": "assistant", **said}, USER])
        assert r.prompts[0] == r.prompts[1]


# ---- bodies and empty replies ------------------------------------------------


async def test_a_byte_order_mark_before_the_body_is_no_part_of_it() -> None:
    async with rig([completion("Hi.")]) as r:
        headers = {**r.headers, "content-type": "application/json"}
        raw = b'\xef\xbb\xbf{"messages": [{"role": "user", "content": "\xef\xbb\xbfgo"}]}'
        async with r.http.post(f"{r.session.base_url}/chat/completions", data=raw, headers=headers) as response:
            assert response.status == 200, await response.text()
        assert "\ufeffgo" in r.session.conversation.text_of(r.prompts[0])


@pytest.mark.parametrize(("reply", "content"), [("", ""), ("<think>\nHm.\n</think>\n\n", ""), (CALL, None)])
async def test_a_reply_without_text_is_the_same_whole_and_streamed(reply: str, content: str | None) -> None:
    body = {"model": "m", "messages": [USER], "tools": CHAT_TOOLS}
    async with rig([completion(reply)] * 2) as r:
        whole = await r.post(CHAT, body)
        assert whole["choices"][0]["message"]["content"] == content
        chunks = [event for event in await r.events(CHAT, body) if event != "[DONE]"]
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        assert [delta["content"] for delta in deltas if "content" in delta] == [content]
