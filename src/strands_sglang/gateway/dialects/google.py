"""Google's Gemini API: `generateContent`, `streamGenerateContent?alt=sse` and `countTokens`.

Names come in camel case or in snake case, as Google's servers take them. A reply in several contents in a row, as
streams leave it in a history, is one message. A result without an id, or with one that no call has (gemini-cli makes
them up for calls without), belongs to the first call of its name that has no result yet.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ...trajectory import Call, Image, Message, Result
from ..canonical import Read, Readings
from ..exact_json import dumps
from . import reading
from .wire import Refused, Route, Unshown, WireDialect, WireReply, WireRequest, id_fields, plain_event

FIELDS = reading.Fields(
    read=frozenset({
        "candidate_count", "contents", "generation_config", "max_output_tokens", "response_json_schema",
        "response_logprobs", "response_mime_type", "response_modalities", "response_schema", "stop_sequences",
        "system_instruction", "tool_config",
    }),
    quiet=frozenset({
        "labels", "logprobs", "method", "safety_settings", "service_tier", "store", "thinking_config", "version",
    }),
    named=frozenset({
        "audio_timestamp", "audio_transcription_config", "enable_affective_dialog", "enable_enhanced_civic_answers",
        "generation_output_config", "image_config", "media_resolution", "model_armor_config",
        "model_selection_config", "routing_config", "speech_config", "translation_config",
    }),
    refused={
        "cached_content": "no content is held here under a name; send the whole history",
        "continuation_token": "no reply is held here in part; send the whole history",
        "response_format": "use responseMimeType and responseJsonSchema",
    },
    of_tools=frozenset({"parametersJsonSchema", "parameters_json_schema"}),
)  # fmt: skip
_UNFINISHED = {"partial_args": "send the call once it is whole", "will_continue": "send it once it is whole"}
"""Fields of a call, or of a result, of which another part follows."""
_VENDOR_PARTS = frozenset({
    "codeExecutionResult", "code_execution_result", "executableCode", "executable_code", "toolCall", "tool_call",
    "toolResponse", "tool_response",
})  # fmt: skip
"""Parts of a reply that tools of Google's own made."""
_FINISH_REASONS = {"stop": "STOP", "length": "MAX_TOKENS", "tool_calls": "STOP"}
_STATUSES = {401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 409: "FAILED_PRECONDITION"}
_AND_NAME = "\0"  # between the id of a result, which may be empty, and the name of its tool
_UNDERSCORE = re.compile(r"_([a-z])")
_CAPITAL = re.compile(r"(?<=[a-z0-9])([A-Z])")


def _snake_name(name: str) -> str:
    return _CAPITAL.sub(r"_\1", name).lower().lstrip("_")


def _snake(value: Any, where: str) -> dict[str, Any]:
    """An object with its names in snake case."""
    fields = reading.want(dict, value, where)
    named = {_snake_name(name): item for name, item in fields.items()}
    if len(named) < len(fields):
        raise Refused(f"{where} gives a field in two spellings: {', '.join(map(reading.label, fields))}", param=where)
    return named


def read(body: Mapping[str, Any], readings: Readings) -> WireRequest:
    """A request from its body."""
    top = _snake(body, "the body")
    if inner := top.pop("generate_content_request", None):  # of countTokens
        top = {**_snake(inner, "generateContentRequest"), **{name: top[name] for name in ("model", "stream", "method")}}
    given = top.get("generation_config") or {}
    config = _snake(given, "generationConfig")
    flat = {**config, **top, "n": config.get("candidate_count"), "tools": _single_tools(top.get("tools"))}
    spelled = {_snake_name(name): reading.label(name) for name in (*body, *(inner or ()), *given)}
    fields = reading.common_fields(flat, FIELDS, _read_tool, {**spelled, "tool_choice": "toolConfig"})
    reading.check_modalities(flat.get("response_modalities"), "responseModalities")
    choice, ignored = _read_choice(top.get("tool_config"))
    fields["ignored"] += ignored
    items = reading.as_list(top.get("contents"), "contents")
    read = readings.read(
        items,
        partial(_read_content, turn_of=readings.turn_of),
        left_out=lambda item, message: tuple(_vendor_parts(item).values()),
    )
    fields["unknown_tools"] += read.left_out
    system = top.get("system_instruction")
    if system is not None and not isinstance(system, str):
        system = _parts_of(reading.want(dict, system, "systemInstruction"), "systemInstruction")
    return WireRequest(
        system=reading.system_of(system, "systemInstruction", _read_part, read),
        history=read.history,
        glue="",
        max_tokens=reading.want_count(flat.get("max_output_tokens"), "maxOutputTokens"),
        stop=reading.want_stops(flat.get("stop_sequences"), "stopSequences"),
        constraints=_read_format(flat),
        tool_choice=choice,
        logprobs=reading.want_flag(flat.get("response_logprobs"), "responseLogprobs"),
        **fields,
    )


