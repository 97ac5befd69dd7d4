"""Anthropic Messages: `/v1/messages` and `/v1/messages/count_tokens`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ...trajectory import Message
from ..canonical import Read, Readings
from ..exact_json import dumps
from . import reading
from .wire import ERROR_TYPES, Refused, Route, Unshown, WireDialect, WireReply, WireRequest, id_fields, named_event

FIELDS = reading.Fields(
    read=frozenset({
        "context_management", "max_tokens", "messages", "output_config", "output_format", "stop_sequences", "system",
        "tool_choice",
    }),
    quiet=frozenset({
        "betas", "billing_policy", "cache_control", "diagnostics", "fallback_credit_token", "fallbacks",
        "inference_geo", "metadata", "service_tier", "speed", "thinking", "user_profile_id", "workspace_id",
    }),
    vendor_tools=frozenset({"mcp_servers"}),
    refused={
        "compaction": "ask for a summary in a message",
        "container": "no files or skills are held here; send their text in messages",
        "thread": "no thread is held here; send the whole history in messages",
    },
    of_tools=frozenset({"cache_control", "defer_loading", "eager_input_streaming", "input_schema", "type"}),
)  # fmt: skip
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_ERROR_TYPES = {**ERROR_TYPES, 413: "request_too_large", 503: "overloaded_error"}


def read(body: Mapping[str, Any], readings: Readings) -> WireRequest:
    """A request from its body."""
    fields = reading.common_fields(body, FIELDS, _read_tool)
    choice = body.get("tool_choice")
    config = reading.want(dict, body.get("output_config") or {}, "output_config")
    if isinstance(choice, dict) and reading.want_flag(choice.get("disable_parallel_tool_use"), "tool_choice"):
        fields["ignored"] += ("disable_parallel_tool_use",)
    if config.get("task_budget"):
        fields["ignored"] += ("output_config.task_budget",)
    _check_edits(body.get("context_management"))
    items = reading.want(list, body.get("messages"), "messages")
    deferred = {str(tool.get("name")): tool for tool in body.get("tools") or () if tool.get("defer_loading")}
    read_part = partial(_read_part, deferred=deferred, turn_of=readings.turn_of)
    read = readings.read(
        items,
        partial(_read_message, read_part=read_part),
        left_out=lambda item, message: tuple(block["type"] for block in _vendor_blocks(item)),
    )
    fields["unknown_tools"] += read.left_out
    return WireRequest(
        system=reading.system_of(body.get("system"), "system", read_part, read),
        history=read.history,
        glue="\n",
        max_tokens=reading.want_count(body.get("max_tokens"), "max_tokens"),
        stop=reading.want_stops(body.get("stop_sequences"), "stop_sequences"),
        constraints=reading.json_format(config.get("format") or body.get("output_format"), "output_config.format"),
        tool_choice=reading.read_choice(choice),
        **fields,
    )


def _check_edits(value: Any) -> None:
    """Refuse edits of the history, but for the one that Claude Code asks for, which keeps all reasoning."""
    management = reading.want(dict, value or {}, "context_management")
    for index, item in enumerate(reading.want(list, management.get("edits") or [], "context_management.edits")):
        edit = reading.want(dict, item, f"context_management.edits[{index}]")
        kind = str(edit.get("type"))
        if not (kind.startswith("clear_thinking") and edit.get("keep") in ("all", {"type": "all"})):
            what = f"context_management: no history is edited here by {kind!r:.100}; send the edited messages"
            raise Refused(what, code="unsupported_parameter", param="context_management")


def _vendor_blocks(message: Any) -> list[dict[str, Any]]:
    """The blocks of a reply that tools of the vendor's own made, and its notes; no words of the conversation."""
    content = message.get("content") if isinstance(message, dict) and message.get("role") == "assistant" else None
    kinds = ("_tool_use", "_tool_result", "_tool_listing")  # of a server, of MCP, of a search, ...
    return [
        block
        for block in (content if isinstance(content, list) else ())
        if isinstance(block, dict) and isinstance(kind := block.get("type"), str)
        if kind.endswith(kinds) or kind in ("compaction", "fallback")
    ]


def _read_tool(tool: Mapping[str, Any], where: str) -> dict[str, Any] | str:
    if tool.get("type") not in (None, "custom"):
        return str(tool["type"])
    if tool.get("defer_loading"):  # Claude Code would add it in mid-conversation, which changes the context
        return "defer_loading"
    return reading.tool_spec(tool.get("name"), tool.get("description"), tool.get("input_schema"), where)


def _read_message(item: Any, index: int, before: Sequence[Read], *, read_part: reading.ReadPart) -> Message | None:
    where = f"messages[{index}]"
    message = reading.want(dict, item, where)
    # Claude Code sends environment and skills as system messages: behind the first user message, and behind results.
    role = reading.want_role(message.get("role"), where, "user", "assistant", "developer", "system")
    if message.get("clear_at") not in (None, "never"):
        raise Refused(f"{where}.clear_at is not supported: leave the message out where it is to be gone", param=where)
    content: Any = message.get("content")
    if left_out := _vendor_blocks(message):
        summary = next((block for block in left_out if block["type"] == "compaction" and block.get("content")), None)
        if summary is not None and not any(item.message for item in before):
            what = f"{where}: a compaction block stands for earlier messages; send those, or its text as a message"
            raise Refused(what, param=where)
        if len(left_out) == len(content):
            return None
        content = [{"type": "redacted_thinking"} if block in left_out else block for block in content]
    parts = content if role == "user" and isinstance(content, list) else []
    has_results = any(isinstance(part, dict) and part.get("type") == "tool_result" for part in parts)
    of_tools = has_results or reading.is_of_tools(role, before)
    pieces = reading.read_content(content, f"{where}.content", read_part, of_tools=of_tools)
    return reading.message_of(role, pieces, where, of_tools=of_tools)


