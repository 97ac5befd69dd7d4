"""Calls written as tags: `<function=NAME><parameter=KEY>VALUE</parameter></function>` and its relatives.

Values are printed bare, with nothing escaped. So a value that contains one of the format's own tags cannot be told
from a missing close tag; it is malformed, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from strands_sglang.tool_parsers.base import Block, Draft, ToolParser, dump_json
from strands_sglang.tool_parsers.schema import ParameterTypes, decode_printed

_BLANK = re.compile(r"\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class TagGrammar:
    """The tags of one family.

    Attributes:
        call: What stands before and behind the name in the tag that opens a call.
        call_close: Tag that closes a call.
        parameter: What stands before and behind the key in the tag that opens a parameter.
        parameter_close: Tag that closes a parameter.
        kinds: What may stand between the key and the end of the tag that opens a parameter, when it says how the value
            is printed.
    """

    call: tuple[str, str]
    call_close: str
    parameter: tuple[str, str]
    parameter_close: str
    kinds: tuple[str, ...] = ("",)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedCall:
    """A call as printed.

    Attributes:
        name: Tool name.
        values: Key to printed value, nothing stripped.
        kinds: Key to the kind its tag names.
        end: Offset behind the call.
    """

    name: str
    values: dict[str, str]
    kinds: dict[str, str]
    end: int


class TagError(ValueError):
    """The text is not a call of the grammar.

    Attributes:
        name: Tool name, where it could be read; else empty.
    """

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message, name)
        self.name = name

    def __str__(self) -> str:
        return str(self.args[0])


def read_tagged_call(text: str, grammar: TagGrammar, position: int) -> TaggedCall:
    """Read the call that begins at `position`, blanks skipped.

    Raises:
        TagError: There is no complete call.
    """
    name, position = _read_open(text, skip_space(text, position), grammar.call, "")
    values: dict[str, str] = {}
    kinds: dict[str, str] = {}
    while True:
        position = skip_space(text, position)
        if text.startswith(grammar.call_close, position):
            return TaggedCall(name=name, values=values, kinds=kinds, end=position + len(grammar.call_close))
        if not text.startswith(grammar.parameter[0], position):
            found = text[position : position + 40]
            what = f"found {found!r}" if found else "the call ends"
            raise TagError(f"{what} where {grammar.parameter[0]} or {grammar.call_close} was expected", name)
        key, kind, position = _read_parameter(text, position, grammar, name)
        close = text.find(grammar.parameter_close, position)
        if close < 0:
            raise TagError(f"the parameter {key!r} is not closed by {grammar.parameter_close}", name)
        value = text[position:close]
        for tag in (grammar.parameter[0], grammar.call[0], grammar.call_close):
            if tag in value:
                raise TagError(f"the value of {key!r} contains {tag}, or {grammar.parameter_close} is missing", name)
        if key in values:
            raise TagError(f"the parameter {key!r} is given twice", name)
        values[key] = value
        kinds[key] = kind
        position = close + len(grammar.parameter_close)


def skip_space(text: str, position: int) -> int:
    """Offset of the first character at or behind `position` that is not white space."""
    match = _BLANK.match(text, position)
    return match.end() if match else position


def is_name(name: str) -> bool:
    """Whether a name printed without quotes can be one: not empty, no blanks or control characters, no tag."""
    return name.isprintable() and not set(name) & set(" <>{}\"'") and bool(name)


def _read_parameter(text: str, position: int, grammar: TagGrammar, call_name: str) -> tuple[str, str, int]:
    before, behind = grammar.parameter
    start = position + len(before)
    end = text.find(behind, start, start + 512)
    for kind in grammar.kinds:
        if end >= 0 and text.endswith(kind, start, end):
            key, _ = _read_open(text, position, (before, kind + behind), call_name)
            return key, kind, end + len(behind)
    raise TagError(f"the tag {before}...{behind} has no valid name or is not of the kinds {grammar.kinds}", call_name)


def _read_open(text: str, position: int, tag: tuple[str, str], call_name: str) -> tuple[str, int]:
    before, behind = tag
    if not text.startswith(before, position):
        found = text[position : position + 40]
        raise TagError(f"found {found!r} where {before}...{behind} was expected", call_name)
    start = position + len(before)
    end = text.find(behind, start, start + 512)
    name = text[start:end].strip() if end >= 0 else ""
    if not is_name(name):
        raise TagError(f"the tag {before}...{behind} has no valid name", call_name)
    return name, end + len(behind)


class TaggedToolParser(ToolParser):
    """A block ends at the first end marker; text in it that is not a call makes the rest of the block malformed."""

    GRAMMAR: ClassVar[TagGrammar]
    SEVERAL_CALLS: ClassVar[bool] = False
    """Whether one block may hold several calls."""

    def read_arguments(self, call: TaggedCall, types: ParameterTypes) -> dict[str, Any]:
        """Read every value by the declared type of its parameter.

        Raises:
            TagError: A value is not what its tag says.
        """
        return {key: self.read_value(text, types.of(call.name, key)) for key, text in call.values.items()}

    def read_value(self, printed: str, types: frozenset[str]) -> Any:
        """The value of the text between the tags of a parameter, of one of these declared types; nothing is layout."""
        return decode_printed(printed, types)

    def write_value(self, value: Any) -> str:
        """Write what stands between the tags of a parameter: strings bare, the rest as JSON."""
        return value if isinstance(value, str) else dump_json(value)

    def write_parameter(self, key: str, value: Any) -> str:
        """Write one parameter."""
        before, behind = self.GRAMMAR.parameter
        return f"{before}{key}{behind}{self.write_value(value)}{self.GRAMMAR.parameter_close}"

    def write_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Write what stands between the markers of a block, each parameter on a line of its own."""
        before, behind = self.GRAMMAR.call
        lines = [f"{self.write_parameter(key, value)}\n" for key, value in arguments.items()]
        return f"{before}{name}{behind}\n{''.join(lines)}{self.GRAMMAR.call_close}"

    def read_block(self, text: str, start: int, types: ParameterTypes) -> Block | None:
        """Read the tagged calls up to the first end marker."""
        begin, end_marker = self.tool_call_tokens
        inner = start + len(begin)
        close = text.find(end_marker, inner)
        if close < 0:
            return None
        end = close + len(end_marker)
        drafts = self._drafts(text[inner:close], inner, types)
        if len(drafts) == 1:
            drafts = [self._widened(drafts[0], (start, end))]
        return Block(end=end, drafts=tuple(drafts))

    def write(self, name: str, arguments: Mapping[str, Any], model_id: str | None, types: ParameterTypes) -> str:
        """Write a block of one call."""
        begin, end = self.tool_call_tokens
        return f"{begin}\n{self.write_call(name, arguments)}\n{end}"

    def guess_name(self, markup: str) -> str:
        """Name in the first tag that opens a call."""
        before, behind = map(re.escape, self.GRAMMAR.call)
        match = re.search(rf"{before}([^<>\s]{{1,256}}?){behind}", markup)
        return match.group(1) if match else ""

    def _drafts(self, block: str, offset: int, types: ParameterTypes) -> list[Draft]:
        drafts: list[Draft] = []
        position = skip_space(block, 0)
        while position < len(block) or not drafts:
            try:
                if drafts and not self.SEVERAL_CALLS:
                    raise TagError(f"found {block[position : position + 40]!r} behind {self.GRAMMAR.call_close}")
                call = read_tagged_call(block, self.GRAMMAR, position)
                arguments = self.read_arguments(call, types)
            except TagError as error:
                if not self.SEVERAL_CALLS:
                    drafts, position = [], 0
                raw = block[position:].strip()
                name = error.name or self.guess_name(raw)
                span = (offset + position, offset + len(block))
                return [*drafts, Draft(name=name, raw=raw, error=str(error), span=span)]
            drafts.append(Draft(name=call.name, input=arguments, span=(offset + position, offset + call.end)))
            position = skip_space(block, call.end)
        return drafts

    @staticmethod
    def _widened(draft: Draft, span: tuple[int, int]) -> Draft:
        """The only call of a block owns its markers."""
        return Draft(name=draft.name, input=draft.input, raw=draft.raw, error=draft.error, span=span)