def _read_choice(value: Any) -> tuple[str, tuple[str, ...]]:
    """`auto`, `none`, `required` or the name of a tool, and fields without effect."""
    config = _snake(value or {}, "toolConfig")
    calling = _snake(config.get("function_calling_config") or {}, "toolConfig.functionCallingConfig")
    mode = reading.want(str, calling.get("mode") or "AUTO", "toolConfig.functionCallingConfig.mode").upper()
    if mode in ("AUTO", "MODE_UNSPECIFIED"):
        return "auto", ()
    if mode == "VALIDATED":  # calls that follow their schemas
        return "auto", ("toolConfig.functionCallingConfig.mode",)
    if mode == "NONE":
        return "none", ()
    names = calling.get("allowed_function_names") or []
    names = [names] if isinstance(names, str) else reading.want(list, names, "allowedFunctionNames")
    return (reading.want(str, names[0], "allowedFunctionNames[0]") if len(names) == 1 else "required"), ()


def _single_tools(value: Any) -> list[dict[str, Any]]:
    """An object for each tool: Google's hold several declarations, or several of Google's tools."""
    tools: list[dict[str, Any]] = []
    for index, item in enumerate(reading.as_list(value, "tools") if value is not None else ()):
        for kind, held in _snake(item, f"tools[{index}]").items():
            if kind != "function_declarations":
                tools.append({"kind": kind})
            else:
                where = f"tools[{index}].functionDeclarations"
                tools += [{"declaration": declaration} for declaration in reading.as_list(held, where)]
    return tools


def _read_tool(tool: Mapping[str, Any], where: str) -> dict[str, Any] | str:
    if "declaration" not in tool:
        return str(tool["kind"])
    declaration = _snake(tool["declaration"], where)
    schema = declaration.get("parameters_json_schema")
    if schema is None:
        schema = _json_schema(declaration.get("parameters"))
    return reading.tool_spec(declaration.get("name"), declaration.get("description"), schema, where)


