"""Messages at the border: Strands messages are read into the one form of a message, and printed from it.

`read_message` checks every block; one with no place in a chat template is a `MessageConversionError`. `to_chat` gives
what Hugging Face chat templates read: `role`, `content` (text, or parts where there are images), `tool_calls`,
`reasoning_content`, `tool_call_id`, `name`.

- The text blocks of one message are joined by a newline, as the SDK joins those of a system prompt. Joining by
  nothing would merge words.
- Each tool result is one `tool` message. Results stand in the order of the calls they answer, not that in
  which the tools finished, and before the other blocks of their message: templates want them directly behind the calls.
- The model sees that a tool failed: the result starts with `Error: ` unless the tool already said so.
"""

from __future__ import annotations

import base64
import json
import marshal
from collections.abc import Callable, Iterable, Mapping, Reversible, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from strands.types.content import SystemContentBlock

from ..exceptions import MessageConversionError
from ..tool_parsers.values import name_and_schema
from ..trajectory import Call, Image, Message, Result
from ..trajectory.message import BLANK_TEXT, Parts, join_parts, order_results

SystemPrompt = str | Sequence[SystemContentBlock] | Sequence[Mapping[str, Any]] | None
"""A system prompt: text, or the SDK's blocks."""

ERROR_PREFIX = "Error: "

REFUSED_PART = "{} cannot be shown: {}"
"""The words that stand for a part of a result, from its kind and the reason."""

MALFORMED_KEY = "malformed_call"
"""Argument that holds the text of a malformed call: templates and hooks expect an object."""

_MAPPING = (dict, Mapping)  # a test for the plain type is several times faster than for the abstract one
_NEEDED = {"toolUse": ("toolUseId", "name", "input"), "toolResult": ("toolUseId",)}
_DROPPED = frozenset({"cachePoint"})  # directions to a provider's cache, no content
_ADVICE = {
    "document": "extract its text before and send it as a text block",
    "video": "send frames as image blocks (with a video in a request SGLang tokenises the ids again)",
    "audio": "send a transcript as a text block (with audio in a request SGLang tokenises the ids again)",
    "citationsContent": "send its text as a text block",
    "guardContent": "send its text as a text block; guardrails are not supported",
}


# ---- reading ----------------------------------------------------------------------------------------------------


def read_message(given: Any, index: int = 0, before: Reversible[Message] = ()) -> Message:
    """Read a Strands message; content is a list of blocks or a plain string.

    Args:
        given: The message; one that was read already is returned as it is.
        index: Its place in the history, for errors.
        before: The messages before it, whose calls its results are ordered by.

    Raises:
        MessageConversionError: A block has no place in a chat-template message; names the block, its place and
            the remedy.
    """
    if isinstance(given, Message):
        return given
    if not isinstance(given, _MAPPING):
        raise MessageConversionError(f"message {index} is {given!r:.100}, expected a role and content", index=index)
    role = given.get("role")
    place = _Place(index=index, role=str(role))
    blocks = _blocks(given.get("content"), place)
    if role not in ("user", "assistant", "system"):
        raise place.error(f"the role {role!r} is not known", "use 'user' or 'assistant'")
    rest: list[tuple[str, Any]] = []
    thoughts: list[str] = []
    calls: list[Call] = []
    results: list[Result] = []
    for kind, value in blocks:
        if kind == "toolUse" and role == "assistant":
            calls.append(_call(value, place))
        elif kind == "reasoningContent" and role == "assistant":
            thoughts.append(_reasoning(value, place))
        elif kind == "toolResult" and role == "user":
            results.append(_result(value, place))
        else:
            rest.append((kind, value))
    return Message(
        role=str(role),
        parts=_parts(rest, place),
        reasoning="\n".join(thoughts),
        calls=tuple(calls),
        results=order_results(results, before),
    )


def read_messages(messages: Iterable[Any]) -> list[Message]:
    """Read a history of Strands messages; raises the errors of `read_message`."""
    history: list[Message] = []
    for index, message in enumerate(messages):
        history.append(read_message(message, index, history))
    return history


