"""Calls that stand outside of a block: half a frame, such as a call without the marker that begins its block.

Shown as text, such a call would end the turn as if it were the answer. It is a malformed call instead, which the model
reads about: its opening with the name of a declared tool, or an end marker. Markup in `inline code` is a mention.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from .calls import Block
from .splitting import SegmentKind, Segments, TextSegment


class Marks(NamedTuple):
    """The marks of calls outside of blocks.

    Attributes:
        signs: Openings and end markers, wherever they stand. Most texts have none, and this is the faster look.
        pattern: The same beside inline code and quoted markers, which hide their contents.
    """

    signs: re.Pattern[str]
    pattern: re.Pattern[str]


def read_outside(
    text: str,
    segments: Sequence[TextSegment],
    blocks: dict[int, Block],
    marks: Marks,
    *,
    is_tool: Callable[[str], bool],
    refuse: Callable[[str, int, int, str | None], Block],
    ends_are_text: bool,
) -> list[TextSegment]:
    """Cut the calls outside of blocks from the visible text, in one pass over it.

    An end marker right behind a block belongs to it, and one behind a malformed call and its remains ends that call.

    Args:
        blocks: The blocks of the segments by their offset; those found here are added.
        marks: The parser's, from `find_marks`.
        is_tool: Tells whether a tool of this name is declared.
        refuse: Makes the block of the malformed call in `text[start:end]`, whose name is None without an opening.
        ends_are_text: An end marker without the beginning of a call is text.
    """
    result = Segments()
    remains: dict[int, int] = {}  # where the text of a malformed call ends, by the offset of its block

    def add_call(name: str | None, position: int, start: int, end: int) -> int:
        result.add(SegmentKind.TEXT, position, start)
        result.add(SegmentKind.BLOCK, start, end)
        blocks[start] = refuse(text, start, end, name)
        return end

    for segment in segments:
        position, end = segment.start, segment.end
        if segment.kind is not SegmentKind.TEXT or marks.signs.search(text, position, end) is None:
            result.append(segment)
            continue
        name: str | None = None  # of the first opening, or of the first of a declared tool, once there is one
        start, is_call = end, False
        for match in marks.pattern.finditer(text, position, end):
            mark = match.lastgroup
            if mark not in (None, "quote", "end"):
                # An opening. One of an unknown tool is prose, unless an end marker follows before a declared one does.
                declared = not is_call and is_tool(match[mark])
                if declared or name is None:
                    name, start, is_call = match[mark], match.start(), declared
            elif mark == "end" and is_call:
                position = add_call(name, position, start, match.end())
                name, is_call = None, False
            elif mark == "end" and not ends_are_text:
                # Right behind a block? Then no call was begun since, and this is not another call.
                before = result[-1] if result and result[-1].end == position else None
                block = blocks[before.start] if before and before.kind is SegmentKind.BLOCK and name is None else None
                has_remains = bool(block and text[position : match.start()].strip())
                if block and before and (not has_remains or (block.calls and block.calls[-1].is_error)):
                    if has_remains:
                        remains[before.start] = match.start()
                    position = match.end()
                    result[-1] = before._replace(end=position)
                else:
                    position = add_call(name, position, match.start() if name is None else start, match.end())
                name = None
        if is_call:
            position = add_call(name, position, start, end)
        result.add(SegmentKind.TEXT, position, end)
    for at, raw_end in remains.items():  # once for a block, however many end markers stand behind it
        *calls, last = blocks[at].calls
        raw_start = max(text.find(last.raw or "", last.span[0]), last.span[0])
        last = replace(last, raw=text[raw_start:raw_end].strip(), span=(last.span[0], raw_end))
        blocks[at] = blocks[at]._replace(calls=(*calls, last))
    return result


@lru_cache(maxsize=256)
def find_marks(end_markers: tuple[str, ...], opening: str) -> Marks | None:
    """The patterns of openings and end markers; None without any."""
    end = "|".join(map(re.escape, end_markers))
    signs = list(filter(None, [opening, f"(?P<end>{end})" if end else ""]))
    fast = "|".join(filter(None, [opening, end]))  # `re` looks for first characters, but not into a group for them
    hidden = ["`[^`\n]+`", *([rf"(?P<quote>[\"'])(?:{end})(?P=quote)"] if end else [])]
    return Marks(re.compile(fast), re.compile("|".join([*hidden, *signs]))) if signs else None
