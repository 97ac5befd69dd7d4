"""Strands messages to chat-template messages, with nothing left out.

What comes out is what Hugging Face chat templates read: `role`, `content` (text, or parts where there are images),
`tool_calls`, `reasoning_content`, `tool_call_id`, `name`. A block with no place there is a `MessageConversionError`.

- The text blocks of one message are joined by a newline, as the SDK joins those of a system prompt. Joining by
  nothing would merge words.
- Each tool result is one `tool` message. Results stand in the order of the calls they answer, whatever the order in
  which the tools finished.
- The model sees that a tool failed: the result starts with `Error: ` unless the tool already said so.
- Tool results come before the other blocks of their message: templates want them directly behind the calls.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from strands.types.content import SystemContentBlock

from ..exceptions import MessageConversionError
from ..trajectory.fingerprint import BLANK_TEXT

ChatMessage = dict[str, Any]
"""One chat-template message."""

SystemPrompt = str | Sequence[SystemContentBlock] | Sequence[Mapping[str, Any]] | None
"""A system prompt: text, or the SDK's blocks."""

ERROR_PREFIX = "Error: "

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatConversation:
    """Chat-template messages, and the encoded images as they came: one for each `{"type": "image"}` part, in order."""

    messages: list[ChatMessage]
    images: list[bytes]


class AnsweredCall(NamedTuple):
    """The call that a tool result belongs to."""

    position: int
    """Place among the calls of the turn."""
    id: str
    """Id that the template is shown."""
    name: str


def to_chat_messages(
    messages: Iterable[Mapping[str, Any]],
    system_prompt: SystemPrompt = None,
    *,
    calls: Mapping[str, AnsweredCall] | None = None,
    first: int = 0,
    is_multimodal: bool = False,
) -> ChatConversation:
    """Convert Strands messages.

    Args:
        messages: Strands messages; content is a list of blocks or a plain string.
        system_prompt: Text or the SDK's system content blocks; becomes the first message. Empty means none.
        calls: Calls of the assistant turn before, by the ids that results name; they give results order and names.
        first: Number of messages before these, for errors.
        is_multimodal: See `format_messages`.

    Raises:
        MessageConversionError: A block has no place in a chat-template message; names the block, where it is, and
            what to do.
    """
    converter = _Converter(is_multimodal=is_multimodal)
    if system := system_text(system_prompt):
        converter.out.append({"role": "system", "content": [_part(system)] if is_multimodal else system})
    converter.calls = calls or {}
    for index, message in enumerate(messages, start=first):
        converter.add(index, message)
    return ChatConversation(messages=converter.out, images=converter.images)


def format_messages(
    messages: Iterable[Mapping[str, Any]], system_prompt: SystemPrompt = None, is_multimodal: bool = False
) -> list[ChatMessage]:
    """The messages of `to_chat_messages`; raises what it raises.

    Args:
        is_multimodal: Every content is a list of parts, images as data URLs, as processors read them.
    """
    return to_chat_messages(messages, system_prompt, is_multimodal=is_multimodal).messages


def format_content_block(block: Mapping[str, Any], is_multimodal: bool = False) -> str | dict[str, str]:
    """The text of a block, or its part of a content with `is_multimodal`; an image is a part only."""
    place = _Place(index=0, role="user")
    content = _Converter(is_multimodal=is_multimodal).content(_blocks([block], place), place)
    if isinstance(content, str):
        return content
    if not is_multimodal:
        raise place.error("an 'image' block is not text", "give is_multimodal=True")
    return content[0]


