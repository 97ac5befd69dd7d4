"""Recorded requests of real clients: each is read, and where a client extends its history, so do the tokens."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from strands_sglang.conversation.messages import to_strands
from strands_sglang.gateway.canonical import Canon, MessagePlacement, Readings
from strands_sglang.gateway.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from strands_sglang.gateway.dialects.chat_completions import CHAT_COMPLETIONS
from strands_sglang.gateway.dialects.responses import RESPONSES
from strands_sglang.gateway.dialects.wire import WireDialect, WireRequest
from strands_sglang.trajectory import Message
from tests.conftest import SHARED, requires_shared
from tests.provider_support import completion
from tests.unit.gateway_support import rig, trained_once

pytestmark = requires_shared

# For every recorded request the index of the one whose reply its history ends with, or None for a new conversation.
FOLLOWS: dict[str, list[int | None]] = {
    "cc1": [None, 0],
    "cc_agent": [None, 0, None, None, 3, 2, 1],
    "cc_cut": [None, None, 1],
    "cc_env": [None, 0],
    "cc_err500": [None, None, None, 2],
    "cc_img": [None, 0],
    "cc_long": [None, 0, None, None, None, None],
    "cc_maxtok": [None, 0, 1, 2],
    "cc_old": [None, None, 1],
    "cc_resume": [None, 0, 1, 2, 2, None, 5],
    "cx1": [None, 0],
    "cx_cut": [None, None, 1],
    "cx_err500": [None, None, None, 2],
    "cx_resume": [None, 0, 1],
    "oc1": [None, None, 1],
    "py_agents_chat": [None, 0, 1, 1],
    "py_agents_resp": [None, 0, 1, 1],
    "py_inspect": [None, 0],
    "py_langgraph": [None, 0, 1],
    "py_langgraph_anthropic": [None, 0, 1],
    "py_litellm": [None, 0],
    "py_mini": [None, 0, 0],
    "py_pydantic_ai": [None, 0, 1],
    "py_smolagents": [None, 0, None],
}


def requests_of(name: str) -> list[dict[str, Any]]:
    """The recorded model requests of a run, with an image where the record has only its digest."""
    lines = (SHARED / "data" / "client_requests" / f"{name}.jsonl").read_text().splitlines()
    readable = [re.sub(r"<base64[^>]*>", "AAAA", line.replace("<text 9 #96485abc>", "image/png")) for line in lines]
    return [record for record in map(json.loads, readable) if record["method"] == "POST"]


def dialect_of(path: str) -> WireDialect:
    return next(d for part, d in DIALECTS.items() if part in path)


DIALECTS = {"chat/completions": CHAT_COMPLETIONS, "/responses": RESPONSES, "/messages": ANTHROPIC_MESSAGES}


def read(record: dict[str, Any]) -> WireRequest:
    return dialect_of(record["path"]).read(record["body"], Readings(lambda receipt: None))


class Anywhere(MessagePlacement):
    """Every message stays where it stands."""

    def accepts(self, before: str, role: str) -> bool:
        return True


def arranged(wire: WireRequest) -> list[Message]:
    return Canon(placement=Anywhere(str), glue=wire.glue).arrange(wire.history).history.messages


@pytest.mark.parametrize("name", FOLLOWS)
def test_a_recorded_history_holds_the_one_before_in_canonical_form(name: str) -> None:
    seen: list[tuple[Any, list[Any]]] = []
    follows: list[int | None] = []
    for record in requests_of(name):
        wire = read(record)
        messages = arranged(wire)
        context = (wire.system, wire.tools)
        follows.append(
            next(
                (
                    k
                    for k, (earlier, held) in reversed(list(enumerate(seen)))
                    if earlier == context and messages[: len(held)] == held and len(messages) > len(held)
                    and messages[len(held)].role == "assistant"
                ),
                None,
            )
        )  # fmt: skip
        seen.append((context, messages))
    assert follows == FOLLOWS[name]


# Runs in which every history extends; the others hold compactions, or replies rewritten as text.
EXTENDING = [
    "cc1", "cc_agent", "cc_env", "cc_maxtok", "cc_old", "cx1", "cx_resume", "oc1", "py_agents_chat", "py_agents_resp",
    "py_inspect", "py_langgraph", "py_langgraph_anthropic", "py_litellm", "py_mini", "py_pydantic_ai",
]  # fmt: skip


def sampled_text(blocks: list[dict[str, Any]]) -> str:
    """The ids a model samples for a recorded reply."""
    text = ""
    for block in blocks:
        if "reasoningContent" in block:
            text += f"<think>\n{block['reasoningContent']['reasoningText']['text'].strip()}\n</think>\n\n"
        elif "text" in block:
            text += block["text"].strip() + "\n"
        else:
            call = {"name": block["toolUse"]["name"], "arguments": block["toolUse"]["input"]}
            text += f"<tool_call>{json.dumps(call)}</tool_call>"
    return text


def replies_of(name: str, records: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The reply to every request, where a later history shows it."""
    canonical = [arranged(read(record)) for record in records]
    replies: list[list[dict[str, Any]]] = [[{"text": "Done."}] for _ in records]
    for messages, earlier in zip(canonical, FOLLOWS[name], strict=True):
        if earlier is not None:
            replies[earlier] = to_strands(messages[len(canonical[earlier])])["content"]
    return replies


def issued(answer: dict[str, Any]) -> dict[str, list[str]]:
    """Ids of calls and receipts of an answer."""
    if "choices" in answer:
        calls = answer["choices"][0]["message"].get("tool_calls") or []
        return {"calls": [call["id"] for call in calls], "receipts": []}
    if "output" in answer:
        items = answer["output"]
        return {
            "calls": [item["call_id"] for item in items if item["type"] == "function_call"],
            "receipts": [item["encrypted_content"] for item in items if item["type"] == "reasoning"],
        }
    blocks = answer["content"]
    return {
        "calls": [block["id"] for block in blocks if block["type"] == "tool_use"],
        "receipts": [block["signature"] for block in blocks if block["type"] == "thinking"],
    }


@pytest.mark.parametrize("name", EXTENDING)
async def test_a_recorded_run_extends_token_by_token(name: str) -> None:
    records = requests_of(name)
    replies = replies_of(name, records)
    ids_of_agents: dict[str, dict[str, str]] = {}  # the stub gave every sub-agent the same ids
    async with rig([completion(sampled_text(reply)) for reply in replies]) as r:
        for record, reply in zip(records, replies, strict=True):
            agent = record["headers"].get("x-claude-code-agent-id", "")
            ids = ids_of_agents.setdefault(agent, {})
            text = json.dumps({**record["body"], "stream": False})
            for old, new in ids.items():
                text = text.replace(f'"{old}"', f'"{new}"')
            answer = await r.post(record["path"], json.loads(text), headers={"x-claude-code-agent-id": agent})
            given = issued(answer)
            old_ids = [block["toolUse"]["toolUseId"] for block in reply if "toolUse" in block]
            if not any(old in ids for old in old_ids):
                ids |= dict(zip(old_ids, given["calls"], strict=True))
        assert r.session.counters.extension_rate == 1.0
        sampled = r.sampled()
        for k, earlier in enumerate(FOLLOWS[name]):
            if earlier is not None:
                held = [*r.prompts[earlier], *sampled[earlier]]
                assert r.prompts[k][: len(held)] == held
        assert trained_once(r.session)
