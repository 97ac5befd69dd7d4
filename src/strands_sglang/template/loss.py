"""Checks that no content was lost on the way into the text.

The messages are rendered a second time with markers in place of their texts. That shows where the template prints each
text, which is looked for in its own place: its words elsewhere in the prompt prove nothing.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from ..exceptions import LostContentError, TemplateError
from .chat_messages import ChatMessage, calls_of, function_of, is_text, replace_arguments
from .reasoning import REASONING_TAGS
from .step import common_prefix, marker

_MAX_TRIES: Final = 20

Render = Callable[[Sequence[ChatMessage]], str]


class DroppedContent(StrEnum):
    """The policy for templates that do not print a past assistant turn of a first prompt in full.

    Some templates print either the text or the calls of a turn, and some print no calls at all. This is about histories
    that are rendered anew: restored sessions, and those shortened by a conversation manager. Sampled turns of the
    running trajectory are never rendered, so nothing of them can be lost.
    """

    SEPARATE = "separate"
    """Text beside calls is printed as a separate assistant message in front of them; where the template cannot
    print that either, `LostContentError` is raised. A template that never prints calls drops them, with a warning."""
    ERROR = "error"
    """`LostContentError` is raised."""
    ALLOW = "allow"
    """The content is dropped, as in `apply_chat_template` of transformers and in SGLang's chat API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """A text of a message: where it is, and its marker in the rendering with markers."""

    message: int
    part: int | None
    role: str
    text: str
    marker: str


def survives(content: str, printed: str) -> bool:
    """True if the text of a message was printed: verbatim, trimmed, escaped, or at least word for word.

    Templates trim, escape and indent content and cut switches (`/no_think`) and tags out of it. Any other missing
    text was lost.
    """
    content = content.strip()
    if content in printed:
        return True
    if json.dumps(content, ensure_ascii=False)[1:-1] in printed or json.dumps(content)[1:-1] in printed:
        return True
    words = [word for word in content.split() if not word.startswith("/")]
    printed_words = [word for word in words if word in printed or html.escape(word) in printed]
    return not words or (bool(printed_words) and all(word in printed_words or "<" in word for word in words))


Skeletons = dict[Hashable, list[str]]
"""Renderings with markers by kind of messages: constant texts, with the markers between them."""

_MAX_SKELETONS: Final = 1024


def require_content(
    messages: Sequence[ChatMessage],
    text: str,
    render: Render,
    *,
    assistant: bool = True,
    skeletons: Skeletons | None = None,
) -> None:
    """Check that the content of every message is in its place in `text`, the result of `render(messages)`.

    Text must be found; of other parts (images, ...) one must be missed when it is left out.

    Args:
        assistant: Check the text of assistant turns too, reasoning excepted.
        skeletons: Keeps renderings with markers for later calls, so that these need no further ones.

    Raises:
        LostContentError: A content was lost.
    """
    pieces = _pieces(messages, assistant=assistant)
    if pieces:
        _require_texts(pieces, messages, text, render, {} if skeletons is None else skeletons)
    for at, message in enumerate(messages):
        content = message.get("content")
        parts: Sequence[Any] = content if isinstance(content, list | tuple) else ()
        for i, part in enumerate(parts):
            if isinstance(part, str) or is_text(part):
                continue
            rest = {**message, "content": [*parts[:i], *parts[i + 1 :]]}
            if _try_render(render, [*messages[:at], rest, *messages[at + 1 :]]) == text:
                kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
                raise LostContentError(
                    f"the template drops the {kind!r} part of a message with role {message['role']!r}"
                )


def require_calls(messages: Sequence[ChatMessage], render: Render) -> None:
    """Check that every tool call of past turns is printed; `LostContentError` if one was lost."""
    marked: list[ChatMessage] = []
    markers: dict[str, str] = {}
    for message in messages:
        calls: list[Mapping[str, Any]] = []
        for call in calls_of(message):
            mark = marker(len(markers))
            markers[mark] = str(function_of(call).get("name"))
            calls.append(replace_arguments(call, {"a": mark}))
        marked.append({**message, "tool_calls": calls} if calls else message)
    if not markers:
        return
    printed = _try_render(render, marked)
    lost = [name for mark, name in markers.items() if printed is not None and mark not in printed]
    if lost:
        raise LostContentError(
            f"the template drops the call of the tool {lost[0]!r} from the history; {_ALLOW.format('drop such calls')}"
        )


_ALLOW = "dropped_content='allow' makes it {}"