def _read_part(
    block: Mapping[str, Any], where: str, *, deferred: Mapping[str, Any], turn_of: Callable[[Any], int | None]
) -> reading.Piece:
    kind = block.get("type")
    if kind == "tool_use":
        return reading.call_of(block.get("id"), block.get("name"), block.get("input"), where)
    if kind == "thinking":
        # Claude Code and langchain send the signature back as it came, so it carries our receipt.
        return reading.Thought(reading.want(str, block.get("thinking"), where), turn_of(block.get("signature")))
    if kind == "redacted_thinking":  # reasoning of another provider, which no template can print
        return reading.Thought("")
    if kind == "tool_reference":  # a deferred tool that Claude Code's ToolSearch found: its definition is read here
        name = reading.want(str, block.get("tool_name"), f"{where}.tool_name")
        tool = deferred.get(name, {})
        shown = {"name": name, "description": tool.get("description"), "parameters": tool.get("input_schema")}
        return dumps({key: value for key, value in shown.items() if value is not None}).decode()
    if kind == "text":
        return reading.want(str, block.get("text"), where)
    if kind == "tool_result":
        inner = block.get("content")
        read_part = partial(_read_part, deferred=deferred, turn_of=turn_of)
        result = reading.read_content([] if inner is None else inner, f"{where}.content", read_part, of_tools=True)
        return reading.result_of(
            block.get("tool_use_id"),
            result,
            f"{where}.tool_use_id",
            failed=reading.want_flag(block.get("is_error"), f"{where}.is_error"),
        )
    if kind == "image":
        reading.refuse_fields(block, {"transformations": "send the image as the model is to see it"}, f"{where}.")
        source = block["source"] if isinstance(block.get("source"), dict) else {}
        media = source.get("media_type") if source.get("type") == "base64" else None
        if not (isinstance(media, str) and media.startswith("image/")):
            raise Unshown("images must be base64", where)
        return reading.image_of_text(media[len("image/") :], source.get("data"), where)
    raise reading.unexpected_part(kind, where)


# ---- answers ------------------------------------------------


def _usage(reply: WireReply) -> dict[str, Any]:
    return {
        "input_tokens": reply.prompt_tokens - reply.cached_tokens,  # Anthropic counts cached tokens apart
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": reply.cached_tokens,
        "output_tokens": reply.output_tokens,
    }


def _content(reply: WireReply) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if reply.reasoning:
        blocks.append({"type": "thinking", "thinking": reply.reasoning, "signature": reply.receipt})
    if reply.text:
        blocks.append({"type": "text", "text": reply.text})
    for call in reply.calls:
        blocks.append({"type": "tool_use", "id": f"toolu_{call.id}", "name": call.name, "input": call.input})
    return blocks


def answer(request: WireRequest, reply: WireReply) -> dict[str, Any]:
    """The body of an answer."""
    return {
        "id": f"msg_{reply.id}",  # new with each reply: Claude Code joins messages of one id
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": _content(reply),
        "stop_reason": "stop_sequence" if reply.stop_string is not None else _STOP_REASONS[reply.finish],
        "stop_sequence": reply.stop_string,
        "usage": _usage(reply),
        **id_fields(reply),
    }


def events(request: WireRequest, reply: WireReply) -> Iterator[bytes]:
    """The events of a stream: one delta per block."""
    body = answer(request, reply)
    blocks = body["content"]
    end = {"stop_reason": body["stop_reason"], "stop_sequence": body["stop_sequence"]}
    opened = {**body, "content": [], "stop_reason": None, "stop_sequence": None}
    yield named_event({"type": "message_start", "message": {**opened, "usage": {**body["usage"], "output_tokens": 0}}})
    for index, block in enumerate(blocks):
        start, deltas = _block_events(block)
        yield named_event({"type": "content_block_start", "index": index, "content_block": start})
        for delta in deltas:
            yield named_event({"type": "content_block_delta", "index": index, "delta": delta})
        yield named_event({"type": "content_block_stop", "index": index})
    yield named_event({"type": "message_delta", "delta": end, "usage": body["usage"]})
    yield named_event({"type": "message_stop"})


def _block_events(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    if block["type"] == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
    if block["type"] == "thinking":
        deltas = [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": block["signature"]},
        ]
        return {**block, "thinking": "", "signature": ""}, deltas
    text = dumps(block["input"]).decode()
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": text}]


def error(refused: Refused) -> dict[str, Any]:
    """The body of a refusal, as Anthropic writes it; clients compact at these very words of an overflow."""
    kind = _ERROR_TYPES.get(refused.status, "api_error" if refused.status >= 500 else "invalid_request_error")
    message = refused.message
    if refused.prompt is not None:
        message = "prompt is too long: {} tokens > {} maximum".format(*refused.prompt)
    body: dict[str, Any] = {"type": kind, "message": message}
    if refused.param == "thread":  # at this code, Anthropic's clients send the whole history, now and from then on
        body["details"] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return {"type": "error", "error": body}


ANTHROPIC_MESSAGES = WireDialect(
    name="anthropic",
    routes=(Route(path="/v1/messages"), Route(path="/v1/messages/count_tokens", counts=True)),
    call_prefix="toolu_",
    key_headers=("x-api-key",),
    count=lambda tokens: {"input_tokens": tokens},
    read=read,
    answer=answer,
    events=events,
    error=error,
    error_event=lambda refused: named_event(error(refused)),
    ping=named_event({"type": "ping"}),
)