def sort_tool_results(messages: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages with the tool results of each in the order of their ids, for code that formats them itself."""
    return [
        {**message, "content": sorted(content, key=lambda block: str(block["toolResult"]["toolUseId"]))}
        if isinstance(content := message["content"], list) and all("toolResult" in block for block in content)
        else message
        for message in messages
    ]


def format_tool_specs(tool_specs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Strands tool specs to the `tools` of a chat template; `KeyError` for a spec without `name` or `inputSchema`."""
    tools = []
    for spec in tool_specs:
        schema = spec["inputSchema"]
        if isinstance(schema, Mapping) and isinstance(schema.get("json"), Mapping):
            schema = schema["json"]
        function = {"name": spec["name"], "description": spec.get("description", ""), "parameters": schema}
        tools.append({"type": "function", "function": function})
    return tools


@dataclass(slots=True)
class _Place:
    """The place of a block, for error messages."""

    index: int
    role: str
    inside: str = ""

    def error(self, problem: str, advice: str) -> MessageConversionError:
        text = f"message {self.index} ({self.role}){self.inside}: {problem}; {advice}"
        return MessageConversionError(text, index=None if self.role == "system prompt" else self.index)

    def no_place_error(self, kind: str) -> MessageConversionError:
        advice = _ADVICE.get(kind, "send its content as a text or image block")
        return self.error(f"a {kind!r} block has no place in a chat-template message", advice)


@dataclass(slots=True)
class _Converter:
    out: list[ChatMessage] = field(default_factory=list)
    images: list[bytes] = field(default_factory=list)
    calls: Mapping[str, AnsweredCall] = field(default_factory=dict)
    """The calls of the last assistant turn by the ids that results name."""
    is_multimodal: bool = False

    def add(self, index: int, message: Any) -> None:
        if not isinstance(message, _MAPPING):
            text = f"message {index} is {message!r:.100}, expected a role and content"
            raise MessageConversionError(text, index=index)
        role = message.get("role")
        place = _Place(index=index, role=str(role))
        blocks = _blocks(message.get("content"), place)
        if role == "assistant":
            self._add_assistant(blocks, place)
            self.note_calls(message)
        elif role == "user":
            self._add_user(blocks, place)
        elif role == "system":
            self.out.append({"role": "system", "content": self.content(blocks, place)})
        else:
            raise place.error(f"the role {role!r} is not known", "use 'user' or 'assistant'")

    def note_calls(self, message: Mapping[str, Any]) -> None:
        content = message.get("content")
        blocks = content if isinstance(content, list) else []
        uses = [block["toolUse"] for block in blocks if isinstance(block, _MAPPING) and "toolUse" in block]
        calls = [AnsweredCall(position, use["toolUseId"], use["name"]) for position, use in enumerate(uses)]
        self.calls = {call.id: call for call in reversed(calls)}  # the first of an id

    def _add_assistant(self, blocks: list[tuple[str, Any]], place: _Place) -> None:
        reasoning = [_reasoning_text(value, place) for kind, value in blocks if kind == "reasoningContent"]
        uses = [value for kind, value in blocks if kind == "toolUse"]
        rest = [block for block in blocks if block[0] not in ("reasoningContent", "toolUse")]
        if [value for _, value in rest] == [BLANK_TEXT]:
            rest = []  # the SDK's words for a reply without any
        message: ChatMessage = {"role": "assistant", "content": self.content(rest, place)}
        if reasoning:
            message["reasoning_content"] = "\n".join(reasoning)
        if uses:
            message["tool_calls"] = [self._call(use) for use in uses]
        self.out.append(message)

    def _add_user(self, blocks: list[tuple[str, Any]], place: _Place) -> None:
        results = [value for kind, value in blocks if kind == "toolResult"]
        rest = [(kind, value) for kind, value in blocks if kind != "toolResult"]
        if len(results) > 1:
            found, last = self.calls.get, (len(self.calls),)  # results of no known call stand last
            results.sort(key=lambda result: found(result["toolUseId"], last)[0])
        for result in results:
            self.out.append(self._tool_message(result, place))
        if rest or not results:
            self.out.append({"role": "user", "content": self.content(rest, place)})

    def _call(self, use: Mapping[str, Any]) -> dict[str, Any]:
        arguments = use["input"] if isinstance(use["input"], Mapping) else {MALFORMED_KEY: use["input"]}
        return {"id": use["toolUseId"], "type": "function", "function": {"name": use["name"], "arguments": arguments}}

    def _tool_message(self, result: Mapping[str, Any], place: _Place) -> ChatMessage:
        call_id = result["toolUseId"]
        call = self.calls.get(call_id)
        inside = _Place(index=place.index, role=place.role, inside=f", result of {call_id!r}")
        content = self.content(_blocks(result.get("content") or [], inside), inside)
        if result.get("status") == "error":
            content = _mark_error(content)
        if call is None:
            return {"role": "tool", "content": content, "tool_call_id": call_id}
        return {"role": "tool", "content": content, "tool_call_id": call.id, "name": call.name}

    def content(self, blocks: list[tuple[str, Any]], place: _Place) -> str | list[dict[str, str]]:
        """Text, or a list of parts in the order of the blocks when there are images or `is_multimodal`."""
        if len(blocks) == 1 and blocks[0][0] != "image":
            text = _text(*blocks[0], place)
            return [_part(text)] if self.is_multimodal else text
        parts: list[dict[str, str]] = []
        for kind, value in blocks:
            if kind == "image":
                self.images.append(_image_bytes(value, place))
                parts.append({"type": "image"})
                if self.is_multimodal:
                    encoded = base64.b64encode(self.images[-1]).decode()
                    parts[-1]["image"] = f"data:image/{value.get('format', 'png')};base64,{encoded}"
                continue
            text = _text(kind, value, place)
            if parts and parts[-1]["type"] == "text":
                parts[-1]["text"] += "\n" + text
            else:
                parts.append(_part(text))
        if self.is_multimodal:
            return parts
        if not parts:
            return ""
        return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def report_refused(result: Mapping[str, Any], find_problem: Callable[[Any], str | None]) -> Mapping[str, Any]:
    """A tool result in which words stand for every block that cannot be shown; failed if nothing else is in it.

    Args:
        find_problem: Why a block cannot be shown, or None.
    """
    content = result.get("content") or []
    blocks = list(content) if isinstance(content, list) else [content]
    problems = [find_problem(block) for block in blocks]
    if not any(problems):
        return result
    shown = [block if why is None else refusal_note(block, why) for block, why in zip(blocks, problems, strict=True)]
    return {**result, "content": shown, **({"status": "error"} if all(problems) else {})}


def refusal_note(block: Any, problem: str) -> dict[str, str]:
    """The words that stand for a block."""
    kind = next(iter(block), "result") if isinstance(block, Mapping) else "result"
    return {"text": f"{kind} cannot be shown: {problem}"}


def system_text(system_prompt: SystemPrompt) -> str:
    """The text of a system prompt, blocks joined by a newline as the SDK does; only text (`MessageConversionError`)."""
    if system_prompt is None or isinstance(system_prompt, str):
        return system_prompt or ""
    place = _Place(index=0, role="system prompt")
    return "\n".join(_text(kind, value, place) for kind, value in _blocks(list(system_prompt), place))


def _blocks(content: Any, place: _Place) -> list[tuple[str, Any]]:
    """The blocks of a message as (kind, value), those without content left out."""
    if isinstance(content, str):
        return [("text", content)]
    if not isinstance(content, list):
        raise place.error(f"the content is {content!r}", "give a list of content blocks")
    blocks: list[tuple[str, Any]] = []
    for block in content:
        if not isinstance(block, _MAPPING) or not block:
            raise place.error(f"{block!r} is not a content block", "give e.g. {'text': ...}")
        for kind, value in block.items():
            for key in _NEEDED.get(kind, ()):
                if not isinstance(value, _MAPPING) or key not in value:
                    raise place.error(f"a {kind!r} block has no {key!r}", "give blocks as the SDK writes them")
            if kind not in _DROPPED:
                blocks.append((kind, value))
    return blocks


def _part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


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
    raise place.no_place_error(kind)


def _encodable(text: str, place: _Place) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            problem = "the text has lone surrogates, which no tokenizer takes"
            raise place.error(problem, "decode bytes with 'replace'") from None
    return text


def _reasoning_text(value: Any, place: _Place) -> str:
    inner = value.get("reasoningText") if isinstance(value, Mapping) else None
    text = inner.get("text") if isinstance(inner, Mapping) else None
    if not isinstance(text, str):
        raise place.error("a 'reasoningContent' block has no text", "remove redacted reasoning from the history")
    return _encodable(text, place)


def _mark_error(content: str | list[dict[str, str]]) -> str | list[dict[str, str]]:
    text = content if isinstance(content, str) else content[0].get("text", "") if content else ""
    if text.lstrip().lower().startswith(ERROR_PREFIX.strip().lower()):
        return content
    if isinstance(content, str):
        return (ERROR_PREFIX + content).rstrip() if not content else ERROR_PREFIX + content
    if content and content[0]["type"] == "text":
        return [_part(ERROR_PREFIX + text), *content[1:]]
    return [_part(ERROR_PREFIX.rstrip()), *content]


def _image_bytes(image: Any, place: _Place) -> bytes:
    source = image.get("source") if isinstance(image, Mapping) else None
    data = source.get("bytes") if isinstance(source, Mapping) else None
    if isinstance(data, str):
        try:
            return base64.b64decode(data, validate=True)
        except ValueError:
            raise place.error("the bytes of an 'image' block are a string that is not base64", "give bytes") from None
    if isinstance(data, bytes | bytearray):
        return bytes(data)
    raise place.error("an 'image' block carries no bytes", "load the image and give {'source': {'bytes': ...}}")


def image_blocks(messages: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The image blocks of messages and of the tool results in them; what is malformed is left out."""
    for message in messages:
        content = message.get("content")
        for block in content if isinstance(content, list) else ():
            if not isinstance(block, Mapping):
                continue
            if "image" in block:
                yield block
            elif isinstance(result := block.get("toolResult"), Mapping):
                parts = result.get("content")
                for part in parts if isinstance(parts, list) else ():
                    if isinstance(part, Mapping) and "image" in part:
                        yield part


def image_bytes(block: Mapping[str, Any]) -> bytes:
    """The encoded image of an image block; `MessageConversionError` if it carries none."""
    return _image_bytes(block["image"], _Place(index=0, role="user"))
