"""Reading and rewriting chat messages, without changing the caller's."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, TypeVar

from ..exceptions import TemplateError
from ..tool_parsers.values import JSONError, load_json

ChatMessage = Mapping[str, Any]
"""A chat message as templates read it: `role`, `content`, `tool_calls`, `tool_call_id`, `name`, ..."""
M = TypeVar("M", bound=ChatMessage)


class ArgumentForm(StrEnum):
    """The form in which a template takes the arguments of a tool call."""

    OBJECT = "object"
    """A mapping, printed by the template."""
    TEXT = "text"
    """JSON text, printed as it is."""


class ContentForm(StrEnum):
    """The form in which a template takes the content of a message of some role."""

    STRING = "string"
    """Text only; a list of parts would be printed as Python or JSON source."""
    PARTS = "parts"
    """A list of parts only."""
    BOTH = "both"
    """Either."""


def calls_of(message: ChatMessage) -> Sequence[Mapping[str, Any]]:
    """Tool calls of a message, possibly none."""
    return message.get("tool_calls") or ()


def function_of(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Name and arguments of a call, in OpenAI's nested form or flat."""
    function = call.get("function")
    return function if isinstance(function, Mapping) else call


def replace_arguments(call: Mapping[str, Any], arguments: Any) -> Mapping[str, Any]:
    """The call with other arguments, in the form that it has."""
    if "function" not in call:
        return {**call, "arguments": arguments}
    return {**call, "function": {**function_of(call), "arguments": arguments}}


def is_text(part: Any) -> bool:
    """True for a content part that is text."""
    return isinstance(part, Mapping) and part.get("type", "text") == "text" and isinstance(part.get("text"), str)


def short_history(messages: Sequence[M], new: Sequence[M] = ()) -> list[M]:
    """Leading system messages and the latest user message (they may carry switches such as /no_think).

    Most templates need no more of a history before an assistant turn. `new` messages follow; a short history and the
    messages behind it give the next one.
    """
    short: list[M] = []
    while len(short) < len(messages) and messages[len(short)]["role"] in ("system", "developer"):
        short.append(messages[len(short)])  # no copy: hundreds of tool rounds may follow
    for part in (new, messages):
        for message in reversed(part):
            if message["role"] == "user":
                return [*short, message]
    return short


class HistoryPart(StrEnum):
    """The part of a history that is rendered before an assistant turn."""

    SHORT = "short"
    """`short_history`."""
    FULL = "full"
    """The full history."""

    def select(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        """This part of the messages before the turn."""
        return short_history(messages) if self is HistoryPart.SHORT else list(messages)


def name_results(last: ChatMessage, new: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Tool results with the id and name of their call filled in: by id, otherwise by order.

    Results often carry only the id, or nothing; templates want both.
    """
    calls = calls_of(last)
    for message in new:
        if calls and message["role"] == "tool" and not (message.get("name") and message.get("tool_call_id")):
            break
    else:
        return list(new)  # nothing is missing
    by_id = {call["id"]: call for call in calls if call.get("id")}
    results = [message for message in new if message["role"] == "tool"]
    claimed = {message.get("tool_call_id") for message in results}
    free = [call for call in calls if call.get("id") not in claimed]
    stray = [message for message in results if message.get("tool_call_id") not in by_id]
    by_order = {id(m): c for m, c in zip(stray, free, strict=True)} if len(stray) == len(free) else {}
    out: list[ChatMessage] = []
    for message in new:
        call = by_id.get(message.get("tool_call_id")) or by_order.get(id(message))
        if message["role"] == "tool" and call is not None:
            filled = {"tool_call_id": call.get("id"), "name": function_of(call).get("name")}
            missing = {key: value for key, value in filled.items() if value and not message.get(key)}
            if missing:
                message = {**message, **missing}
        out.append(message)
    return out


def with_arguments(message: ChatMessage, form: ArgumentForm) -> ChatMessage:
    """The message with all call arguments as objects or as JSON text; text that is not a JSON object stays text."""
    calls = calls_of(message)
    if not calls:
        return message
    out = []
    for call in calls:
        original = arguments = function_of(call).get("arguments")
        if form is ArgumentForm.TEXT and not isinstance(original, str):
            arguments = json.dumps(original, ensure_ascii=False)
        elif form is ArgumentForm.OBJECT and isinstance(original, str):
            with suppress(JSONError):  # text that an object would not say exactly stays text
                value = load_json(original)
                arguments = value if isinstance(value, dict) else original
        out.append(call if arguments is original else replace_arguments(call, arguments))
    return {**message, "tool_calls": out}


def with_content_form(message: ChatMessage, form: Callable[[str], ContentForm]) -> ChatMessage:
    """The message with its content in the form the template takes for this role.

    Text parts are joined by newlines for a role that takes text only.

    Raises:
        TemplateError: The role takes text only, and a part is not text. The template would print it as source code.
    """
    content = message.get("content")
    if isinstance(content, str):
        if form(message["role"]) is ContentForm.PARTS:
            return {**message, "content": [{"type": "text", "text": content}]}
    elif isinstance(content, list | tuple) and form(message["role"]) is ContentForm.STRING:
        if not all(isinstance(part, str) or is_text(part) for part in content):
            raise TemplateError(f"the template takes only text as content of a message with role {message['role']!r}")
        return {**message, "content": "\n".join(part if isinstance(part, str) else part["text"] for part in content)}
    return message