def is_read_as(given: Sequence[Any], read: Sequence[Message]) -> bool:
    """True if Strands messages are sure to be read as these messages, False where they may not be.

    It knows messages as the SDK writes them, one text a result. Every turn asks it about the whole history, so nothing
    is called for a message: what is unpacked has so many items, and a block one key.
    """
    inputs, known_inputs = list[Any](), list[Any]()
    try:
        for message, known in zip(given, read, strict=True):
            blocks, at = message["content"], 0
            if message["role"] != known.role or blocks.__class__ is not list:
                return False
            for call_id, (part,), is_error in known.results:
                [_] = block = blocks[at]
                result = block["toolResult"]
                [shown] = result["content"]
                [_] = shown
                if shown["text"] != part or result["toolUseId"] != call_id:
                    return False
                if ("status" in result and result["status"] == "error") is not is_error:
                    return False
                at += 1
            if known.reasoning:
                [_] = block = blocks[at]
                if block["reasoningContent"]["reasoningText"]["text"] != known.reasoning:
                    return False
                at += 1
            for part in known.parts:
                [_] = block = blocks[at]
                if block["text"] != part:
                    return False
                at += 1
            for call_id, name, arguments in known.calls:
                [_] = block = blocks[at]
                use = block["toolUse"]
                if use["toolUseId"] != call_id or use["name"] != name:
                    return False
                inputs += (use["input"],)
                known_inputs += (arguments,)
                at += 1
            if blocks[at:]:
                return False
        # Unlike `==` it tells 1, 1.0 and True apart, and the order of keys, which is printed.
        return not inputs or marshal.dumps(inputs, 2) == marshal.dumps(known_inputs, 2)
    except (AttributeError, LookupError, TypeError, ValueError):
        return False


def system_text(system_prompt: Any) -> str:
    """The text of a system prompt, blocks joined by a newline as the SDK does; only text (`MessageConversionError`)."""
    if system_prompt is None or isinstance(system_prompt, str):
        return system_prompt or ""
    place = _Place(index=0, role="system prompt")
    if not isinstance(system_prompt, Sequence):
        raise place.error(f"it is {system_prompt!r:.100}", "give a text or a list of text blocks")
    return "\n".join(_text(kind, value, place) for kind, value in _blocks(list(system_prompt), place))


@dataclass(slots=True)
class _Place:
    """The place of a block, for error messages."""

    index: int
    role: str
    inside: str = ""

    def error(self, problem: str, advice: str) -> MessageConversionError:
        text = f"message {self.index} ({self.role}){self.inside}: {problem}; {advice}"
        return MessageConversionError(text, index=None if self.role == "system prompt" else self.index)


def _blocks(content: Any, place: _Place) -> list[tuple[str, Any]]:
    """The blocks of a message as (kind, value), those without content left out."""
    if isinstance(content, str):
        return [("text", content)]
    if not isinstance(content, list):
        raise place.error(f"the content is {content!r}", "give a list of content blocks")
    blocks: list[tuple[str, Any]] = []
    for block in content:
        if (block.__class__ is not dict and not isinstance(block, _MAPPING)) or not block:
            raise place.error(f"{block!r} is not a content block", "give e.g. {'text': ...}")
        for kind, value in block.items():
            if kind in _NEEDED:
                for key in _NEEDED[kind]:
                    if (value.__class__ is not dict and not isinstance(value, _MAPPING)) or key not in value:
                        raise place.error(f"a {kind!r} block has no {key!r}", "give blocks as the SDK writes them")
            if kind not in _DROPPED:
                blocks.append((kind, value))
    return blocks


def _parts(blocks: Sequence[tuple[str, Any]], place: _Place) -> Parts:
    if not blocks:
        return ()
    parts = [_image(value, place) if kind == "image" else _text(kind, value, place) for kind, value in blocks]
    return tuple(parts) if len(parts) < 2 else join_parts(parts)


def _text(kind: str, value: Any, place: _Place) -> str:
    if kind == "text":
        if not isinstance(value, str):
            raise place.error(f"the text block holds {value!r}", "give a string")
        return _encodable(value, place)
    if kind == "json":
        try:
            printed = json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise place.error(f"the json block is not JSON ({error})", "give JSON values only") from None
        return _encodable(printed, place)
    advice = _ADVICE.get(kind, "send its content as a text or image block")
    raise place.error(f"a {kind!r} block has no place in a chat-template message", advice)


def _encodable(text: str, place: _Place) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            problem = "the text has lone surrogates, which no tokenizer takes"
            raise place.error(problem, "decode bytes with 'replace'") from None
    return str(text)