def _read_format(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The grammar of a structured format."""
    kind = reading.want(str, flat.get("response_mime_type") or "text/plain", "responseMimeType")
    if kind == "text/plain":
        return {}
    if kind != "application/json":
        what = f"responseMimeType {reading.quote(kind)} is not supported, use text/plain or application/json"
        raise Refused(what, param="responseMimeType")
    schema = flat.get("response_json_schema")
    if schema is None:
        schema = _json_schema(flat.get("response_schema"))
    return reading.json_format(
        {"type": "json_schema", "schema": schema} if schema else {"type": "json_object"}, "responseSchema"
    )


_COUNTS = ("maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties")  # 64 bits: text in JSON


def _json_schema(schema: Any) -> Any:
    """Google's own form of a schema as JSON Schema: types in capitals, `nullable`, numbers as text."""
    if not isinstance(schema, dict):
        return schema
    out: dict[str, Any] = {}
    for given, value in schema.items():
        name = _UNDERSCORE.sub(lambda match: match[1].upper(), given)
        if name in ("nullable", "propertyOrdering"):
            continue
        name = {"defs": "$defs", "ref": "$ref"}.get(name, name)
        if name == "type" and isinstance(value, str):
            out[name] = value.lower()
        elif name in _COUNTS and isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
            out[name] = int(value)
        elif name in ("properties", "$defs") and isinstance(value, dict):
            out[name] = {key: _json_schema(inner) for key, inner in value.items()}
        elif name in ("anyOf", "prefixItems") and isinstance(value, list):
            out[name] = list(map(_json_schema, value))
        else:
            out[name] = _json_schema(value) if name in ("items", "additionalProperties") else value
    if schema.get("nullable") is True and isinstance(out.get("type"), str):
        out["type"] = [out["type"], "null"]
    return out


# ---- history ------------------------------------------------


def _parts_of(content: Mapping[str, Any], where: str) -> list[Any]:
    """The parts of a content, which may be none; words in any other place would be lost."""
    if unknown := sorted(content.keys() - {"role", "parts"}):
        raise Refused(f"{where} has no field {reading.quote(unknown[0])}: what it says stands in parts", param=where)
    return reading.as_list(content.get("parts") or [], f"{where}.parts")


def _vendor_parts(content: Any) -> dict[int, str]:
    """The parts of a reply that tools of Google's own made, by their places; no words of the conversation."""
    is_reply = isinstance(content, dict) and content.get("role") == "model"
    parts = content.get("parts") if is_reply else None
    found = {}
    for place, part in enumerate([parts] if isinstance(parts, dict) else parts if isinstance(parts, list) else ()):
        if isinstance(part, dict) and (kinds := _VENDOR_PARTS.intersection(part)):
            found[place] = _snake_name(min(kinds))
    return found


def _read_content(
    item: Any, index: int, before: Sequence[Read], *, turn_of: Callable[[Any], int | None]
) -> Message | None:
    where = f"contents[{index}]"
    content = reading.want(dict, item, where)
    role = reading.want_role(content.get("role") or "user", where, "function", "user", "model")
    parts = _parts_of(content, where)
    if left_out := _vendor_parts(content):
        if len(left_out) == len(parts):
            return None
        parts = [{} if place in left_out else part for place, part in enumerate(parts)]
    of_tools = any(isinstance(part, dict) and part.keys() & {"functionResponse", "function_response"} for part in parts)
    pieces = reading.read_content(parts, f"{where}.parts", _read_part, of_tools=of_tools)
    if role != "model":
        return _answer_calls(reading.message_of("user", pieces, where), before)
    for number, piece in enumerate(pieces):
        if isinstance(piece, Call) and not piece.id:
            pieces[number] = piece._replace(id=f"google_{index}_{number}")
    objects = [part for part in parts if isinstance(part, dict)]
    signatures = [part.get("thoughtSignature") or part.get("thought_signature") for part in objects]
    receipt = next((turn for turn in map(turn_of, signatures) if turn is not None), None)
    return reading.message_of("assistant", pieces, where, glue="", receipt=receipt)


def _read_part(given: Mapping[str, Any], where: str) -> reading.Piece:
    part = _snake(given, where)
    if "function_call" in part:
        call = _snake(part["function_call"], f"{where}.functionCall")
        reading.refuse_fields(call, _UNFINISHED, f"{where}.functionCall.")
        return reading.call_of(call.get("id") or "", call.get("name"), call.get("args"), f"{where}.functionCall")
    if "text" in part:
        text = reading.want(str, part["text"], f"{where}.text")
        return reading.Thought(text) if part.get("thought") else text
    if "inline_data" in part:
        return _read_image(part["inline_data"], f"{where}.inlineData")
    if "function_response" in part:
        return _read_result(part["function_response"], f"{where}.functionResponse")
    if kinds := part.keys() - {"thought", "thought_signature"}:
        raise reading.unexpected_part(min(kinds), where)
    return ""


def _read_image(value: Any, where: str) -> Image:
    data = _snake(value, where)
    kind = data.get("mime_type")
    if not isinstance(kind, str):
        raise Unshown("an image needs a mimeType", where)
    if not kind.startswith("image/"):
        raise reading.unexpected_part(kind, where)
    return reading.image_of_text(kind[len("image/") :], data.get("data"), where)


def _read_result(value: Any, where: str) -> Result:
    """A result. `output` and `error` hold it, if they are all there is; any other object is the result as a whole."""
    response = _snake(value, where)
    reading.refuse_fields(response, _UNFINISHED, f"{where}.")
    answer = reading.want(dict, response.get("response") or {}, f"{where}.response")
    result = next((answer[name] for name in ("output", "error") if answer.keys() == {name}), answer)
    pieces: list[reading.Piece] = [result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)]
    parts = reading.as_list(response.get("parts") or [], f"{where}.parts")
    pieces += reading.read_content(parts, f"{where}.parts", _read_part, of_tools=True)
    name = reading.want(str, response.get("name") or "", f"{where}.name")
    call_id = reading.want(str, response.get("id") or "", f"{where}.id")
    return reading.result_of(call_id + _AND_NAME + name, pieces, where, failed=answer.keys() == {"error"})


