# ruff: noqa: D102 - methods without a docstring are documented in `ToolParser`
"""`<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`: GLM 4.5 to 5, newlines optional."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .base import Block, ToolParser, ToolParseResult, register_tool_parser
from .values import ANY_TYPE, CallError, JSONError, ParameterTypes, decode_printed, is_name, load_json, skip_space

KEY = ("<arg_key>", "</arg_key>")
VALUE = ("<arg_value>", "</arg_value>")


@register_tool_parser("glm", "glm45", "glm47")
class GLMToolParser(ToolParser):
    """One call per block: the name, then pairs of key and value.

    The template prints strings bare and everything else as JSON. Without schemas a value that is JSON is decoded and
    any other is the printed string without surrounding blanks; with `tools`, a parameter declared as a string is the
    printed text, exactly.
    """

    def read_block(self, text: str, start: int, types: ParameterTypes) -> Block | None:
        begin, end_marker = self.tool_call_tokens
        inner = start + len(begin)
        close = text.find(end_marker, inner)
        if close < 0:
            return None
        span, raw = (start, close + len(end_marker)), text[inner:close]
        try:
            call = replace(_read_call(raw, types), span=span)
        except CallError as error:
            call = self.refuse(error, raw.strip(), span)
        return Block(end=span[1], calls=(call,))

    def guess_name(self, markup: str) -> str:
        name = markup.split(KEY[0], 1)[0].strip().split("\n", 1)[0].strip()
        return name if is_name(name) else ""


def _read_call(inner: str, types: ParameterTypes) -> ToolParseResult:
    name = inner.split(KEY[0], 1)[0]
    position = len(name)
    name = name.strip()
    if not is_name(name):
        raise CallError(f"found {name[:40]!r} where the tool name was expected")
    arguments: dict[str, Any] = {}
    while (position := skip_space(inner, position)) < len(inner):
        key, position = _read_pair_part(inner, position, KEY)
        key = key.strip()
        printed, position = _read_pair_part(inner, skip_space(inner, position), VALUE)
        if not key or key in arguments:
            raise CallError(f"the argument {key!r} is given twice" if key else f"{KEY[0]} is empty")
        arguments[key] = decode_value(printed, types.of(name, key))
    return ToolParseResult(name=name, input=arguments)


def _read_pair_part(text: str, position: int, tags: tuple[str, str]) -> tuple[str, int]:
    opening, closing = tags
    if not text.startswith(opening, position):
        found = text[position : position + 40]
        raise CallError(f"found {found!r} where {opening} was expected" if found else f"{opening} is missing")
    start = position + len(opening)
    end = text.find(closing, start)
    if end < 0:
        raise CallError(f"{opening} is not closed by {closing}")
    part = text[start:end]
    for tag in (KEY[0], VALUE[0]):
        if tag in part:
            raise CallError(f"{opening} contains {tag}, or {closing} is missing")
    return part, end + len(closing)


def decode_value(printed: str, types: frozenset[str]) -> Any:
    """The value of a printed text: by the declared types or, without any, what it is as JSON."""
    if types and not types >= ANY_TYPE:
        return decode_printed(printed, types)
    stripped = printed.strip()  # newlines around a value are layout, and blanks look the same
    try:
        return load_json(stripped)
    except JSONError:
        return stripped