def _reasoning(value: Any, place: _Place) -> str:
    inner = value.get("reasoningText") if isinstance(value, _MAPPING) else None
    text = inner.get("text") if isinstance(inner, _MAPPING) else None
    if not isinstance(text, str):
        raise place.error("a 'reasoningContent' block has no text", "remove redacted reasoning from the history")
    return _encodable(text, place)


def _call(use: Mapping[str, Any], place: _Place) -> Call:
    try:  # a copy: the caller may change it later
        arguments = marshal.loads(marshal.dumps(use["input"], 2))
    except ValueError:  # types of a user's own
        try:
            arguments = json.loads(json.dumps(use["input"]))
        except (TypeError, ValueError, RecursionError) as error:
            problem = f"the input of the call {use['toolUseId']!r} is not JSON ({error})"
            raise place.error(problem, "give JSON values only") from None
    return Call(str(use["toolUseId"]), str(use["name"]), arguments)


def _result(result: Mapping[str, Any], place: _Place) -> Result:
    call_id = str(result["toolUseId"])
    inside = _Place(index=place.index, role=place.role, inside=f", result of {call_id!r}")
    parts = _parts(_blocks(result.get("content") or [], inside), inside)
    return Result(call_id, parts, is_error=result.get("status") == "error")


def _image(image: Any, place: _Place) -> Image:
    source = image.get("source") if isinstance(image, _MAPPING) else None
    data = source.get("bytes") if isinstance(source, _MAPPING) else None
    if isinstance(data, str):
        try:
            data = base64.b64decode(data, validate=True)
        except ValueError:
            raise place.error("the bytes of an 'image' block are a string that is not base64", "give bytes") from None
    if not isinstance(data, bytes | bytearray):
        raise place.error("an 'image' block carries no bytes", "load the image and give {'source': {'bytes': ...}}")
    return Image(bytes(data), str(image.get("format", "png")))


# ---- printing ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatConversation:
    """Chat-template messages, and the images of their `{"type": "image"}` parts, in order."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    images: list[Image] = field(default_factory=list)


class ShownCall(NamedTuple):
    """Id and name of a call as the template is shown them."""

    id: str
    name: str


def to_chat(
    history: Iterable[Message],
    system: str = "",
    *,
    calls: Mapping[str, ShownCall] | None = None,
    name_call: Callable[[Call], ShownCall] = lambda call: ShownCall(call.id, call.name),
    is_multimodal: bool = False,
) -> ChatConversation:
    """Messages as a chat template reads them.

    Args:
        system: The system prompt; becomes the first message. Empty means none.
        calls: Calls before these messages, by the ids that results name.
        name_call: Id and name of a call for the template.
        is_multimodal: Every content is a list of parts, images as data URLs, as processors read them.
    """
    chat = ChatConversation()
    shown = dict(calls or {})  # an id may be used again later; a result belongs to the latest call of its id

    def add(role: str, parts: Parts, **more: Any) -> None:
        content: Any = parts[0] if parts else ""
        if is_multimodal or not isinstance(content, str) or len(parts) > 1:
            chat.images.extend([part for part in parts if isinstance(part, Image)])
            content = [_part(part, is_multimodal) for part in parts]
        chat.messages.append({"role": role, "content": content, **more})

    if system:
        add("system", (system,))
    for message in history:
        for result in message.results:
            call = shown.get(result.call_id)
            named = {"tool_call_id": result.call_id} if call is None else {"tool_call_id": call.id, "name": call.name}
            add("tool", _mark_error(result.parts) if result.is_error else result.parts, **named)
        more: dict[str, Any] = {"reasoning_content": message.reasoning} if message.reasoning else {}
        if message.calls:
            names = [name_call(call) for call in message.calls]
            shown |= {call.id: name for call, name in zip(reversed(message.calls), reversed(names), strict=True)}
            more["tool_calls"] = [chat_call(name, call.input) for call, name in zip(message.calls, names, strict=True)]
        is_blank = message.role == "assistant" and message.parts == (BLANK_TEXT,)
        if message.parts or not message.results:
            add(message.role, () if is_blank else message.parts, **more)
    return chat


def chat_call(shown: ShownCall, arguments: Any) -> dict[str, Any]:
    """A call as templates read it."""
    given = arguments if isinstance(arguments, _MAPPING) else {MALFORMED_KEY: arguments}
    return {"id": shown.id, "type": "function", "function": {"name": shown.name, "arguments": given}}


def _part(part: str | Image, is_multimodal: bool = False) -> dict[str, str]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not is_multimodal:
        return {"type": "image"}
    return {"type": "image", "image": f"data:image/{part.kind};base64,{base64.b64encode(part.data).decode()}"}


def _mark_error(parts: Parts) -> Parts:
    if not parts or not isinstance(parts[0], str):
        return (ERROR_PREFIX.rstrip(), *parts)
    if parts[0].lstrip().lower().startswith(ERROR_PREFIX.strip().lower()):
        return parts
    return (ERROR_PREFIX + parts[0] if parts[0] else ERROR_PREFIX.rstrip(), *parts[1:])


def to_strands(message: Message) -> dict[str, Any]:
    """The message as the SDK writes it."""

    def blocks(parts: Parts) -> list[dict[str, Any]]:
        return [
            {"text": part}
            if isinstance(part, str)
            else {"image": {"format": part.kind, "source": {"bytes": part.data}}}
            for part in parts
        ]

    content: list[dict[str, Any]] = []
    for result in message.results:
        status = {"status": "error"} if result.is_error else {}
        content.append({"toolResult": {"toolUseId": result.call_id, "content": blocks(result.parts), **status}})
    if message.reasoning:
        content.append({"reasoningContent": {"reasoningText": {"text": message.reasoning}}})
    content += blocks(message.parts)
    for call in message.calls:
        content.append({"toolUse": {"toolUseId": call.id, "name": call.name, "input": call.input}})
    return {"role": message.role, "content": content}


# ---- for users of the SDK ---------------------------------------------------------------------------------------


def format_messages(
    messages: Iterable[Any], system_prompt: SystemPrompt = None, is_multimodal: bool = False
) -> list[dict[str, Any]]:
    """Strands messages as a chat template reads them; see `to_chat` and the errors of `read_message`."""
    return to_chat(read_messages(messages), system_text(system_prompt), is_multimodal=is_multimodal).messages


def format_content_block(block: Mapping[str, Any], is_multimodal: bool = False) -> str | dict[str, str]:
    """The text of a block, or its part of a content with `is_multimodal`; an image is a part only."""
    place = _Place(index=0, role="user")
    (part,) = _parts(_blocks([block], place), place)
    if is_multimodal:
        return _part(part, is_multimodal)
    if isinstance(part, Image):
        raise place.error("an 'image' block is not text", "give is_multimodal=True")
    return part


def sort_tool_results(messages: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages with the tool results of each in the order of their ids, for code that formats them itself."""
    return [
        {**message, "content": sorted(content, key=lambda block: str(block["toolResult"]["toolUseId"]))}
        if isinstance(content := message["content"], list) and all("toolResult" in block for block in content)
        else message
        for message in messages
    ]