def split_text_from_calls(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The messages with text beside calls as a separate assistant message."""
    out: list[ChatMessage] = []
    for message in messages:
        if calls_of(message) and message.get("content"):
            text_only = {key: value for key, value in message.items() if key != "tool_calls"}
            out += [text_only, {"role": message["role"], "content": "", "tool_calls": message["tool_calls"]}]
        else:
            out.append(message)
    return out


def _pieces(messages: Sequence[ChatMessage], *, assistant: bool) -> list[_Piece]:
    pieces: list[_Piece] = []
    for at, message in enumerate(messages):
        role, content = message["role"], message.get("content")
        if role == "assistant" and not assistant:
            continue
        texts: list[tuple[int | None, str]] = []
        if isinstance(content, str):
            texts = [(None, content)]
        elif isinstance(content, list | tuple):
            texts = [(i, part["text"]) for i, part in enumerate(content) if is_text(part)]
        for i, text in texts:
            if role == "assistant":  # reasoning in the text is dropped on purpose
                closed = [(text.rfind(tag) + len(tag), text.rfind(tag)) for _, tag in REASONING_TAGS]
                text = text[max((end for end, at in closed if at >= 0), default=0) :]
            if text.strip():
                pieces.append(_Piece(message=at, part=i, role=role, text=text, marker=marker(len(pieces))))
    return pieces


def _require_texts(
    pieces: list[_Piece], messages: Sequence[ChatMessage], text: str, render: Render, skeletons: Skeletons
) -> None:
    # A skeleton proves nothing by itself, the walk along it does. So the key need not say all that a skeleton depends
    # on (ids of calls, text that the template looks at): one that does not fit any more is rendered again.
    key = tuple((piece.message, piece.part, piece.role, messages[piece.message].get("name")) for piece in pieces)
    known_parts = skeletons.get(key)
    if known_parts is not None and _are_aligned(pieces, text, known_parts):
        return
    skeleton = _try_render(render, _with_markers(messages, pieces))
    if skeleton is not None:  # otherwise the template looks into the content
        for piece in pieces:
            if piece.marker not in skeleton:
                raise _lost(piece)
        parts = re.split(f"({'|'.join(piece.marker for piece in pieces)})", skeleton)
        if len(skeletons) >= _MAX_SKELETONS:
            skeletons.clear()
        skeletons[key] = parts
        if _are_aligned(pieces, text, parts):
            return
    for piece in pieces:
        if not _is_in_place(piece, messages, text, render):
            raise _lost(piece)


def _are_aligned(pieces: list[_Piece], text: str, parts: list[str]) -> bool:
    """Walk along text and skeleton together; False if a piece is not in its place."""
    # The skeleton is constant text, marker, constant text, ...: between two constants the content itself must stand.
    by_marker = {piece.marker: piece for piece in pieces}
    if not text.startswith(parts[0]):
        return False
    at = len(parts[0])
    for mark, after in zip(parts[1::2], parts[2::2], strict=True):
        end = _end_of(by_marker[mark].text, text, at, after, is_last=after is parts[-1])
        if end is None:
            return False
        at = end + len(after)
    return True


def _end_of(content: str, text: str, at: int, after: str, *, is_last: bool) -> int | None:
    """End of the content that starts at a position and is followed by constant text; None if it is not there."""
    for printed in (content, content.strip()):
        end = at + len(printed)
        if (
            text.startswith(printed, at)
            and text.startswith(after, end)
            and (not is_last or end + len(after) == len(text))
        ):
            return end
    end = at - 1
    for _ in range(_MAX_TRIES):  # the content may contain the text behind it
        end = len(text) - len(after) if is_last else text.find(after, end + 1)
        if end < at or (is_last and not text.endswith(after)):
            return None
        if survives(content, text[at:end]):
            return end
        if is_last:
            return None
    return None


def _is_in_place(piece: _Piece, messages: Sequence[ChatMessage], text: str, render: Render) -> bool:
    """Render with a marker in place of this piece only, and look for it there."""
    marked = _try_render(render, _with_markers(messages, [piece])) or ""
    before, _, after = marked.partition(piece.marker)
    if len(before) == len(marked):  # not printed
        return survives(piece.text, text)
    start = common_prefix(before, text)
    end = len(text) - len(after) if text.endswith(after) else len(text)
    return survives(piece.text, text[start : max(start, end)])


def _with_markers(messages: Sequence[ChatMessage], pieces: Sequence[_Piece]) -> list[ChatMessage]:
    out = list(messages)
    for piece in pieces:
        message = out[piece.message]
        content: Any = piece.marker
        if piece.part is not None:
            content = list(message["content"])
            content[piece.part] = {**content[piece.part], "text": piece.marker}
        out[piece.message] = {**message, "content": content}
    return out


def _try_render(render: Render, messages: Sequence[ChatMessage]) -> str | None:
    try:
        return render(messages)
    except TemplateError:
        return None


def _lost(piece: _Piece) -> LostContentError:
    excerpt = piece.text if len(piece.text) <= 60 else piece.text[:57] + "..."
    hint = "; " + _ALLOW.format("drop such text") if piece.role == "assistant" else ""
    return LostContentError(f"the template drops the content {excerpt!r} of a message with role {piece.role!r}{hint}")
