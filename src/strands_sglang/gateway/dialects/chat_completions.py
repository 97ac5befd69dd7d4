"""OpenAI Chat Completions: `/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...trajectory import Call, Message
from ..canonical import Read, Readings
from . import reading
from .wire import (
    ERROR_TYPES,
    Refused,
    Route,
    WireDialect,
    WireReply,
    WireRequest,
    json_of,
    logprob_entries,
    openai_usage,
    plain_event,
)

FIELDS = reading.Fields(
    read=frozenset({
        "logprobs", "max_completion_tokens", "max_tokens", "messages", "modalities", "response_format", "stop",
        "stream_options", "tool_choice",
    }),
    quiet=frozenset({
        "metadata", "prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
        "safety_identifier", "service_tier", "store", "user",
    }),
    named=frozenset({"logit_bias", "moderation", "reasoning_effort", "top_logprobs", "verbosity"}),
    vendor_tools=frozenset({"web_search_options"}),
    refused={
        "audio": "replies are text; send the request without it",
        "continue_final_message": "a reply is sampled whole, never prefilled",
        "documents": "write them into a message",
        "chat_template": "the gateway has the template that the policy is trained with",
        "function_call": "use tools and tool_choice",
        "functions": "use tools and tool_choice",
    },
    of_tools=frozenset(),
)  # fmt: skip
_LOST = {
    "audio": "send its words as content",
    "function_call": "send it as one of tool_calls",
}  # fmt: skip
"""Fields of a message with content that its parts do not have."""


def read(body: Mapping[str, Any], readings: Readings) -> WireRequest:
    """A request from its body."""
    fields = reading.common_fields(body, FIELDS, _read_tool)
    reading.check_modalities(body.get("modalities"), "modalities")
    items = reading.want(list, body.get("messages"), "messages")
    if any(isinstance(item, dict) and item.get("name") and item.get("role") != "tool" for item in items):
        fields["ignored"] += ("messages.name",)  # of a speaker, which chat templates do not print
    options = body.get("stream_options")
    read = readings.read(items, _read_message)
    return WireRequest(
        system="\n".join(filter(None, read.system)),
        history=read.history,
        max_tokens=reading.want_count(body.get("max_completion_tokens") or body.get("max_tokens"), "max_tokens"),
        stop=reading.want_stops(body.get("stop"), "stop"),
        constraints=reading.json_format(body.get("response_format"), "response_format"),
        tool_choice=reading.read_choice(body.get("tool_choice")),
        usage_chunk=isinstance(options, dict) and reading.want_flag(options.get("include_usage"), "include_usage"),
        logprobs=reading.want_flag(body.get("logprobs"), "logprobs"),
        **fields,
    )


def _read_tool(tool: Mapping[str, Any], where: str) -> dict[str, Any] | str:
    function = tool.get("function")
    if tool.get("type", "function") != "function" or not isinstance(function, dict):
        return str(tool.get("type"))
    return reading.tool_spec(
        function.get("name"), function.get("description"), function.get("parameters"), f"{where}.function"
    )


def _read_message(item: Any, index: int, before: Sequence[Read]) -> Message:
    where = f"messages[{index}]"
    message = reading.want(dict, item, where)
    role = reading.want_role(message.get("role"), where, "system", "developer", "user", "assistant", "tool")
    reading.refuse_fields(message, _LOST, f"{where}.")
    content = message.get("content")
    if role == "assistant" and content in (None, "") and isinstance(message.get("refusal"), str):
        content = message["refusal"]
    if content is None and role in ("assistant", "tool"):  # calls alone, and a tool that returned nothing
        content = []
    of_tools = reading.is_of_tools(role, before)
    pieces = reading.read_content(content, f"{where}.content", _read_part, of_tools=of_tools)
    if role == "tool":
        result = reading.result_of(message.get("tool_call_id"), pieces, f"{where}.tool_call_id")
        return reading.message_of("user", [result], where)
    if role == "assistant":
        reasoning = message.get("reasoning_content") or message.get("reasoning")  # SGLang's name, then vLLM's
        thoughts = [reading.Thought(reasoning)] if isinstance(reasoning, str) else []
        pieces = [*pieces, *thoughts, *_read_calls(message.get("tool_calls"), f"{where}.tool_calls")]
    return reading.message_of(role, pieces, where, of_tools=of_tools)


def _read_calls(value: Any, where: str) -> list[Call]:
    calls = []
    for index, item in enumerate(reading.want(list, value or [], where)):
        place = f"{where}[{index}]"
        call = reading.want(dict, item, place)
        function = reading.want(dict, call.get("function"), f"{place}.function")
        calls.append(reading.call_of(call.get("id"), function.get("name"), function.get("arguments"), place))
    return calls


def _read_part(part: Mapping[str, Any], where: str) -> reading.Piece:
    kind = part.get("type")
    if kind in ("text", "refusal"):
        return reading.want(str, part.get(kind), where)
    if kind == "image_url":
        url = part.get("image_url")
        return reading.image_of_url(url.get("url") if isinstance(url, dict) else url, where)
    raise reading.unexpected_part(kind, where)


# ---- answers ------------------------------------------------


def _logprobs(reply: WireReply) -> dict[str, Any] | None:
    return None if reply.logprobs is None else {"content": logprob_entries(reply), "refusal": None}


def _calls(reply: WireReply) -> list[dict[str, Any]]:
    return [
        {"id": f"call_{call.id}", "type": "function", "function": {"name": call.name, "arguments": json_of(call)}}
        for call in reply.calls
    ]


def _text(reply: WireReply) -> str | None:
    """The text of a reply; calls alone have none, and an empty reply an empty one."""
    return reply.text if reply.text or not reply.calls else None


def _head(reply: WireReply, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{reply.id}", "object": kind, "created": reply.created, "model": reply.model}


def answer(request: WireRequest, reply: WireReply) -> dict[str, Any]:
    """The body of an answer."""
    message: dict[str, Any] = {"role": "assistant", "content": _text(reply), "refusal": None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = _calls(reply)
    choice = {"index": 0, "message": message, "logprobs": _logprobs(reply), "finish_reason": reply.finish}
    body = {**_head(reply, "chat.completion"), "choices": [choice]}
    body["usage"] = openai_usage(reply, "prompt", "completion")
    if reply.output_ids is not None:
        choice["token_ids"] = list(reply.output_ids)
        body["prompt_token_ids"] = list(reply.prompt_ids or ())
    return body


def events(request: WireRequest, reply: WireReply) -> Iterator[bytes]:
    """The events of a stream: a delta each for reasoning, text and every call."""
    head = _head(reply, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, **more}
        return plain_event({**head, "choices": [choice], **({"usage": None} if request.usage_chunk else {})})

    yield chunk({"role": "assistant", "content": _text(reply) and ""})
    if reply.reasoning:
        yield chunk({"reasoning_content": reply.reasoning})
    if reply.text:
        yield chunk({"content": reply.text})
    for index, call in enumerate(_calls(reply)):
        # Arguments in one piece: the turn is sampled before anything is sent.
        yield chunk({"tool_calls": [{"index": index, **call}]})
    more: dict[str, Any] = {} if reply.logprobs is None else {"logprobs": _logprobs(reply)}
    if reply.output_ids is not None:
        head["prompt_token_ids"] = list(reply.prompt_ids or ())
        more["token_ids"] = list(reply.output_ids)
    yield chunk({}, reply.finish, **more)
    if request.usage_chunk:
        usage = openai_usage(reply, "prompt", "completion")
        yield plain_event({**_head(reply, "chat.completion.chunk"), "choices": [], "usage": usage})
    yield b"data: [DONE]\n\n"


def error(refused: Refused) -> dict[str, Any]:
    """The body of a refusal, as OpenAI writes it."""
    kind = ERROR_TYPES.get(refused.status, "server_error" if refused.status >= 500 else "invalid_request_error")
    message = refused.message
    if refused.prompt is not None:
        tokens, limit = refused.prompt
        message = (
            f"This model's maximum context length is {limit} tokens. However, your messages resulted in {tokens} "
            "tokens. Please reduce the length of the messages."
        )
    return {"error": {"message": message, "type": kind, "param": refused.param, "code": refused.code}}


CHAT_COMPLETIONS = WireDialect(
    name="chat",
    routes=(Route(path="/v1/chat/completions"),),
    call_prefix="call_",
    read=read,
    answer=answer,
    events=events,
    error=error,
    error_event=lambda refused: plain_event(error(refused)),
    ping=b": ping\n\n",
)