def _answer_calls(message: Message, before: Sequence[Read]) -> Message:
    """The message with every result under the id of its call."""
    if not message.results:
        return message
    history = [earlier.message for earlier in reversed(before) if earlier.message is not None]
    given = [result.call_id.partition(_AND_NAME)[::2] for result in message.results]
    # Ids that are given come first: the calls left belong to results without one.
    known = {call_id for call_id, _ in given if any(call.id == call_id for each in history for call in each.calls)}
    answered, calls = set(known), list[Call]()
    for earlier in history:
        if calls and earlier.role != "assistant":
            break
        answered.update([result.call_id for result in earlier.results])
        calls = [*earlier.calls, *calls]
    left = [call for call in calls if call.id not in answered]
    results = []
    for result, (call_id, name) in zip(message.results, given, strict=True):
        if call_id not in known:
            call = next((call for call in left if call.name == name), None)
            if call is None:
                what = f"a functionResponse of {reading.quote(name)} answers no call of this history"
                raise Refused(f"{what}: send the whole history", param="contents")
            left.remove(call)
            call_id = call.id
        results.append(result._replace(call_id=call_id))
    return replace(message, results=tuple(results))


# ---- answers ------------------------------------------------


def _reply_parts(reply: WireReply) -> list[dict[str, Any]]:
    """The parts of a reply; the signature stands where Google's own does: at the first call, otherwise at the text."""
    parts: list[dict[str, Any]] = []
    if reply.reasoning:
        parts.append({"text": reply.reasoning, "thought": True})
    if reply.text or not (reply.reasoning or reply.calls):
        parts.append({"text": reply.text})
    first_call = len(parts)
    for call in reply.calls:
        parts.append({"functionCall": {"id": f"google_{call.id}", "name": call.name, "args": call.input}})
    parts[min(first_call, len(parts) - 1)]["thoughtSignature"] = reply.receipt
    return parts


def _usage(reply: WireReply) -> dict[str, int]:
    counts = {
        "promptTokenCount": reply.prompt_tokens,
        "candidatesTokenCount": reply.output_tokens - reply.reasoning_tokens,
        "totalTokenCount": reply.prompt_tokens + reply.output_tokens,
    }
    if reply.cached_tokens:
        counts["cachedContentTokenCount"] = reply.cached_tokens
    if reply.reasoning_tokens:
        counts["thoughtsTokenCount"] = reply.reasoning_tokens
    return counts


def answer(request: WireRequest, reply: WireReply) -> dict[str, Any]:
    """The body of an answer."""
    candidate: dict[str, Any] = {
        "content": {"role": "model", "parts": _reply_parts(reply)},
        "finishReason": _FINISH_REASONS[reply.finish],
        "index": 0,
    }
    if reply.logprobs is not None:
        chosen = [{"token": text, "logProbability": value} for text, value in reply.logprobs]
        candidate["logprobsResult"] = {"chosenCandidates": chosen}
    return {
        "candidates": [candidate],
        "usageMetadata": _usage(reply),
        "modelVersion": reply.model,
        "responseId": reply.id,
        **id_fields(reply),
    }


def events(request: WireRequest, reply: WireReply) -> Iterator[bytes]:
    """The only event of a stream: each is a whole answer, and clients keep the contents of each in their history."""
    yield plain_event(answer(request, reply))


def error(refused: Refused) -> dict[str, Any]:
    """The body of a refusal, as Google writes it."""
    message = refused.message
    if refused.prompt is not None:
        tokens, limit = refused.prompt
        message = f"The input token count ({tokens}) exceeds the maximum number of tokens allowed ({limit})."
    other = "INVALID_ARGUMENT" if refused.status < 500 else "INTERNAL" if refused.status == 500 else "UNAVAILABLE"
    status = _STATUSES.get(refused.status, other)
    body: dict[str, Any] = {"code": refused.status, "message": message, "status": status}
    if refused.code is not None:
        info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": refused.code, "domain": "strands-sglang"}
        body["details"] = [info]
    return {"error": body}


def error_event(refused: Refused) -> bytes:
    """The end of a stream that failed: Google's clients raise an error that is not an event, and ignore one that is."""
    return dumps(error(refused)) + b"\n"


def _route(method: str, **more: Any) -> Route:
    return Route(path=f"/{{version:v1(?:alpha|beta)?}}/models/{{model:.+}}:{{method:(?i:{method})}}", **more)


GOOGLE = WireDialect(
    name="google",
    routes=(
        _route("generateContent", fields={"stream": False}),
        _route("streamGenerateContent", fields={"stream": True}, query={"alt": "sse"}),
        _route("countTokens", fields={"stream": False}, counts=True),
    ),
    call_prefix="google_",
    key_headers=("x-goog-api-key",),
    key_query="key",
    count=lambda tokens: {"totalTokens": tokens},
    read=read,
    answer=answer,
    events=events,
    error=error,
    error_event=error_event,
    ping=b"\n",  # Google's clients fail at comments
)
