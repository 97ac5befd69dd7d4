"""OpenAI Responses: `/v1/responses`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ...trajectory import History, Message
from ..canonical import Read, Readings, join_replies
from ..exact_json import dumps
from . import reading
from .chat_completions import CHAT_COMPLETIONS
from .wire import (
    Refused,
    Route,
    WireDialect,
    WireReply,
    WireRequest,
    id_fields,
    json_of,
    logprob_entries,
    named_event,
    openai_usage,
)

FIELDS = reading.Fields(
    read=frozenset({
        "include", "input", "instructions", "max_output_tokens", "previous_response_id", "text", "tool_choice",
        "truncation",  # of a prompt that does not fit, which is refused
    }),
    quiet=frozenset({
        "access_programs", "background_options", "client_metadata", "max_tool_calls", "metadata", "prompt_cache_key",
        "prompt_cache_options", "prompt_cache_retention", "reasoning", "safety_identifier", "service_tier", "store",
        "stream_options", "user",
    }),
    named=frozenset({"image", "moderation", "top_logprobs"}),
    refused={
        "background": "send the request without it, and wait for the answer",
        "context_management": "send the history that the model is to see",
        "conversation": "no conversation is held here under an id; send the whole input, or previous_response_id",
        "prompt": "no prompt is held here under an id; send its text in instructions and input",
    },
    of_tools=frozenset({"type"}),
)  # fmt: skip
_HOLLOW: dict[str, dict[str, Any]] = {
    "reasoning": {"summary": [], "status": "in_progress"},
    "message": {"content": [], "status": "in_progress"},
    "function_call": {"arguments": "", "status": "in_progress"},
    "custom_tool_call": {"input": "", "status": "in_progress"},
}
"""Items of a stream before their deltas."""
_SEARCHES = ("tool_search_call", "tool_search_output")  # without an id if the vendor's server made them
_TEXT_PARTS = ("input_text", "output_text", "text", "refusal")


def read(body: Mapping[str, Any], readings: Readings) -> WireRequest:
    """A request from its body."""
    items = body.get("input")
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    items = reading.want(list, items, "input")
    tools = _all_tools(body, items)
    fields = reading.common_fields({**body, "tools": tools}, FIELDS, _read_tool)
    text = reading.want(dict, body.get("text") or {}, "text")
    if text.get("verbosity"):
        fields["ignored"] += ("text.verbosity",)
    if reading.want(dict, body.get("reasoning") or {}, "reasoning").get("context") not in (None, "auto"):
        fields["ignored"] += ("reasoning.context",)
    read = readings.read(items, partial(_read_item, readings=readings), _left_out)
    previous = body.get("previous_response_id")
    before = (
        History() if previous is None else readings.responses.get(reading.want(str, previous, "previous_response_id"))
    )
    if before is None:
        raise Refused(
            f"previous_response_id {previous!r} is not known here; send the whole input",
            code="previous_response_not_found",
            param="previous_response_id",
        )
    fields["unknown_tools"] += read.left_out
    history, begun = read.history, None
    # Codex goes on from the items that it has when the stream of an answer breaks off; calls among them it makes.
    while history.before is not None and (last := history.last) and last.role == "assistant" and not last.calls:
        begun = last if begun is None else join_replies(last, begun)
        history = history.before
    return WireRequest(
        system=reading.system_of(body.get("instructions"), "instructions", _read_part, read),
        history=history if previous is None else before.and_then(history),
        glue="\n",
        max_tokens=reading.want_count(body.get("max_output_tokens"), "max_output_tokens"),
        constraints=reading.json_format(text.get("format"), "text.format"),
        tool_choice=reading.read_choice(body.get("tool_choice")),
        logprobs="message.output_text.logprobs" in reading.want(list, body.get("include") or [], "include"),
        begun=begun,
        previous=previous,
        kept_by=readings,
        custom_tools=frozenset(
            tool["name"] for tool in tools if isinstance(tool, dict) and tool.get("type") == "custom" and "name" in tool
        ),
        **fields,
    )


def _left_out(item: Any, message: Message | None) -> tuple[str, ...]:
    return () if message is not None or item["type"] == "additional_tools" else (item["type"],)


def _all_tools(body: Mapping[str, Any], items: list[Any]) -> list[Any]:
    """The tools of a request, with those that Codex adds as an item for models of its catalogue."""
    tools = list(reading.want(list, body.get("tools") or [], "tools"))
    for index, item in enumerate(items):
        if isinstance(item, dict) and item.get("type") == "additional_tools":
            for tool in reading.want(list, item.get("tools") or [], f"input[{index}].tools"):
                # Functions without a namespace; the others are left out, as in `tools`.
                is_plain = isinstance(tool, dict) and (tool.get("type"), tool.get("name")) == ("namespace", "functions")
                tools += reading.want(list, tool.get("tools") or [], f"input[{index}].tools") if is_plain else [tool]
    return tools


_FREE_TEXT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
"""Parameters of a custom tool, which takes a text: the model is shown a function of one string."""


def _read_tool(tool: Mapping[str, Any], where: str) -> dict[str, Any] | str:
    if tool.get("type") == "custom":
        return reading.tool_spec(tool.get("name"), tool.get("description"), _FREE_TEXT, where)
    if tool.get("type") != "function":
        return str(tool.get("type"))
    return reading.tool_spec(tool.get("name"), tool.get("description"), tool.get("parameters"), where)


_LEFT_OUT = frozenset({
    "additional_tools", "code_interpreter_call", "computer_call", "computer_call_output", "configuration_update",
    "file_search_call", "ghost_snapshot", "image_generation_call", "mcp_approval_request", "mcp_approval_response",
    "mcp_call", "mcp_list_tools", "program", "program_output", "web_search_call",
})  # fmt: skip
"""Items without words of the conversation: definitions, a client's notes, and tools of a vendor's own."""
_CALLS = {
    "function_call": "arguments", "custom_tool_call": "input", "tool_search_call": "arguments",
    "local_shell_call": "action", "shell_call": "action", "apply_patch_call": "operation",
}  # fmt: skip
"""Items that are calls, and the fields of their arguments."""
_OUTPUTS = (
    "function_call_output", "custom_tool_call_output", "local_shell_call_output", "shell_call_output",
    "apply_patch_call_output", "tool_search_output",
)  # fmt: skip


def _read_item(given: Any, index: int, before: Sequence[Read], *, readings: Readings) -> Message | None:
    """An item as a message, or None for one that is left out; those of one reply are joined afterwards."""
    where = f"input[{index}]"
    item = reading.want(dict, given, where)
    kind = reading.want(str, item.get("type", "message"), f"{where}.type")
    call_id = item.get("call_id") or item.get("id")
    if kind == "message":
        # Codex sends no `instructions`: its system prompt is a developer message.
        role = reading.want_role(item.get("role"), where, "system", "developer", "user", "assistant")
        of_tools = reading.is_of_tools(role, before)
        pieces = reading.read_content(item.get("content"), f"{where}.content", _read_part, of_tools=of_tools)
        return reading.message_of(role, pieces, where, of_tools=of_tools)
    if kind in _CALLS and not (kind in _SEARCHES and call_id is None):
        name, arguments = item.get("name"), item.get(_CALLS[kind])
        if kind == "custom_tool_call":
            arguments = {"input": reading.want(str, arguments, f"{where}.input")}
        elif kind != "function_call":  # as calls of functions with these names
            name = kind.removesuffix("_call")
        call = reading.call_of(item.get("call_id") if kind == "function_call" else call_id, name, arguments, where)
        return Message(role="assistant", calls=(call,))
    if kind in _LEFT_OUT or (kind in _SEARCHES and call_id is None):
        return None
    if kind in _OUTPUTS:
        output = item.get("output")
        if kind == "tool_search_output":
            output = dumps(item.get("tools") or []).decode()
        elif kind == "shell_call_output":  # the output and the end of each command
            output = dumps(output).decode()
        elif kind == "apply_patch_call_output" and output is None:
            output = item.get("status")
        content = reading.read_content(output, f"{where}.output", _read_part, of_tools=True)
        return reading.message_of("user", [reading.result_of(call_id, content, f"{where}.call_id")], where)
    if kind == "reasoning":
        parts = reading.want(list, item.get("content") or item.get("summary") or [], f"{where}.summary")
        texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
        # Codex and openai-agents send it back as it came, so it carries our receipt.
        receipt = readings.turn_of(item.get("encrypted_content"))
        return Message(role="assistant", reasoning="\n".join(texts), receipt=receipt)
    if kind == "agent_message":  # of a sub-agent, or to one; some hold parts that only their maker can read
        words = item.get("content") or item.get("message") or []
        words = {"type": "text", "text": words} if isinstance(words, str) else words
        parts = reading.as_list(words, f"{where}.content")
        readable = [part for part in parts if not (isinstance(part, dict) and part.get("type") == "encrypted_content")]
        if not readable:
            return None
        names = {"from": item.get("author"), "to": item.get("recipient")}
        head = " ".join(["Message", *[f"{word} {name}" for word, name in names.items() if name]])
        return reading.message_of("user", [f"{head}:", *reading.read_content(readable, where, _read_part)], where)
    if kind == "item_reference":
        name = reading.want(str, item.get("id"), f"{where}.id")
        if (named := readings.items.get(name)) is None:
            raise Refused(f"the item {name!r:.100} is not known here; send it whole", param="input")
        return named
    what = f"{where}: an item of type {reading.quote(kind)} is not supported"
    if "compaction" in kind:
        what = f"{where}: a {kind} item holds earlier turns in a form that only its maker reads; start without it"
    raise Refused(what, param=where)


def _read_part(part: Mapping[str, Any], where: str) -> reading.Piece:
    kind = part.get("type")
    if kind in _TEXT_PARTS:
        return reading.want(str, part.get("refusal" if kind == "refusal" else "text"), where)
    if kind == "input_image":
        return reading.image_of_url(part.get("image_url"), where)
    raise reading.unexpected_part(kind, where)


# ---- answers ------------------------------------------------


def _output(request: WireRequest, reply: WireReply) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    begun = request.begun or Message(role="assistant")

    def add(kind: str, item_id: str, status: str = "completed", **more: Any) -> None:
        items.append({"id": item_id, "type": kind, **more, "status": status})

    if reply.reasoning and not (begun.reasoning or begun.parts):
        summary = [{"type": "summary_text", "text": reply.reasoning}]
        add("reasoning", f"rs_{reply.id}", summary=summary, encrypted_content=reply.receipt)
    if (reply.text or not reply.calls) and not begun.parts:
        part = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": logprob_entries(reply)}
        status = "completed" if reply.finish != "length" else "incomplete"
        add("message", f"msg_{reply.id}", status, role="assistant", content=[part])
    for call in reply.calls:
        named = {"call_id": f"call_{call.id}", "name": call.name}
        if call.name in request.custom_tools:
            text = call.input.get("input")
            add("custom_tool_call", f"ctc_{call.id}", **named, input=text if isinstance(text, str) else json_of(call))
        else:
            add("function_call", f"fc_{call.id}", **named, arguments=json_of(call))
    return items


def _shell(request: WireRequest | None, response_id: str, created: int, model: str, status: str) -> dict[str, Any]:
    return {
        "id": response_id,
        "object": "response",
        "created_at": created,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None if request is None else request.max_tokens,
        "metadata": {},
        "model": model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None if request is None else request.previous,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": None,
    }


def answer(request: WireRequest, reply: WireReply) -> dict[str, Any]:
    """The body of an answer."""
    status = "incomplete" if reply.finish == "length" else "completed"
    body = _shell(request, f"resp_{reply.id}", reply.created, reply.model, status)
    body |= {"output": _output(request, reply), "usage": openai_usage(reply, "input", "output"), **id_fields(reply)}
    if status == "incomplete":
        body["incomplete_details"] = {"reason": "max_output_tokens"}
    return body


def events(request: WireRequest, reply: WireReply) -> Iterator[bytes]:
    """The events of a stream: one delta for reasoning, text and the arguments of every call."""
    final = answer(request, reply)
    opened = _shell(request, final["id"], reply.created, reply.model, "in_progress")
    listed: list[dict[str, Any]] = [
        {"type": "response.created", "response": opened},
        {"type": "response.in_progress", "response": opened},
    ]
    for index, item in enumerate(final["output"]):
        place = {"item_id": item["id"], "output_index": index}
        listed.append(
            {"type": "response.output_item.added", "output_index": index, "item": {**item, **_HOLLOW[item["type"]]}}
        )
        listed.extend({**place, **event} for event in _inner_events(item))
        listed.append({"type": "response.output_item.done", "output_index": index, "item": item})
    listed.append({"type": f"response.{final['status']}", "response": final})
    for number, event in enumerate(listed):
        yield named_event({**event, "sequence_number": number})


def _inner_events(item: dict[str, Any]) -> list[dict[str, Any]]:
    if (field := _CALLS.get(item["type"])) is not None:
        name, text = f"response.{item['type']}_{field}", item[field]
        named = {"name": item["name"]} if field == "arguments" else {}
        return [{"type": f"{name}.delta", "delta": text}, {"type": f"{name}.done", **named, field: text}]
    if item["type"] == "reasoning":
        (part,) = item["summary"]
        empty = {**part, "text": ""}
        name, at, text = "response.reasoning_summary", {"summary_index": 0}, part["text"]
        return [
            {"type": f"{name}_part.added", **at, "part": empty},
            {"type": f"{name}_text.delta", **at, "delta": text},
            {"type": f"{name}_text.done", **at, "text": text},
            {"type": f"{name}_part.done", **at, "part": part},
        ]
    (part,) = item["content"]
    text, at, logprobs = part["text"], {"content_index": 0}, part["logprobs"]
    deltas = [{"type": "response.output_text.delta", **at, "delta": text, "logprobs": logprobs}] if text else []
    return [
        {"type": "response.content_part.added", **at, "part": {**part, "text": "", "logprobs": []}},
        *deltas,
        {"type": "response.output_text.done", **at, "text": text, "logprobs": logprobs},
        {"type": "response.content_part.done", **at, "part": part},
    ]


def error_event(refused: Refused) -> bytes:
    """The event of a response that failed."""
    message = CHAT_COMPLETIONS.error(refused)["error"]["message"]
    now = int(time.time())
    failed = _shell(None, f"resp_{now:x}", now, "", "failed")
    code = refused.code or ("server_error" if refused.status >= 500 else "invalid_prompt")
    failed["error"] = {"code": code, "message": message}
    return named_event({"type": "response.failed", "sequence_number": 0, "response": failed})


RESPONSES = WireDialect(
    name="responses",
    routes=(Route(path="/v1/responses"),),
    call_prefix="call_",
    read=read,
    answer=answer,
    events=events,
    error=CHAT_COMPLETIONS.error,
    error_event=error_event,
    ping=b": ping\n\n",
    overflow_in_stream=True,
)
