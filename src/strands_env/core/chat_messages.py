"""Messages in the format of chat completions, as Strands messages; the spoken part of a reply."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from strands_sglang.template.reasoning import REASONING_TAGS

_ASKED_FOR: Final = {"</thinking>", "</thought>", "</reasoning>", "<|end|>", "<channel|>"}
_CLOSING_TAGS: Final = [closing for _, closing in REASONING_TAGS if closing not in _ASKED_FOR]
"""Closing tags of reasoning, without those that prompts ask for as a part of the answer, or that end other text too."""


def spoken_text(message: Mapping[str, Any], *, last: bool = False) -> str:
    """The text of a reply without its reasoning: that of all text blocks, or of the last one."""
    blocks = [block for block in message.get("content") or () if isinstance(block, dict)]
    texts = [block["text"] for block in blocks if "text" in block]
    text = "\n".join(texts[-1:] if last else texts)
    # Reasoning in its own block: the provider has split the reply, ours by the tags that its prompt opened.
    return text if any("reasoningContent" in block for block in blocks) else after_reasoning(text)


def after_reasoning(text: str) -> str:
    """The part of a reply behind its reasoning, for providers that leave it in the text."""
    end = max((at + len(tag) for tag in _CLOSING_TAGS if (at := text.rfind(tag)) >= 0), default=0)
    return text[end:].lstrip() if end else text


class UnsupportedPromptError(ValueError):
    """A prompt has content that cannot be sent exactly; every prompt of its kind would be refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """Chat messages as Strands messages: the system text, and the other messages, of which the last is the user's."""

    system: str | None
    turns: list[dict[str, Any]]

    @classmethod
    def of(cls, messages: Sequence[Mapping[str, Any]], images: Sequence[bytes] | None) -> ChatPrompt:
        """Read the messages of a prompt.

        Args:
            messages: Messages with texts, image parts, tool calls and results.
            images: PNGs of the image parts, in order; None leaves the parts out.

        Raises:
            UnsupportedPromptError: A part is neither text nor one of the images, or a system message has an image.
            ValueError: The prompt does not end with a user message, or a message cannot be understood.
        """
        last = messages[-1] if messages else {}
        content = last.get("content")
        parts = content if isinstance(content, list | tuple) else ()
        if last.get("role") == "tool" or any(isinstance(part, Mapping) and "toolResult" in part for part in parts):
            raise ValueError(
                "the prompt ends with a tool result, which would be cut from the call it answers: "
                "expected a user message with text or images at the end"
            )
        system: list[str] = []
        turns: list[dict[str, Any]] = []
        pictures = None if images is None else iter(images)
        for message in messages:
            role, blocks = message.get("role"), _blocks(message, turns, pictures)
            if role in ("system", "developer"):
                if any("text" not in block for block in blocks):
                    raise UnsupportedPromptError("a system message has an image, which no chat template prints there")
                system.extend(block["text"] for block in blocks)
            elif role == "tool" and turns and "toolResult" in turns[-1]["content"][-1]:
                turns[-1]["content"].extend(blocks)  # the results of one reply are one message
            else:
                turns.append({"role": "user" if role == "tool" else role, "content": blocks})
        if not turns or turns[-1]["role"] != "user":
            roles = [message.get("role") for message in messages]
            raise ValueError(f"the prompt must end with a user message, got roles {roles!r}")
        return cls(system="\n".join(system) if system else None, turns=turns)


def is_image(part: Any) -> bool:
    """True for a part of a message that stands for an image."""
    return isinstance(part, Mapping) and part.get("type") in ("image", "image_url")


def _blocks(
    message: Mapping[str, Any], before: Sequence[Mapping[str, Any]], images: Iterator[bytes] | None
) -> list[dict[str, Any]]:
    role, content = message.get("role"), message.get("content")
    if role not in ("system", "developer", "user", "assistant", "tool"):
        raise ValueError(
            f"the prompt has a message of role {role!r}, expected system, developer, user, assistant or tool"
        )
    blocks = _content_blocks(content, images)
    if role == "tool":
        result = {"toolUseId": _call_id(message, before), "status": "success", "content": blocks or [{"text": ""}]}
        return [{"toolResult": result}]
    calls = [_tool_use(call, position) for position, call in enumerate(message.get("tool_calls") or ())]
    if content is None and not calls:
        raise ValueError(f"a message has neither content nor tool_calls: {message!r}")
    return [*blocks, *calls]


def _content_blocks(content: Any, images: Iterator[bytes] | None) -> list[dict[str, Any]]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"text": content}]
    if isinstance(content, Mapping) or not isinstance(content, Iterable):
        raise ValueError(f"a message has the content {content!r}, expected text or a list of parts")
    blocks: list[dict[str, Any]] = []
    for part in content:
        if is_image(part) and images is None:
            continue
        if is_image(part) and images is not None and (image := next(images, None)) is not None:
            blocks.append({"image": {"format": "png", "source": {"bytes": image}}})
        elif isinstance(part, Mapping) and "text" in part:
            blocks.append({"text": part["text"]})
        else:
            raise UnsupportedPromptError(f"the prompt has a part {part!r}, expected text or an image that came with it")
    return blocks


def _tool_use(call: Mapping[str, Any], position: int) -> dict[str, Any]:
    try:
        function = call["function"]
        arguments = function.get("arguments")
        arguments = json.loads(arguments) if isinstance(arguments, str) else dict(arguments or {})
        use = {"toolUseId": call.get("id") or f"call_{position}", "name": function["name"], "input": arguments}
        return {"toolUse": use}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"the prompt has tool_calls that cannot be read: {call!r}") from error


def _call_id(message: Mapping[str, Any], before: Sequence[Mapping[str, Any]]) -> str:
    """The call a result answers; without an id the first call without a result."""
    if call_id := message.get("tool_call_id"):
        return str(call_id)
    blocks = [block for turn in before for block in turn["content"]]
    answered = {block["toolResult"]["toolUseId"] for block in blocks if "toolResult" in block}
    for block in blocks:
        if "toolUse" in block and block["toolUse"]["toolUseId"] not in answered:
            return str(block["toolUse"]["toolUseId"])
    raise ValueError(f"a tool result answers no call: {message!r}")
