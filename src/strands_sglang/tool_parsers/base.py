"""The base of tool parsers, which finds call blocks outside reasoning, and the names of parsers."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Self, TypeVar

from ..exceptions import ToolParserError, did_you_mean
from .calls import Block, ParseOutput, ToolParseResult
from .outside import find_marks, read_outside
from .splitting import (
    DEFAULT_THINK_TOKENS,
    BlockFinder,
    BlockReader,
    ReplyFrame,
    SegmentKind,
    TextSegment,
    ThinkTokens,
    finder,
    join,
    scan,
)
from .values import CallError, ParameterTypes, ToolSchemas

_FAMILY: ThinkTokens = ("", "")  # means the family's own tags, which the signature cannot name


class ToolParser:
    """Reads the tool calls in sampled text.

    Strict: a call is given exactly as it was written, or it is malformed and says why; nothing is repaired. Calls
    drafted inside a reasoning block are not calls. No text makes a parser raise.

    A subclass sets `DEFAULT_TOKENS` and defines `read_block`; see `docs/tool-parsers.md`. A subclass written for
    strands-sglang defines `parse(text)` alone. It is given the text outside reasoning; if that has calls, the
    text between the two markers is not shown.

    Args:
        tool_call_tokens: Markers that begin and end a block of calls; None for those of the family.
        think_tokens: Tags of a reasoning block, by default those of the family; None when text between such tags is
            not to be excluded.
        tool_start_token, tool_end_token: Replace the first or second of `tool_call_tokens`.
        think_start_token, think_end_token: Replace the first or second of `think_tokens`.

    Raises:
        ToolParserError: A marker is empty, or the two tags of a reasoning block are the same.
        TypeError: The class defines neither `read_block` nor `parse`.
    """

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<tool_call>", "</tool_call>")
    DEFAULT_THINK: ClassVar[ThinkTokens] = DEFAULT_THINK_TOKENS
    NAME: ClassVar[re.Pattern[str]] = re.compile(r'"name"\s*:\s*"([^"\\\n]+)"')
    """Finds the tool name, as its group, in malformed markup."""
    END_IS_TEXT: ClassVar[bool] = False
    """The end marker is common in text as well, so that alone it is no sign of a call."""
    # For subclasses whose `__init__` does not call ours.
    tool_call_tokens: tuple[str, str] = DEFAULT_TOKENS
    think_tokens: ThinkTokens | None = DEFAULT_THINK_TOKENS
    frame: ReplyFrame | None = None
    """Texts that the chat template prints around the parts of a reply; found by the self-check of the template."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Refuse a class that cannot read calls."""
        if cls.read_block is ToolParser.read_block and cls.parse is ToolParser.parse:
            raise TypeError(f"{cls.__name__} must define read_block(text, start, types), or parse(text)")
        return super().__new__(cls)

    def __init__(
        self,
        *,
        tool_call_tokens: tuple[str, str] | None = None,
        think_tokens: ThinkTokens | None = _FAMILY,
        tool_start_token: str | None = None,
        tool_end_token: str | None = None,
        think_start_token: str | None = None,
        think_end_token: str | None = None,
    ) -> None:
        begin, end = tool_call_tokens or self.DEFAULT_TOKENS
        self.tool_call_tokens = (tool_start_token or begin, tool_end_token or end)
        if not self.tool_call_tokens[0]:
            raise ToolParserError(f"tool_call_tokens={tool_call_tokens!r} has no begin marker; give two strings")
        if think_tokens is _FAMILY:
            think_tokens = self.DEFAULT_THINK
        if think_start_token is not None or think_end_token is not None:
            opening, closing = think_tokens or self.DEFAULT_THINK
            think_tokens = (think_start_token or opening, think_end_token or closing)
        if think_tokens is not None and (len(set(think_tokens)) != 2 or not all(think_tokens)):
            raise ToolParserError(
                f"think_tokens={think_tokens!r} is not a pair of two different tags; "
                "give e.g. ('<think>', '</think>'), or None"
            )
        self.think_tokens = think_tokens

    def with_think_tokens(self, think_tokens: ThinkTokens | None) -> Self:
        """A copy that reads reasoning between other tags, or none; the parser itself where it reads none, or these."""
        if self.think_tokens in (None, think_tokens):
            return self
        other = copy.copy(self)
        other.think_tokens = think_tokens
        return other

    def with_frame(self, frame: ReplyFrame | None) -> Self:
        """A copy that takes a frame off the replies it reads, and reads reasoning between the tags of the frame."""
        other = copy.copy(self)
        other.frame = frame
        return other if frame is None or frame.tags is None else other.with_think_tokens(frame.tags)

    @property
    def tool_start_token(self) -> str:
        """Marker that begins a block of calls."""
        return self.tool_call_tokens[0]

    @property
    def tool_end_token(self) -> str:
        """Marker that ends a block of calls."""
        return self.tool_call_tokens[1]

    @property
    def think_start_token(self) -> str | None:
        """Tag that opens a reasoning block; None when the parser knows none."""
        return self.think_tokens[0] if self.think_tokens else None

    @property
    def think_end_token(self) -> str | None:
        """Tag that closes a reasoning block; None when the parser knows none."""
        return self.think_tokens[1] if self.think_tokens else None

    @property
    def end_markers(self) -> tuple[str, ...]:
        """Markers that end a block or, outside of one, a call without its beginning."""
        return tuple(filter(None, self.tool_call_tokens[1:]))

    @property
    def opening(self) -> str:
        """Pattern of the beginning of a call inside its block; its only group is `(?P<name>...)`, the tool's name.

        With the name of a declared tool it is a malformed call where it stands outside of a block. Empty for none.
        """
        return ""

    def read_block(self, text: str, start: int, types: ParameterTypes) -> Block | None:
        """Read the block whose begin marker is at offset `start` of the whole sampled text; None when it never ends."""
        raise NotImplementedError(type(self).__name__)

    def parse_all(
        self, text: str, *, in_reasoning: bool = False, tools: ToolSchemas | None = None, read_calls: bool = True
    ) -> ParseOutput:
        """Parse sampled text into calls, visible text and reasoning.

        Args:
            text: Sampled text, decoded with special tokens kept.
            in_reasoning: The prompt ends inside a reasoning block, so the text starts in one.
            tools: Tool specs or chat-template tools. Formats that print values without a type decode them by it.
            read_calls: False leaves calls in the visible text.
        """
        types, blocks = ParameterTypes(tools), dict[int, Block]()
        has_parse_alone = type(self).read_block is ToolParser.read_block

        def read(start: int) -> int | None:
            block = self.read_block(text, start, types)
            if block is not None:
                blocks[start] = block
            return block.end if block else None

        segments = self.cut(text, read if read_calls and not has_parse_alone else None, in_reasoning=in_reasoning)
        if read_calls and not has_parse_alone and (marks := find_marks(self.end_markers, self.opening)):
            segments = read_outside(
                text,
                segments,
                blocks,
                marks,
                is_tool=types.is_tool,
                refuse=self.outside,
                ends_are_text=self.END_IS_TEXT,
            )
        if self.frame is not None:
            segments = self.frame.take_off(text, segments)
        visible = join(text, segments, SegmentKind.TEXT)
        if read_calls and has_parse_alone:
            # Spans count in the text that the parser was given, which is another where reasoning was cut off.
            calls = [call if visible == text else replace(call, span=(0, 0)) for call in self.parse(visible)]
            if calls:  # where there are none, such text is the model's, and is shown
                begin, end = map(re.escape, self.tool_call_tokens)  # special tokens are full of `|` and `[`
                visible = re.sub(f"{begin}.*?{end}", "", visible, flags=re.DOTALL)
        else:
            read_blocks = [blocks[each.start] for each in segments if each.kind is SegmentKind.BLOCK]
            calls = [call for block in read_blocks for call in block.calls]
            calls = [call.with_id(index) for index, call in enumerate(calls)]
        unclosed_call = None
        if unclosed := join(text, segments, SegmentKind.UNCLOSED):
            inner, span = unclosed.removeprefix(self.tool_start_token), (len(text) - len(unclosed), len(text))
            error = CallError(self.unclosed_error(inner), self.guess_name(inner))
            unclosed_call = self.refuse(error, inner.strip(), span).with_id(len(calls))
        return ParseOutput(
            calls=tuple(calls),
            text=visible,
            reasoning=join(text, segments, SegmentKind.REASONING, "\n"),
            unclosed_call=unclosed_call,
            segments=tuple(segments),
        )

    def cut(self, text: str, read_block: BlockReader | None, *, in_reasoning: bool) -> list[TextSegment]:
        """Cut text into reasoning, visible text and call blocks; without `read_block`, calls are not looked for."""
        return scan(
            text,
            think_tokens=self.think_tokens,
            in_reasoning=in_reasoning,
            needs_opening=self.frame is not None and self.frame.tags is not None,
            find_begin=self.begin(text) if read_block else None,
            read_block=read_block,
        )

    def begin(self, text: str) -> BlockFinder:
        """The function that finds where blocks begin; asked once for a text."""
        return finder(self.tool_start_token, text)

    def parse(
        self, text: str, *, in_reasoning: bool = False, tools: ToolSchemas | None = None
    ) -> list[ToolParseResult]:
        """Calls and malformed calls of the text, in order; arguments as for `parse_all`."""
        return list(self.parse_all(text, in_reasoning=in_reasoning, tools=tools).calls)

    def __call__(self, text: str) -> list[dict[str, Any]]:
        """The well-formed calls only, as dicts with the keys `id`, `name` and `input`."""
        return [
            {"id": call.id, "name": call.name, "input": call.input} for call in self.parse(text) if not call.is_error
        ]

    def refuse(self, error: CallError, raw: str, span: tuple[int, int], model_id: str | None = None) -> ToolParseResult:
        """The malformed call that a text is."""
        name = self.guess_name(raw) if error.name is None else error.name
        return ToolParseResult(name=name, raw=raw, error=str(error), model_id=model_id, span=span)

    def guess_name(self, markup: str) -> str:
        """Best guess at the tool name in malformed markup; empty when there is none."""
        match = self.NAME.search(markup)
        return match.group(1) if match else ""

    def end_of_turn(self, text: str, start: int, end: int | None = None) -> int:
        """The latest possible end of a call without an end marker: the end of the turn (`end`), or of the reasoning."""
        end = len(text) if end is None else end
        close_at = text.find(self.think_tokens[1], start, end) if self.think_tokens else -1
        return end if close_at < 0 else close_at

    def outside(self, text: str, start: int, end: int, name: str | None) -> Block:
        """The malformed call that stands outside of a block; its name is None where not even its beginning stands."""
        error = CallError(self.outside_error(is_opened=name is not None), name or "")
        return Block(end, (self.refuse(error, text[start:end].strip(), (start, end)),))

    def outside_error(self, *, is_opened: bool) -> str:
        """The error of a call outside of a block, or of an end marker without even the beginning of a call."""
        subject = "the call" if is_opened else "an end marker"
        return f"{subject} stands outside of a section of calls: {self.tool_start_token} is missing"

    def unclosed_error(self, markup: str) -> str:
        """The error of a call that begins and never ends; `markup` is the text behind its begin marker."""
        if self.tool_end_token:
            return f"the call is not closed: {self.tool_end_token} is missing"
        return "the call does not end with the turn: its JSON is not complete or not valid"


