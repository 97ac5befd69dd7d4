"""Items and blocks that Codex and Claude Code put into a history by themselves: read, left out, or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.provider_support import completion
from tests.unit.gateway_support import CALL, RESPONSES_TOOLS, assert_prefix, rig

USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Go."}]}
EXEC = {"type": "custom", "name": "exec", "description": "Runs JavaScript."}
ADDITIONAL = {
    "type": "additional_tools",
    "role": "developer",
    "tools": [{"type": "namespace", "name": "functions", "tools": [EXEC]}, {"type": "namespace", "name": "agents"}],
}


def call_of(name: str, **arguments: Any) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {json.dumps(arguments)}}}</tool_call>'


@pytest.mark.parametrize(
    ("items", "shown", "left_out"),
    [
        ([ADDITIONAL, USER], "Runs JavaScript.", {"namespace": 1}),
        (
            [USER, {"type": "agent_message", "author": "a", "recipient": "b",
                    "content": [{"type": "input_text", "text": "found"}, {"type": "encrypted_content", "data": "x"}]}],
            "Message from a to b:\nfound", {},
        ),
        (
            [USER, {"type": "agent_message", "content": [{"type": "encrypted_content"}]}, USER],
            "Go.", {"agent_message": 1},
        ),
        (
            [USER, {"type": "custom_tool_call", "call_id": "c", "name": "exec", "input": "let x"},
             {"type": "custom_tool_call_output", "call_id": "c", "output": "out"}],
            '{"name": "exec", "arguments": {"input": "let x"}}', {},
        ),
        (
            [USER, {"type": "local_shell_call", "call_id": "c", "action": {"type": "exec", "command": ["ls", "-a"]}},
             {"type": "local_shell_call_output", "call_id": "c", "output": "a b"}],
            '{"name": "local_shell", "arguments": {"type": "exec", "command": ["ls", "-a"]}}', {},
        ),
        (
            [USER, {"type": "tool_search_call", "call_id": "c", "arguments": {"query": "mail"}},
             {"type": "tool_search_output", "call_id": "c", "tools": [{"name": "send_mail"}]}],
            '[{"name":"send_mail"}]', {},
        ),
        ([USER, {"type": "tool_search_call", "arguments": {}}, USER], "Go.", {"tool_search_call": 1}),
        (
            [USER, {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
             {"type": "shell_call_output", "call_id": "c",
              "output": [{"stdout": "a b", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]}],
            '<tool_response>[{"stdout":"a b","stderr":"","outcome":{"type":"exit","exit_code":0}}]</tool_response>', {},
        ),
        (
            [USER, {"type": "apply_patch_call", "call_id": "c", "operation": {"type": "delete_file", "path": "a"}},
             {"type": "apply_patch_call_output", "call_id": "c", "status": "completed"}],
            '{"name": "apply_patch", "arguments": {"type": "delete_file", "path": "a"}}', {},
        ),
        (
            [USER, {"type": "apply_patch_call", "call_id": "c", "operation": {}},
             {"type": "apply_patch_call_output", "call_id": "c", "status": "failed"}],
            "<tool_response>failed</tool_response>", {},
        ),
        (
            [USER, {"type": "computer_call", "call_id": "c", "action": {"type": "screenshot"}},
             {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot"}}, USER],
            "Go.", {"computer_call": 1, "computer_call_output": 1},
        ),
        ([USER, {"type": "ghost_snapshot", "ghost_commit": {"id": "x"}}, USER], "Go.", {"ghost_snapshot": 1}),
        ([USER, {"type": "agent_message", "message": "found"}], "user\nMessage:\nfound", {}),
        (
            [USER, {"type": "agent_message", "author": "a", "content": [{"type": "text", "text": "found"}]}],
            "user\nMessage from a:\nfound", {},
        ),
        ([{"type": "web_search_call", "id": "w", "status": "completed"}, USER], "Go.", {"web_search_call": 1}),
    ],
)  # fmt: skip
async def test_items_of_codex_are_read_or_left_out_and_counted(items: Any, shown: str, left_out: Any) -> None:
    async with rig([completion("Done.")]) as r:
        await r.responses(items)
        assert shown in r.session.conversation.text_of(r.prompts[0])
        assert r.session.counters.unknown_tools == left_out


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"type": "compaction", "encrypted_content": "x"}, "only its maker reads"),
        ({"type": "item_reference", "id": "msg_of_another"}, "'msg_of_another' is not known here; send it whole"),
        ({"type": "hologram"}, "an item of type 'hologram' is not supported"),
    ],
)
async def test_what_would_change_the_meaning_is_refused(item: Any, words: str) -> None:
    async with rig([]) as r:
        assert words in (await r.responses([USER, item, USER], status=400))["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("added", [False, True])
async def test_a_custom_tool_is_called_with_a_text_and_extends(added: bool, stream: bool) -> None:
    script = 'text("hi\\n")'
    tools: dict[str, Any] = {} if added else {"tools": [EXEC]}
    items: list[Any] = [*([ADDITIONAL] if added else ()), USER]
    async with rig([completion(call_of("exec", input=script)), completion("Done.")]) as r:
        if stream:
            events = await r.events("/v1/responses", {"model": "m", "input": items, **tools})
            kinds = [event["type"] for event in events]
            assert "response.custom_tool_call_input.delta" in kinds
            output = events[-1]["response"]["output"]
            (added_item,) = [e["item"] for e in events if e["type"] == "response.output_item.added"]
            assert added_item["input"] == ""
        else:
            output = (await r.responses(items, **tools))["output"]
        (call,) = output
        assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "exec", script)
        said = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "hi"}
        await r.responses([*items, call, said], **tools)
        assert_prefix(r)
        assert r.session.counters.extended == 1


async def test_a_custom_call_with_other_arguments_is_given_as_they_are() -> None:
    async with rig([completion(call_of("exec", code=1))]) as r:
        (call,) = (await r.responses([USER], tools=[EXEC]))["output"]
        assert call["input"] == '{"code":1}'


async def test_items_of_a_reply_may_be_named_instead_of_sent() -> None:
    thought = f"<think>\nLet me add.\n</think>\n\nI will add.\n{CALL}"
    async with rig([completion(thought), completion("3.")]) as r:
        output = (await r.responses([USER], tools=RESPONSES_TOOLS))["output"]
        assert [item["type"] for item in output] == ["reasoning", "message", "function_call"]
        named = [{"type": "item_reference", "id": item["id"]} for item in output]
        said = {"type": "function_call_output", "call_id": output[-1]["call_id"], "output": "3"}
        await r.responses([USER, *named, said], tools=RESPONSES_TOOLS)
        assert_prefix(r)
        assert r.session.counters.extended == 1


async def test_a_tool_that_toolsearch_finds_is_defined_in_the_result_and_the_path_goes_on() -> None:
    search = {"name": "ToolSearch", "input_schema": {"type": "object"}}
    fetch = {"name": "Fetch", "description": "Gets a page.", "input_schema": {"type": "object"}, "defer_loading": True}
    user = {"role": "user", "content": "Go."}
    async with rig([completion(call_of("ToolSearch")), completion(call_of("Fetch")), completion("Done.")]) as r:
        first = await r.messages([user], tools=[search])
        found = [{"type": "tool_reference", "tool_name": "Fetch"}]
        result = {"type": "tool_result", "tool_use_id": first["content"][-1]["id"], "content": found}
        history = [user, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]
        second = await r.messages(history, tools=[search, fetch])
        assert second["content"][-1]["name"] == "Fetch"
        assert "Gets a page." in r.session.conversation.text_of(r.prompts[1])
        result = {"type": "tool_result", "tool_use_id": second["content"][-1]["id"], "content": "page"}
        history += [{"role": "assistant", "content": second["content"]}, {"role": "user", "content": [result]}]
        await r.messages(history, tools=[search, fetch])
        assert_prefix(r)
        assert (r.session.counters.extended, r.session.counters.refused) == (2, 0)
