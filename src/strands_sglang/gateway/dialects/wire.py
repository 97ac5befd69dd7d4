"""What the dialects share: a parsed request, a reply to write, a refusal, and checks of JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from ...exceptions import StrandsSGLangError
from ..canonical import Message, Reading, Readings


class Refused(StrandsSGLangError):
    """A request that is refused; each dialect has its own wording.

    Attributes:
        status: HTTP status.
        message: The reason.
        code: Machine-readable reason, or None.
        param: The field at fault, or None.
        retry_after: Seconds after which a retry makes sense; None asks clients not to retry.
        prompt: Tokens of a prompt that does not fit, and the number that would; None for other reasons.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
        prompt: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.code, self.param = message, status, code, param
        self.retry_after, self.prompt = retry_after, prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class WireRequest:
    """A request of any dialect.

    Attributes:
        model: Name of the model as the client wrote it; it is echoed.
        system: System prompt: the system field and the system messages in front of the first other one.
        messages: The history as Strands messages, calls under the client's ids.
        tools: Strands tool specs.
        max_tokens: Most tokens of the reply, or None.
        stop: Stop strings.
        sampling: Sampling parameters the client asked for, in SGLang's names.
        constraints: A grammar for the reply, as a sampling parameter of SGLang; empty for none.
        tool_choice: `auto`, `none`, `required`, or the name of a tool.
        stream: Whether to answer with events.
        usage_chunk: Whether the stream ends with a chunk of token counts (Chat Completions).
        logprobs: Whether to return log-probabilities of sampled tokens.
        token_ids: Whether to return the ids of the prompt and of the reply.
        previous: Id of the response this one continues (Responses), or None.
        receipts: Index of an assistant message to the receipt that came with it.
        ignored: Names of fields that would have an effect elsewhere and have none here.
        unknown_tools: Types of tools that were left out.
        reading: What it was read with, to be arranged with.
    """

    model: str
    system: str
    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)
    constraints: Mapping[str, Any] = field(default_factory=dict)
    tool_choice: str = "auto"
    stream: bool = False
    usage_chunk: bool = False
    logprobs: bool = False
    token_ids: bool = False
    previous: str | None = None
    receipts: Mapping[int, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    unknown_tools: tuple[str, ...] = ()
    reading: Reading = field(default_factory=Reading)


@dataclass(frozen=True, slots=True, kw_only=True)
class WireCall:
    """A tool call on its way to a client.

    Attributes:
        id: 24 hexadecimal digits; each dialect puts its own prefix before them.
        name: Tool name.
        arguments: JSON object.
    """

    id: str
    name: str
    arguments: Mapping[str, Any]

    @property
    def json(self) -> str:
        """The arguments as JSON text."""
        return orjson.dumps(self.arguments).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """One sampled token; `logprob` is None where the server returned none."""

    text: str
    logprob: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WireReply:
    """A sampled turn on its way to a client, the same for every delivery.

    Attributes:
        id: 24 hexadecimal digits, new with every turn.
        created: Unix time in seconds.
        model: Name of the model.
        reasoning: Reasoning text.
        text: Visible text.
        calls: Tool calls.
        finish: `stop`, `length` or `tool_calls`.
        stop_string: The stop string that ended the reply, or None.
        prompt_tokens: Length of the whole prompt.
        cached_tokens: Prompt tokens found in the server's cache.
        output_tokens: Number of sampled tokens.
        reasoning_tokens: Number of them that are reasoning.
        receipt: Proof by which the turn is recognised when the client returns it.
        logprobs: One entry per sampled token, where asked for.
        prompt_ids: Ids of the whole prompt, where asked for.
        output_ids: Sampled ids, where asked for.
    """

    id: str
    created: int
    model: str
    reasoning: str
    text: str
    calls: Sequence[WireCall]
    finish: str
    stop_string: str | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    receipt: str
    logprobs: Sequence[TokenLogprob] | None = None
    prompt_ids: Sequence[int] | None = None
    output_ids: Sequence[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WireDialect:
    """One protocol, as pure functions.

    Attributes:
        name: Short name, for counters.
        read: Body and readings of the session to request; raises `Refused`.
        answer: Request and reply to the body of the answer.
        events: Request and reply to the events of a stream.
        error: Refusal to the body of the answer.
        error_event: Refusal to the event that ends a started stream.
        ping: What keeps an idle stream open.
        overflow_in_stream: Whether a prompt that does not fit is reported as an event of the stream, not as a status.
        keeps_responses: Whether a later request may name an answer instead of sending the history.
    """

    name: str
    read: Callable[[Mapping[str, Any], Readings], WireRequest]
    answer: Callable[[WireRequest, WireReply], dict[str, Any]]
    events: Callable[[WireRequest, WireReply], Iterator[bytes]]
    error: Callable[[Refused], dict[str, Any]]
    error_event: Callable[[Refused], bytes]
    ping: bytes
    overflow_in_stream: bool = False
    keeps_responses: bool = False


# ---- events ------------------------------------------------


def named_event(data: Mapping[str, Any]) -> bytes:
    """A server-sent event named by the `type` of its data."""
    return b"event: %s\ndata: %s\n\n" % (data["type"].encode(), orjson.dumps(data))


def plain_event(data: Mapping[str, Any]) -> bytes:
    """A server-sent event without a name."""
    return b"data: %s\n\n" % orjson.dumps(data)


# ---- checks ------------------------------------------------


def want_object(value: Any, where: str) -> Mapping[str, Any]:
    """The value, an object."""
    if not isinstance(value, dict):
        raise Refused(f"{where} must be an object, got {_kind(value)}", param=where)
    return value


def want_list(value: Any, where: str) -> list[Any]:
    """The value, an array."""
    if not isinstance(value, list):
        raise Refused(f"{where} must be an array, got {_kind(value)}", param=where)
    return value


def want_text(value: Any, where: str) -> str:
    """The value, a string."""
    if not isinstance(value, str):
        raise Refused(f"{where} must be a string, got {_kind(value)}", param=where)
    return value


def want_count(value: Any, where: str) -> int | None:
    """The value, a positive integer, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise Refused(f"{where} must be a positive integer, got {value!r}", param=where)
    return value


def want_stops(value: Any, where: str) -> tuple[str, ...]:
    """Stop strings: none, one or several."""
    if value is None:
        return ()
    texts = [value] if isinstance(value, str) else want_list(value, where)
    stops = tuple(want_text(text, where) for text in texts)
    if not all(stops):
        raise Refused(f"{where} holds an empty string, which would end every reply at once", param=where)
    return stops


def tool_spec(name: Any, description: Any, schema: Any, where: str) -> dict[str, Any]:
    """A Strands tool spec."""
    text = want_text(description, f"{where}.description") if description is not None else ""
    schema = {"type": "object", "properties": {}} if schema is None else want_object(schema, f"{where}.parameters")
    return {"name": want_text(name, f"{where}.name"), "description": text, "inputSchema": {"json": schema}}


def read_tools(
    value: Any, read_one: Callable[[Mapping[str, Any], str], dict[str, Any] | str]
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Tool specs, and the types of tools that are left out.

    Args:
        value: The `tools` of a request, or None.
        read_one: Tool and place to its spec, or to the type that is left out.

    Raises:
        Refused: Two different tools have one name: calls would be ambiguous.
    """
    tools: dict[str, dict[str, Any]] = {}
    specs, unknown = [], []
    for index, item in enumerate(want_list(value, "tools") if value is not None else ()):
        read = read_one(want_object(item, f"tools[{index}]"), f"tools[{index}]")
        if isinstance(read, str):
            unknown.append(read)
        elif tools.setdefault(read["name"], read) != read:
            raise Refused(f"two different tools are named {read['name']!r}", param="tools")
        else:
            specs.append(read)
    return specs, tuple(unknown)


def json_format(value: Any, where: str) -> dict[str, Any]:
    """A structured format (`json_schema`, `json_object`, `text`) as a grammar.

    The schema stands in `schema`, or in `json_schema.schema` as Chat Completions has it.
    """
    if value is None:
        return {}
    form = want_object(value, where)
    kind = form.get("type")
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"json_schema": '{"type": "object"}'}
    if kind == "json_schema":
        holder = want_object(form["json_schema"], f"{where}.json_schema") if "json_schema" in form else form
        return {"json_schema": orjson.dumps(want_object(holder.get("schema"), f"{where}.schema")).decode()}
    raise Refused(f"{where}.type must be text, json_object or json_schema, got {kind!r}", param=where)


SAMPLING_NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "repetition_penalty": "repetition_penalty",
    "seed": "sampling_seed",
}
"""Sampling parameters of clients, and SGLang's names for them."""


