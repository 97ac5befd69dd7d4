"""The self-check for images: one placeholder an image, in the order and the messages in which the images stand."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from strands_sglang.exceptions import TemplateError
from strands_sglang.template.chat_messages import Message
from strands_sglang.template.renderer import DeltaRenderer
from strands_sglang.template.self_check import TOOL_NAME, USER, call, result, text

_IMAGE = {"type": "image"}
_MARK = "Img{}XQ"


def _parts(*marks: int | None) -> list[dict[str, str]]:
    """Content with texts and, for None, images."""
    return [_IMAGE if mark is None else {"type": "text", "text": _MARK.format(mark)} for mark in marks]


_PROBES: dict[str, list[Message]] = {
    "user": [
        {"role": "user", "content": _parts(0, None, 1, None, 2)},
        text(_MARK.format(3)),
        {"role": "user", "content": _parts(None, 4)},
    ],
    "tool": [
        USER,
        call(1, 2),
        {**result(1), "name": TOOL_NAME, "content": _parts(0, None, 1)},
        {**result(2), "name": TOOL_NAME, "content": _parts(2, None, 3)},
    ],
}


def image_problem(renderer: DeltaRenderer, placeholder: str, role: str) -> str | None:
    """Why a template cannot be used with images in messages of a role; None where it can.

    Numbers beside images do no harm: they are printed from the whole history. An image may stand before or behind
    the texts of its message, because its placeholder is found anyway.

    Args:
        renderer: The template with its tools.
        placeholder: Text of the token that stands for an image.
        role: Role of the messages.
    """
    probe = _PROBES.get(role)
    if probe is None:
        return f"is not known to print images in messages with role {role!r}: put them into user messages"
    try:
        printed = renderer.root(probe).text
    except TemplateError as error:
        return f"refuses images in messages with role {role!r} ({error})"
    found = [
        None if match[0] == placeholder else match[0]
        for match in re.finditer(rf"{re.escape(placeholder)}|{_MARK.format('[0-9]')}", printed)
    ]
    if found in _orders(probe):
        return None
    images, expected = found.count(None), sum(_marks(message).count(None) for message in probe)
    if images != expected:
        return f"prints {images} placeholders for {expected} images in messages with role {role!r}"
    return f"prints images in messages with role {role!r} in another order than they are given"


def _orders(probe: Sequence[Message]) -> Iterator[list[str | None]]:
    """Orders in which every image is still in its message and its place among the images."""
    messages = [_marks(message) for message in probe]
    yield [mark for marks in messages for mark in marks]
    yield [mark for marks in messages for mark in sorted(marks, key=lambda mark: mark is not None)]
    yield [mark for marks in messages for mark in sorted(marks, key=lambda mark: mark is None)]


def _marks(message: Message) -> list[str | None]:
    content = message["content"]
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = [None if part is _IMAGE else part["text"] for part in parts]
    return [mark for mark in texts if mark is None or re.fullmatch(_MARK.format("[0-9]"), mark)]
