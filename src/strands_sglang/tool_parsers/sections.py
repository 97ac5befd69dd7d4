# ruff: noqa: D102 - methods without a docstring are documented in `ToolParser`
"""Calls in a section of special tokens: section begin, then `begin HEADER separator JSON end` for each call.

Kimi K2 and K2.5; DeepSeek V3, R1 and V3.1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from .base import ToolParser, register_tool_parser
from .calls import Block, ToolParseResult
from .splitting import BlockFinder, finder
from .values import CallError, ParameterTypes, json_end, load_arguments, skip_space


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTokens:
    """The markers inside a section: of a call's begin, between its header and its arguments, and of its end."""

    begin: str
    separator: str
    end: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """A call's header: the tool name, empty when it has none, and the id it prints, where the format has one."""

    name: str
    model_id: str | None = None


class SectionToolParser(ToolParser):
    """Base of the families whose calls stand in one section; a section without its end marker is unclosed.

    A marker inside a JSON string of the arguments belongs to the string. A call outside of a section is malformed.
    """

    CALL: ClassVar[CallTokens]

    def read_header(self, header: str) -> Header:
        """Read the stripped text between a call's begin marker and its separator."""
        raise NotImplementedError(type(self).__name__)

    @property
    def end_markers(self) -> tuple[str, ...]:
        return (*super().end_markers, self.CALL.end)

    def begin(self, text: str) -> BlockFinder:
        """A block begins at a section, or at a call that stands in none: one with a header, not a mention."""
        section, call, separator = map(re.escape, (self.tool_start_token, self.CALL.begin, self.CALL.separator))
        header = f"(?:(?!{section}|{call}).){{0,256}}?{separator}"
        # The header is bounded and crosses no marker: each is looked at once, however many a hostile text has.
        return finder(re.compile(f"{section}|{call}(?={header})", re.DOTALL), text)

    def read_block(self, text: str, start: int, types: ParameterTypes) -> Block | None:
        begin, section_end = self.tool_call_tokens
        if not text.startswith(begin, start):
            return self._read_outside(text, start)
        calls: list[ToolParseResult] = []
        position = start + len(begin)
        while True:
            position = skip_space(text, position)
            if text.startswith(section_end, position):
                if not calls:
                    empty = CallError(f"no call stands between {begin} and {section_end}", "")
                    calls = [self.refuse(empty, "", (start, position + len(section_end)))]
                return Block(end=position + len(section_end), calls=tuple(calls))
            if text.startswith(self.CALL.begin, position):
                call = self._read_call(text, position)
                if call is None:
                    return None
            elif (end := _first(text, position, (self.CALL.begin, section_end))) is None:
                return None
            else:  # text between calls: a malformed call up to the next marker, so that it does not get lost
                error = CallError(f"text stands where {self.CALL.begin} was expected", "")
                call = self.refuse(error, text[position:end].strip(), (position, end))
            calls.append(call)
            position = call.span[1]

    def guess_name(self, markup: str) -> str:
        behind = markup.split(self.CALL.begin, 1)
        if len(behind) < 2 or self.CALL.separator not in behind[1]:
            return ""
        return self.read_header(behind[1].split(self.CALL.separator, 1)[0].strip()).name

    def _read_call(self, text: str, start: int) -> ToolParseResult | None:
        inner = start + len(self.CALL.begin)
        close = _first(text, inner, (self.CALL.end, self.tool_end_token))
        if close is None:
            return None
        separator = text.find(self.CALL.separator, inner, close)
        raw_start, header = inner, Header(name="")
        try:
            if separator < 0:
                raise CallError(f"{self.CALL.separator} is missing", "")
            header = self.read_header(text[inner:separator].strip())
            arguments_at = separator + len(self.CALL.separator)
            value_end = json_end(text, arguments_at)
            # An end marker inside a JSON string is text; the one behind the value ends the call.
            if value_end is not None and text.startswith(self.CALL.end, skip_space(text, value_end)):
                close = skip_space(text, value_end)
            raw_start = arguments_at
            if not text.startswith(self.CALL.end, close):
                raise CallError(f"{self.CALL.end} is missing", header.name)
            if not header.name:
                raw_start = inner
                raise CallError("the call has no tool name", "")
            arguments = load_arguments(text[arguments_at:close].strip(), header.name)
        except CallError as error:
            end = close + len(self.CALL.end) if text.startswith(self.CALL.end, close) else close
            return self.refuse(error, text[raw_start:close].strip(), (start, end), header.model_id)
        span = (start, close + len(self.CALL.end))
        return ToolParseResult(name=header.name, input=arguments, model_id=header.model_id, span=span)

    def _read_outside(self, text: str, start: int) -> Block | None:
        """A call that stands in no section, with the end of a section that may follow it."""
        section_end = self.tool_end_token
        call = self._read_call(text, start)
        if call is None:
            return None
        end = call.span[1]
        if text.startswith(section_end, skip_space(text, end)):
            end = skip_space(text, end) + len(section_end)
        return self.outside(text, start, end, call.name)


def _first(text: str, start: int, markers: tuple[str, str]) -> int | None:
    """Offset of the first of the markers; searching one after the other could read the whole text each time."""
    match = re.compile("|".join(map(re.escape, markers))).search(text, start)
    return match.start() if match else None


_KIMI_ID = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?", re.DOTALL)


@register_tool_parser("kimi_k2")
class KimiK2ToolParser(SectionToolParser):
    """Calls in one section, each with the id the model counts itself (`functions.add:0`).

    The id holds the name; an id without `functions.` is the name, and its count.
    """

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
    CALL: ClassVar[CallTokens] = CallTokens(
        begin="<|tool_call_begin|>", separator="<|tool_call_argument_begin|>", end="<|tool_call_end|>"
    )

    def read_header(self, header: str) -> Header:
        match = _KIMI_ID.fullmatch(header)
        return Header(name=match.group(1) if match else header, model_id=header or None)


_DEEPSEEK_SECTION = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")


@register_tool_parser("deepseek_v31", "deepseekv31")
class DeepSeekV31ToolParser(SectionToolParser):
    """`<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>`."""

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = _DEEPSEEK_SECTION
    CALL: ClassVar[CallTokens] = CallTokens(
        begin="<｜tool▁call▁begin｜>", separator="<｜tool▁sep｜>", end="<｜tool▁call▁end｜>"
    )

    def read_header(self, header: str) -> Header:
        return Header(name=header)


@register_tool_parser("deepseek_v3", "deepseekv3")
class DeepSeekV3ToolParser(DeepSeekV31ToolParser):
    """`<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME`, then the arguments as a fenced JSON block."""

    CALL: ClassVar[CallTokens] = CallTokens(
        begin="<｜tool▁call▁begin｜>function<｜tool▁sep｜>", separator="```json", end="```<｜tool▁call▁end｜>"
    )
