# ruff: noqa: D102 - methods without a docstring are documented in `ToolParser`
"""Calls in a special notation, whose end is found by reading them: Gemma 4 and OLMo 3."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

from .base import ToolParser, register_tool_parser
from .calls import Block, ToolParseResult
from .values import (
    CallError,
    JSONError,
    ParameterTypes,
    add_value,
    error_at,
    is_name,
    json_end,
    load_json,
    read_items,
    skip_space,
)

QUOTE = '<|"|>'
PREFIX = "call:"
_MAX_DEPTH = 64


class NotationToolParser(ToolParser):
    """An end marker inside a value belongs to it. From a malformed call on, the block is malformed."""

    HEAD: ClassVar[re.Pattern[str]]
    """Pattern of the text before the arguments, with the name as its group."""
    HEAD_FORM: ClassVar[str]
    """The same, as error messages show it."""
    BRACKETS: ClassVar[str]
    """The brackets around the arguments."""
    KEY: ClassVar[re.Pattern[str]]
    """Pattern of a key, as its group, and of the text between it and its value."""
    KEY_FORM: ClassVar[str]
    """The same, as error messages show it."""
    SEVERAL_CALLS: ClassVar[bool] = False
    """A block may hold several calls."""

    def read_value(self, text: str, position: int, key: str, depth: int) -> tuple[Any, int]:
        """Read the value of a key, of at most `depth` levels; gives the offset behind it, too."""
        raise NotImplementedError(type(self).__name__)

    def read_arguments(self, text: str, position: int, depth: int = _MAX_DEPTH) -> tuple[dict[str, Any], int]:
        """Read arguments; gives the offset behind them, too."""
        values: dict[str, Any] = {}

        def read_pair(position: int) -> int:
            match = self.KEY.match(text, position)
            if match is None:
                raise error_at(self.KEY_FORM, text, position)
            value, end = self.read_value(text, match.end(), match[1], depth)
            add_value(values, match[1], value, position=position)
            return end

        return values, self.read_nested(text, position, self.BRACKETS, depth, read_pair)

    @staticmethod
    def read_nested(text: str, position: int, brackets: str, depth: int, read_item: Callable[[int], int]) -> int:
        """Read items between brackets; returns the offset behind them."""
        if depth <= 0:
            raise CallError("nested too deeply", position=position)
        return read_items(text, position, brackets, read_item)

    def read_block(self, text: str, start: int, types: ParameterTypes) -> Block | None:
        begin, end_marker = self.tool_call_tokens
        inner = position = start + len(begin)
        calls: list[ToolParseResult] = []
        while True:
            call_start = skip_space(text, position)
            if calls and text.startswith(end_marker, call_start):
                return Block.around(calls, start, call_start + len(end_marker))
            try:
                if calls and not self.SEVERAL_CALLS:
                    raise error_at(end_marker, text, call_start)
                head = self.HEAD.match(text, call_start)
                if head is None or not is_name(head.group(1)):
                    raise error_at(self.HEAD_FORM, text, call_start, "")
                arguments, position = self.read_arguments(text, head.end())
            except CallError as error:
                close = text.find(end_marker, error.position)
                if close < 0:
                    return None
                if not self.SEVERAL_CALLS:
                    calls, call_start = [], inner
                end = close + len(end_marker)
                calls.append(self.refuse(error, text[call_start:close].strip(), (call_start, end)))
                return Block.around(calls, start, end)
            calls.append(ToolParseResult(name=head.group(1), input=arguments, span=(call_start, position)))

    def guess_name(self, markup: str) -> str:
        match = self.HEAD.match(markup.lstrip())
        return match.group(1) if match and is_name(match.group(1)) else ""


@register_tool_parser("olmo3")
class Olmo3ToolParser(NotationToolParser):
    """`<function_calls>NAME(KEY=JSON, ...)</function_calls>`: OLMo 3, one call a line, as the template prints them.

    Python's own way of writing (`True`, `None`, single quotes, positional arguments) is malformed.
    """

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<function_calls>", "</function_calls>")
    # At the beginning of a line, as the template prints it: prose and code are full of `f(x=1)`.
    opening = r"(?<![^\n])(?P<name>[\w.-]{1,256}+)(?=\((?:[\w-]{1,256}+=|\)))"
    HEAD: ClassVar[re.Pattern[str]] = re.compile(r"([\w.-]{1,256})(?=\()")
    HEAD_FORM: ClassVar[str] = "NAME("
    SEVERAL_CALLS: ClassVar[bool] = True
    BRACKETS: ClassVar[str] = "()"
    KEY: ClassVar[re.Pattern[str]] = re.compile(r"""([^\s=,()\[\]{}<>"'][^=,{}<>\n]{0,255})(?<!\s)=""")
    KEY_FORM: ClassVar[str] = "KEY="

    def read_value(self, text: str, position: int, key: str, depth: int) -> tuple[Any, int]:
        end = json_end(text, position)
        try:
            if end is None:
                raise JSONError(f"the value of {key!r} is not valid JSON: found {text[position : position + 40]!r}")
            return load_json(text[position:end].strip(), f"the value of {key!r} is"), end
        except JSONError as error:
            error.position = end or position
            raise


@register_tool_parser("gemma4")
class Gemma4ToolParser(NotationToolParser):
    """`<|tool_call>call:NAME{KEY:VALUE,...}<tool_call|>`: Gemma 4, one call per block, several blocks in a row.

    Strings stand between quote tokens with nothing escaped, so a string cannot hold one; any other value is a JSON
    number, `true`, `false` or `null`, or a list or an object of such. A key stands without quotes, so one with braces,
    colons or commas, or a bracket or quote at its start, cannot be written.
    """

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<|tool_call>", "<tool_call|>")
    DEFAULT_THINK: ClassVar[tuple[str, str]] = ("<|channel>thought", "<channel|>")
    opening = r"call:(?P<name>[^{\s]{1,256}+)(?=\{)"
    HEAD: ClassVar[re.Pattern[str]] = re.compile(r"call:([^{\s]{1,256})")
    HEAD_FORM: ClassVar[str] = f"{PREFIX}NAME{{"
    BRACKETS: ClassVar[str] = "{}"
    KEY: ClassVar[re.Pattern[str]] = re.compile(r"""([^\s:,{}\[\]<>"'][^:,{}<>\n]{0,255})(?<!\s)\s*:\s*""")
    KEY_FORM: ClassVar[str] = "a key"
    LITERAL: ClassVar[re.Pattern[str]] = re.compile(r"[-+.\w]+")

    def read_value(self, text: str, position: int, key: str, depth: int) -> tuple[Any, int]:
        if text.startswith(QUOTE, position):
            start = position + len(QUOTE)
            end = text.find(QUOTE, start)
            if end < 0:
                raise CallError(f"a string is not closed by {QUOTE}", position=start)
            return text[start:end], end + len(QUOTE)
        if text.startswith("{", position):
            return self.read_arguments(text, position, depth - 1)
        if text.startswith("[", position):
            values: list[Any] = []

            def read_item(position: int) -> int:
                value, position = self.read_value(text, position, key, depth - 1)
                values.append(value)
                return position

            return values, self.read_nested(text, position, "[]", depth - 1, read_item)
        match = self.LITERAL.match(text, position)
        if match and match.group() == "None":  # as older templates print null
            return None, match.end()
        try:
            return load_json(match.group() if match else ""), match.end() if match else position
        except JSONError:
            raise error_at("a value", text, position) from None