def common_fields(body: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    """The fields of a `WireRequest` that every dialect spells alike.

    Args:
        body: The request.
        known: Names of fields that are read, or have no effect on what is sampled anywhere.

    Raises:
        Refused: The request would bypass the trajectory, or asks for several samples.
    """
    if body.get("input_ids") is not None:
        raise Refused("input_ids is not accepted: the gateway holds the ids of every conversation", param="input_ids")
    if body.get("n") not in (None, 1):
        raise Refused(f"n={body['n']!r}: one sample per request; ask again for another", param="n")
    unread = (key for key, value in body.items() if key not in known and value not in (None, False, [], {}))
    return {
        "model": want_text(body.get("model", ""), "model"),
        "sampling": {ours: body[name] for name, ours in SAMPLING_NAMES.items() if body.get(name) is not None},
        "stream": bool(body.get("stream")),
        "token_ids": bool(body.get("return_token_ids")),
        "ignored": tuple(sorted(unread)),
    }


# ---- content ------------------------------------------------


def joined(texts: list[str]) -> list[dict[str, Any]]:
    """Texts of one message as one block, as the chat template will see them."""
    return [{"text": "\n".join(texts)}] if texts else []


def read_content(
    content: Any, where: str, read_part: Callable[[Mapping[str, Any], str], str | dict[str, Any]]
) -> list[dict[str, Any]]:
    """Content as blocks, neighbouring texts joined.

    Args:
        content: A text, or parts.
        where: Its place in the request.
        read_part: Part and place to its text or its block.
    """
    if isinstance(content, str):
        return [{"text": content}]
    texts: list[str] = []
    blocks: list[dict[str, Any]] = []
    for index, item in enumerate(want_list(content, f"{where}.content")):
        place = f"{where}.content[{index}]"
        read = read_part(want_object(item, place), place)
        if isinstance(read, str):
            texts.append(read)
        else:
            blocks += [*joined(texts), read]
            texts = []
    return blocks + joined(texts)


def unexpected_part(kind: Any, where: str) -> Refused:
    """The refusal of a part of an unsupported type."""
    return Refused(f"{where}: a {kind!r} part is not supported; send text or images", param=where)


def image_block(url: Any, where: str) -> dict[str, Any]:
    """An image given as a data URL."""
    text = want_text(url, where)
    head, comma, data = text.partition(",")
    if not (comma and head.startswith("data:image/") and head.endswith(";base64")):
        raise Refused(f"{where} must be a base64 data URL of an image: the gateway fetches nothing", param=where)
    return image_data(head[len("data:image/") : -len(";base64")], data)


def image_data(kind: str, data: str) -> dict[str, Any]:
    """An image given as base64 text."""
    return {"image": {"format": kind, "source": {"bytes": data}}}


def tool_use(call_id: Any, name: Any, arguments: Any, where: str) -> dict[str, Any]:
    """A call of the history. Text that is not a JSON object is kept unchanged."""
    if isinstance(arguments, str):
        try:
            value = orjson.loads(arguments) if arguments.strip() else {}
        except orjson.JSONDecodeError:
            value = arguments
        arguments = value if isinstance(value, dict) else arguments
    use = {"toolUseId": want_text(call_id, f"{where}.id"), "name": want_text(name, f"{where}.name")}
    return {"toolUse": {**use, "input": {} if arguments is None else arguments}}


def tool_result(call_id: Any, content: list[dict[str, Any]], where: str, *, failed: bool = False) -> dict[str, Any]:
    """A result; the status is there only where the tool failed."""
    result: dict[str, Any] = {"toolUseId": want_text(call_id, where), "content": content or [{"text": ""}]}
    if failed:
        result["status"] = "error"
    return {"toolResult": result}


def logprob_entries(reply: WireReply) -> list[dict[str, Any]]:
    """Log-probabilities of the sampled tokens as OpenAI's APIs write them."""
    return [
        {"token": entry.text, "logprob": entry.logprob, "bytes": list(entry.text.encode()), "top_logprobs": []}
        for entry in reply.logprobs or ()
    ]


def id_fields(reply: WireReply) -> dict[str, Any]:
    """The ids of prompt and reply, where the client asked for them."""
    if reply.output_ids is None:
        return {}
    return {"prompt_token_ids": list(reply.prompt_ids or ()), "token_ids": list(reply.output_ids)}


def reasoning_block(text: str) -> dict[str, Any]:
    """Reasoning of the history."""
    return {"reasoningContent": {"reasoningText": {"text": text}}}


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