def format_tool_specs(tool_specs: Iterable[Any]) -> list[dict[str, Any]]:
    """Strands tool specs to the `tools` of a chat template; `MessageConversionError` for anything else."""
    tools = []
    for index, spec in enumerate(tool_specs):
        if not isinstance(spec, _MAPPING) or not isinstance(spec.get("name"), str) or "inputSchema" not in spec:
            raise MessageConversionError(
                f"tool {index} is {spec!r:.100}, expected a Strands tool spec with a name and an inputSchema"
            )
        name, schema = name_and_schema(spec)
        function = {"name": name, "description": spec.get("description", ""), "parameters": schema}
        tools.append({"type": "function", "function": function})
    return tools


# ---- results that cannot be shown -------------------------------------------------------------------------------


def report_refused(result: Mapping[str, Any], find_problem: Callable[[str | Image], str | None]) -> Mapping[str, Any]:
    """A Strands tool result in which words stand for every block that cannot be shown; failed if that is all of it.

    Args:
        find_problem: Why a part cannot be shown, or None.
    """

    def problem_of(block: Any) -> str | None:
        try:
            parts = read_message({"role": "user", "content": [block]}).parts
        except MessageConversionError as error:
            return str(error).removeprefix("message 0 (user): ")
        return next(filter(None, map(find_problem, parts)), None)

    content = result.get("content") or []
    blocks = list(content) if isinstance(content, list) else [content]
    problems = [problem_of(block) for block in blocks]
    if not any(problems):
        return result
    shown = []
    for block, problem in zip(blocks, problems, strict=True):
        kind = next(iter(block), "result") if isinstance(block, Mapping) else "result"
        shown.append(block if problem is None else {"text": REFUSED_PART.format(kind, problem)})
    return {**result, "content": shown, **({"status": "error"} if all(problems) else {})}
