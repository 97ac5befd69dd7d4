"""Cuts sampled text into visible text, reasoning and tool-call blocks, in one pass from left to right.

A tag counts only where the text is not already inside something else: a call drafted inside a reasoning block is
reasoning, a `<think>` inside the arguments of a call is an argument. One pass in reading order is the only way to get
both right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from .values import skip_space

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
    """A tag that opens or closes a reasoning block, or a text of the frame."""
    BLOCK = "block"
    """A tool-call block, its begin and end marker included."""
    UNCLOSED = "unclosed"
    """A tool-call block whose end marker never came: everything from its begin marker on."""


class TextSegment(NamedTuple):
    """A piece of the text, `text[start:end]`; the segments of a text tile it without gap or overlap."""

    kind: SegmentKind
    start: int
    end: int


class Segments(list[TextSegment]):
    """The segments of a text, none of them empty."""

    def add(self, kind: SegmentKind, start: int, end: int) -> None:
        """Append a segment, unless it is empty."""
        if end > start:
            self.append(TextSegment(kind, start, end))


BlockReader = Callable[[int], int | None]
"""Takes the offset of a begin marker, gives the offset behind the end of its block, or None when it never ends."""

BlockFinder = Callable[[int], int]
"""Takes an offset of visible text, gives the first begin of a block at or behind it, or the length of the text."""


def finder(wanted: str | re.Pattern[str], text: str) -> BlockFinder:
    """Finds the first of a marker (never an empty one), or match of a pattern, at or behind an offset.

    Offsets only grow, so no stretch is searched twice.
    """
    at = -1

    def find(position: int) -> int:
        nonlocal at
        if at < position:
            if isinstance(wanted, str):
                at = text.find(wanted, position) if wanted else -1
            else:
                at = match.start() if (match := wanted.search(text, position)) else -1
            at = at if at >= 0 else len(text)
        return at

    return find


_MARK = re.compile(r"[<\[◁]\S+[>\]▷]")


def scan(
    text: str,
    *,
    think_tokens: ThinkTokens | None = DEFAULT_THINK_TOKENS,
    in_reasoning: bool = False,
    needs_opening: bool = False,
    find_begin: BlockFinder | None = None,
    read_block: BlockReader | None = None,
) -> list[TextSegment]:
    """Cut `text`, special tokens included, into segments, in order and none empty.

    A closing tag without an opening one, before any reasoning block was seen, means that the prompt had opened the
    block: the text before it is reasoning. Behind a finished call the tag is a stray one, and the call stays a call:
    callers whose prompt opened a block say so by `in_reasoning`.

    Args:
        think_tokens: Tags of a reasoning block; None when the model has none.
        in_reasoning: The prompt ends inside a reasoning block, so the text starts in one.
        needs_opening: A closing tag without an opening one closes nothing: the tag ends other messages, too.
        find_begin: Finds the begin of a tool-call block.
        read_block: Finds the end of a block; without both, calls are not looked for.
    """
    size = len(text)
    segments = Segments()
    add = segments.add
    opening, closing = think_tokens or ("", "")
    find_open, find_close = finder(opening, text), finder(closing, text)
    if opening and not _MARK.search(opening):  # words open a block only where the reply begins
        blanks = text[: skip_space(text, 0)]
        find_open = finder(re.compile(rf"(?<=\A{re.escape(blanks)}){re.escape(opening)}"), text)
    position = start = 0
    inside = in_reasoning and think_tokens is not None
    reasoning_seen = inside or needs_opening
    while position < size:
        if inside:
            close_at = find_close(position)
            if close_at == size:
                close_at = _skip_end(text, position, size, (closing,))  # the reply may be cut inside the tag
            add(SegmentKind.REASONING, position, close_at)
            position = start = min(size, close_at + len(closing))
            add(SegmentKind.TAG, close_at, position)
            inside = False
            continue
        open_at, close_at = find_open(position), size if reasoning_seen else find_close(position)
        first = min(open_at, close_at, find_begin(position) if find_begin and read_block else size)
        if first == size:
            break
        if first in (open_at, close_at):
            closes = first == close_at
            add(SegmentKind.REASONING if closes and not segments else SegmentKind.TEXT, start, first)
            position = start = first + len(closing if closes else opening)
            add(SegmentKind.TAG, first, position)
            reasoning_seen, inside = True, not closes
            continue
        add(SegmentKind.TEXT, start, first)
        end = read_block(first) if read_block else None
        add(SegmentKind.UNCLOSED if end is None else SegmentKind.BLOCK, first, size if end is None else end)
        position = start = size if end is None else end
    add(SegmentKind.TEXT, start, size)
    return segments


def join(text: str, segments: list[TextSegment], kind: SegmentKind, separator: str = "") -> str:
    """The text of all segments of one kind."""
    return separator.join([text[segment.start : segment.end] for segment in segments if segment.kind is kind])


# ---- the frame of a reply


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyFrame:
    """Constant texts that a chat template prints around the parts of a reply, such as `<|START_RESPONSE|>`.

    The model samples them, and they belong to no part. They are taken off once, and only at the edges of
    a part: the same text inside an answer is the answer's. Of several texts the longest counts.

    Attributes:
        before_text: In front of visible text that begins the reply or follows reasoning.
        behind_text: Behind visible text, wherever it ends.
        before_calls: In front of a call, behind any text.
        behind_calls: Behind a call, in front of any text.
        opening: In front of reasoning whose opening tag the prompt has only begun.
        tags: Tags of the reasoning, where the parser would look for others.
    """

    before_text: tuple[str, ...] = ()
    behind_text: tuple[str, ...] = ()
    before_calls: tuple[str, ...] = ()
    behind_calls: tuple[str, ...] = ()
    opening: str = ""
    tags: ThinkTokens | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """Every text of the frame."""
        sides = (*self.before_text, *self.behind_text, *self.before_calls, *self.behind_calls, self.opening)
        return tuple(dict.fromkeys(filter(None, sides)))

    def take_off(self, text: str, segments: Sequence[TextSegment]) -> list[TextSegment]:
        """The segments of a text, with the texts of the frame as tags."""
        out = Segments()
        is_call = [segment.kind in (SegmentKind.BLOCK, SegmentKind.UNCLOSED) for segment in segments]
        for index, (kind, start, end) in enumerate(segments):
            left, right = start, end
            if kind is SegmentKind.TEXT:
                if index and is_call[index - 1]:
                    left = _skip_start(text, left, right, self.behind_calls)
                else:
                    left = _skip_start(text, left, right, self.before_text)
                if index + 1 < len(segments) and is_call[index + 1]:
                    right = _skip_end(text, left, right, self.before_calls)
                right = _skip_end(text, left, right, self.behind_text)
            elif kind is SegmentKind.REASONING and index == 0 and self.opening:
                left = _skip_start(text, left, right, (self.opening,))
            out.add(SegmentKind.TAG, start, left)
            out.add(kind, left, right)
            out.add(SegmentKind.TAG, right, end)
        return out


_TOKEN = re.compile(r"<[^<>\s]+>")


def _skip_start(text: str, start: int, end: int, texts: tuple[str, ...]) -> int:
    """Offset behind the blanks and the first of `texts` with which `text[start:end]` begins; `start` if with none."""
    if texts:
        at = skip_space(text, start)
        for each in texts:
            if text.startswith(each, at, end):
                return at + len(each)
            if end == len(text) and each.startswith(text[at:]) and _TOKEN.match(text, at):
                return end  # the reply was cut inside the frame
    return start


def _skip_end(text: str, start: int, end: int, texts: tuple[str, ...]) -> int:
    """Offset of the first of `texts` with which `text[start:end]` ends, blanks aside; `end` if with none."""
    if texts:
        at = start + len(text[start:end].rstrip())
        for each in texts:
            if text.endswith(each, start, at):
                return at - len(each)
        for each in texts if end == len(text) else ():
            token = _TOKEN.match(each)
            begun = -1 if token is None else text.rfind(token[0], start, at)
            if begun >= 0 and each.startswith(text[begun:at]):
                return begun  # the reply was cut inside the frame
    return end
