# ruff: noqa: D102 - methods without a docstring are documented in `ToolParser`
"""`<|tool_call>call:NAME{KEY:VALUE,...}<tool_call|>`, strings between `<|"|>`, keys without quotes: Gemma 4."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

from .base import Block, ToolParser, ToolParseResult, register_tool_parser
from .values import JSONError, ParameterTypes, TagError, is_name, load_json, read_items, skip_space

QUOTE = '<|"|>'
PREFIX = "call:"

_NAME = re.compile(r"\s*call:([^{\s]{1,256})")
_KEY = re.compile(r"""[^\s:,{}\[\]<>"'][^:,{}<>\n]{0,255}(?<!\s)(?=\s*:)""")
_LITERAL = re.compile(r"[-+.\w]+")
_MAX_DEPTH = 64


@register_tool_parser("gemma4")
class Gemma4ToolParser(ToolParser):
    """One call per block, several blocks in a row.

    Strings stand between quote tokens with nothing escaped, so a string cannot hold one; any other value is a JSON
    number, `true`, `false` or `null`, or a list or an object of such. A key stands without quotes, so one with braces,
    colons or commas, or a bracket or quote at its start, cannot be written. An end marker inside a string belongs to
    the string.
    """

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<|tool_call>", "<tool_call|>")
    DEFAULT_THINK: ClassVar[tuple[str, str]] = ("<|channel>thought", "<channel|>")

    def read_block(self, text: str, start: int, types: ParameterTypes) -> Block | None:
        begin, end_marker = self.tool_call_tokens
        inner = start + len(begin)
        head = _NAME.match(text, inner)
        reached, name = inner, ""
        try:
            if head is None or not is_name(head.group(1)):
                raise TagError(f"{PREFIX}NAME{{ was expected", "", inner)
            reached, name = head.end(), head.group(1)
            arguments, reached = _read_object(text, reached, _MAX_DEPTH)
            close = skip_space(text, reached)
            if not text.startswith(end_marker, close):
                raise TagError(f"found {text[close : close + 40]!r} where {end_marker} was expected", "", reached)
        except TagError as error:
            close = text.find(end_marker, error.position)
            if close < 0:
                return None
            end = close + len(end_marker)
            raw = text[inner:close].strip()
            return Block(end=end, calls=(ToolParseResult(name=name, raw=raw, error=str(error), span=(start, end)),))
        end = close + len(end_marker)
        return Block(end=end, calls=(ToolParseResult(name=name, input=arguments, span=(start, end)),))

    def guess_name(self, markup: str) -> str:
        match = _NAME.match(markup)
        return match.group(1) if match and is_name(match.group(1)) else ""


def _read_value(text: str, position: int, depth: int) -> tuple[Any, int]:
    if text.startswith(QUOTE, position):
        start = position + len(QUOTE)
        end = text.find(QUOTE, start)
        if end < 0:
            raise TagError(f"a string is not closed by {QUOTE}", "", start)
        return text[start:end], end + len(QUOTE)
    if text.startswith("{", position):
        return _read_object(text, position, depth - 1)
    if text.startswith("[", position):
        return _read_list(text, position, depth - 1)
    match = _LITERAL.match(text, position)
    if match and match.group() == "None":  # as older templates print null
        return None, match.end()
    try:
        return load_json(match.group() if match else ""), match.end() if match else position
    except JSONError:
        found = text[position : position + 40]
        raise TagError(f"found {found!r} where a value was expected", "", position) from None


def _read_object(text: str, position: int, depth: int) -> tuple[dict[str, Any], int]:
    values: dict[str, Any] = {}

    def read_pair(position: int) -> int:
        match = _KEY.match(text, position)
        if match is None:
            raise TagError(f"found {text[position : position + 40]!r} where a key was expected", "", position)
        key, colon = match.group(), skip_space(text, match.end())
        if not text.startswith(":", colon):
            raise TagError(f"the key {key!r} must be followed by a colon", "", position)
        if key in values:
            raise TagError(f"the key {key!r} is given twice", "", position)
        values[key], position = _read_value(text, skip_space(text, colon + 1), depth)
        return position

    return values, _read_nested(text, position, "{}", depth, read_pair)


def _read_list(text: str, position: int, depth: int) -> tuple[list[Any], int]:
    values: list[Any] = []

    def read_item(position: int) -> int:
        value, position = _read_value(text, position, depth)
        values.append(value)
        return position

    return values, _read_nested(text, position, "[]", depth, read_item)


def _read_nested(text: str, position: int, brackets: str, depth: int, read_item: Callable[[int], int]) -> int:
    if depth <= 0:
        raise TagError("nested too deeply", "", position)
    return read_items(text, position, brackets, read_item)
