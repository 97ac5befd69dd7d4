# ruff: noqa: D102 - methods without a docstring are documented in `ToolParser`
"""`<function_calls>NAME(KEY=JSON, ...)</function_calls>`, one call a line: OLMo 3."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from .base import Block, ToolParser, ToolParseResult, register_tool_parser
from .values import JSONError, ParameterTypes, TagError, json_end, load_json, read_items, skip_space

_NAME = re.compile(r"[\w.-]{1,256}(?=\()")
_KEY = re.compile(r"""[^\s=,()\[\]{}<>"'][^=,{}<>\n]{0,255}(?<!\s)(?==)""")


@register_tool_parser("olmo3")
class Olmo3ToolParser(ToolParser):
    """Calls with arguments by keyword, every value JSON, as the template prints them.

    Python's own way of writing (`True`, `None`, single quotes, positional arguments) is malformed. From a malformed
    call on, the block is malformed: the start of the next call cannot be found.
    """

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<function_calls>", "</function_calls>")

    def read_block(self, text: str, start: int, types: ParameterTypes) -> Block | None:
        begin, end_marker = self.tool_call_tokens
        calls: list[ToolParseResult] = []
        position = skip_space(text, start + len(begin))
        while True:
            if calls and text.startswith(end_marker, position):
                return Block.around(calls, start, position + len(end_marker))
            call_start = position
            try:
                call, position = _read_call(text, position)
            except TagError as error:
                close = text.find(end_marker, error.position)
                if close < 0:
                    return None
                end = close + len(end_marker)
                raw = text[call_start:close].strip()
                calls.append(ToolParseResult(name=error.name, raw=raw, error=str(error), span=(call_start, end)))
                return Block.around(calls, start, end)
            calls.append(call)
            position = skip_space(text, position)

    def guess_name(self, markup: str) -> str:
        match = _NAME.match(markup.lstrip())
        return match.group() if match else ""


def _read_call(text: str, start: int) -> tuple[ToolParseResult, int]:
    head = _NAME.match(text, start)
    if head is None:
        raise TagError(f"found {text[start : start + 40]!r} where NAME( was expected", "", start)
    name = head.group()
    arguments: dict[str, Any] = {}

    def read_argument(position: int) -> int:
        match = _KEY.match(text, position)
        if match is None:
            found = text[position : position + 40]
            raise TagError(f"found {found!r} where KEY= was expected", name, position)
        key, value_at = match.group(), match.end() + 1
        if key in arguments:
            raise TagError(f"the argument {key!r} is given twice", name, position)
        value_end = json_end(text, value_at)
        try:
            if value_end is None:
                raise JSONError(f"found {text[value_at : value_at + 40]!r}")
            arguments[key] = load_json(text[value_at:value_end].strip())
        except JSONError as error:
            position = value_end or value_at
            raise TagError(f"the value of {key!r} is not valid JSON: {error}", name, position) from None
        return value_end

    end = read_items(text, head.end(), "()", read_argument, name)
    return ToolParseResult(name=name, input=arguments, span=(start, end)), end
