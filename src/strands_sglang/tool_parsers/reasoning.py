"""Cuts sampled text into visible text, reasoning and tool-call blocks, in one pass from left to right.

A tag counts only where the text is not already inside something else: a call drafted inside a reasoning block is
reasoning, a `<think>` inside the arguments of a call is an argument. One pass in reading order is the only way to get
both right.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from ..exceptions import ToolParserError

ThinkTokens = tuple[str, str]
"""The tags that open and close a reasoning block, e.g. `("<think>", "</think>")`."""

DEFAULT_THINK_TOKENS: ThinkTokens = ("<think>", "</think>")


class SegmentKind(StrEnum):
    """The kind of a piece of sampled text."""

    TEXT = "text"
    """Visible text."""
    REASONING = "reasoning"
    """The inside of a reasoning block."""
    TAG = "tag"
    """A tag that opens or closes a reasoning block."""
    BLOCK = "block"
    """A tool-call block, its begin and end marker included."""
    UNCLOSED = "unclosed"
    """A tool-call block whose end marker never came: everything from its begin marker on."""


class TextSegment(NamedTuple):
    """A piece of the text, `text[start:end]`; the segments of a text tile it without gap or overlap."""

    kind: SegmentKind
    start: int
    end: int


class ReasoningSplit(NamedTuple):
    """Sampled text, split: visible text as sampled, and reasoning, its blocks joined by a newline; tags are removed."""

    text: str
    reasoning: str


BlockReader = Callable[[int], int | None]
"""Takes the offset of a begin marker, gives the offset behind the end of its block, or None when it never ends."""

BlockFinder = Callable[[int], int]
"""Takes an offset of visible text, gives the first begin of a block at or behind it, or the length of the text."""


def scan(
    text: str,
    *,
    think_tokens: ThinkTokens | None = DEFAULT_THINK_TOKENS,
    in_reasoning: bool = False,
    begin_marker: str | BlockFinder | None = None,
    read_block: BlockReader | None = None,
) -> list[TextSegment]:
    """Cut `text`, special tokens included, into segments, in order and none empty.

    A closing tag without an opening one, before any reasoning block was seen, means that the prompt had opened the
    block: everything before it is reasoning, a call too if another follows. A finished call that is the last stays one:
    then the tag is a stray one.

    Args:
        think_tokens: Tags of a reasoning block; None when the model has none.
        in_reasoning: The prompt ends inside a reasoning block, so the text starts in one.
        begin_marker: Marker that begins a tool-call block, or a function that finds one; None to find no calls.
        read_block: Finds the end of a block; needed with `begin_marker`.
    """
    size = len(text)
    segments: list[TextSegment] = []

    def add(kind: SegmentKind, start: int, end: int) -> None:
        if end > start:
            segments.append(TextSegment(kind=kind, start=start, end=end))

    def find(marker: str | None, position: int) -> int:
        found = -1 if marker is None else text.find(marker, position)
        return size if found < 0 else found

    opening, closing = think_tokens or (None, None)
    close_size = len(closing or "")
    position = start = 0
    open_at = begin_at = close_at = -1  # the next of each; no stretch is searched twice
    reasoning_seen = inside = in_reasoning and think_tokens is not None
    stray_at = -1  # the closing tag behind a finished call
    while position < size:
        if close_at < position and (inside or not reasoning_seen):
            close_at = find(closing, position)
        if inside:
            add(SegmentKind.REASONING, position, close_at)
            position = start = min(size, close_at + close_size)
            add(SegmentKind.TAG, close_at, position)
            inside = False
            continue
        if open_at < position:
            open_at = find(opening, position)
        if read_block is None:
            begin_at = size
        elif callable(begin_marker):
            begin_at = begin_marker(position)
        elif begin_at < position:
            begin_at = find(begin_marker, position)
        first = min(open_at, begin_at, size if reasoning_seen else close_at)
        if first == size:
            break
        if first == close_at and not reasoning_seen:
            if segments:
                add(SegmentKind.TEXT, start, first)
                stray_at = first
            else:
                add(SegmentKind.REASONING, 0, first)
            position = start = first + close_size
            add(SegmentKind.TAG, first, position)
            reasoning_seen = True
        elif first == open_at:
            add(SegmentKind.TEXT, start, first)
            position = start = first + len(opening or "")
            add(SegmentKind.TAG, first, position)
            reasoning_seen = inside = True
        elif read_block:
            add(SegmentKind.TEXT, start, first)
            if stray_at >= 0:
                drafted = [each for each in segments if each.start >= stray_at]
                segments.clear()
                add(SegmentKind.REASONING, 0, stray_at)
                segments.extend(drafted)
                stray_at = -1
            end = read_block(first)
            if end is None:
                add(SegmentKind.UNCLOSED, first, size)
                return segments
            add(SegmentKind.BLOCK, first, end)
            position = start = end
    add(SegmentKind.TEXT, start, size)
    return segments


def split_reasoning(
    text: str, think_tokens: ThinkTokens | None = DEFAULT_THINK_TOKENS, *, in_reasoning: bool = False
) -> ReasoningSplit:
    """Split sampled text into visible text and reasoning; arguments as for `scan`."""
    check_think_tokens(think_tokens)
    return split_segments(text, scan(text, think_tokens=think_tokens, in_reasoning=in_reasoning))


def split_segments(text: str, segments: list[TextSegment]) -> ReasoningSplit:
    """The split that the segments of a text make; blocks of calls belong to neither part."""
    visible, thought = join(text, segments, SegmentKind.TEXT), join(text, segments, SegmentKind.REASONING, "\n")
    return ReasoningSplit(visible, thought)


def join(text: str, segments: list[TextSegment], kind: SegmentKind, separator: str = "") -> str:
    """The text of all segments of one kind."""
    return separator.join(text[segment.start : segment.end] for segment in segments if segment.kind is kind)


def check_think_tokens(think_tokens: ThinkTokens | None) -> None:
    """Raise ToolParserError unless the tags are None or two different non-empty strings."""
    if think_tokens is None:
        return
    if len(think_tokens) != 2 or not all(think_tokens) or think_tokens[0] == think_tokens[1]:
        raise ToolParserError(
            f"think_tokens={think_tokens!r} is not a pair of two different tags; "
            "give e.g. ('<think>', '</think>'), or None"
        )