TOOL_PARSER_REGISTRY: dict[str, type[ToolParser]] = {}
"""Registered classes by name, aliases included."""

P = TypeVar("P", bound=type[ToolParser])


class UnknownToolParserError(ToolParserError, KeyError):
    """No parser is registered under the name."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would print the repr


def register_tool_parser(name: str, *aliases: str) -> Callable[[P], P]:
    """Class decorator that makes a parser known to `get_tool_parser`; `ToolParserError` if another class has a name."""

    def register(parser_class: P) -> P:
        for key in (name, *aliases):
            other = TOOL_PARSER_REGISTRY.get(key)
            if other is not None and other.__qualname__ != parser_class.__qualname__:
                raise ToolParserError(f"the tool parser name {key!r} belongs to {other.__qualname__}; choose another")
            TOOL_PARSER_REGISTRY[key] = parser_class
        return parser_class

    return register


def get_tool_parser(name: str, **kwargs: Any) -> ToolParser:
    """Make the parser registered under `name`, one of `list_tool_parsers`, with its options.

    Raises:
        UnknownToolParserError: No such name; the message lists those there are.
    """
    parser_class = TOOL_PARSER_REGISTRY.get(name)
    if parser_class is None:
        names = list_tool_parsers()
        raise UnknownToolParserError(
            f"unknown tool parser {name!r}{did_you_mean(name, names)}; choose one of: {', '.join(names)}"
        )
    return parser_class(**kwargs)


def as_tool_parser(given: ToolParser | str | None) -> ToolParser | None:
    """The parser that is given, or the one registered under the name that is given; None stays None.

    An object with `parse(text)` is made a parser.

    Raises:
        UnknownToolParserError: No such name; the message lists those there are.
        TypeError: It is neither.
    """
    if isinstance(given, str):
        return get_tool_parser(given)
    value: Any = given
    if value is None or isinstance(value, ToolParser):
        return value
    if callable(getattr(value, "parse", None)) and not isinstance(value, type):
        return _PlainParser(value)
    hint = f"; write {value.__name__}(), an instance" if isinstance(value, type) else ""
    raise TypeError(f"got tool_parser={value!r}, expected a ToolParser or the name of one, such as 'hermes'{hint}")


class _PlainParser(ToolParser):
    """An object with `parse(text)` and nothing else, which strands-sglang took too."""

    def __init__(self, parser: Any) -> None:
        super().__init__()
        self._parser = parser

    def parse(self, text: str, **_: Any) -> list[ToolParseResult]:
        """The call that the object denotes."""
        return list(self._parser.parse(text))


def list_tool_parsers() -> list[str]:
    """All names `get_tool_parser` takes, aliases included, sorted."""
    return sorted(TOOL_PARSER_REGISTRY)
