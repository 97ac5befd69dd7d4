# ruff: noqa: D102 - methods without a docstring are documented in `ToolParser`
"""Calls written as tags: `<function=NAME><parameter=KEY>VALUE</parameter></function>` and its relatives.

Qwen3-Coder and Qwen3.5, MiMo, Seed-OSS, MiniMax M2 and M3, DeepSeek V3.2 and V4, Kimi K3, GLM.

Values are printed bare, with nothing escaped. So a value that contains one of the format's own tags cannot be told
from a missing close tag; it is malformed, never guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from .base import ToolParser, register_tool_parser
from .calls import Block, ToolParseResult
from .values import (
    MAX_DEPTH,
    CallError,
    JSONError,
    ParameterTypes,
    add_value,
    decode_printed,
    error_at,
    is_key,
    is_name,
    json_end,
    load_arguments,
    load_json,
    skip_space,
    type_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TagGrammar:
    """The tags of one family.

    Attributes:
        call: Text before and behind the name in the tag that opens a call.
        parameter: Text before and behind the key in the tag that opens a parameter.
        call_kind: Pattern of the rest of that tag, between the name and its end.
        kind: Pattern of the text between the key and the end of its tag, if that says how the value is printed.
    """

    call: tuple[str, str]
    call_close: str
    parameter: tuple[str, str]
    parameter_close: str
    call_kind: str = ""
    kind: str = ""


def read_tagged_call(text: str, grammar: TagGrammar, position: int) -> tuple[str, dict[str, tuple[str, str]], int]:
    """Read the call that begins at `position`, blanks skipped; `CallError` if there is no complete call.

    Returns:
        The tool's name; by key the kind that the tag names and the value as printed, nothing stripped; the end.
    """
    name, _, position = _read_open(text, skip_space(text, position), grammar.call, grammar.call_kind)
    values: dict[str, tuple[str, str]] = {}
    while True:
        position = skip_space(text, position)
        if text.startswith(grammar.call_close, position):
            return name, values, position + len(grammar.call_close)
        if not text.startswith(grammar.parameter[0], position):
            raise error_at(f"{grammar.parameter[0]} or {grammar.call_close}", text, position, name)
        key, kind, position = _read_open(text, position, grammar.parameter, grammar.kind, name)
        inner = grammar.parameter[0], grammar.call[0], grammar.call_close
        value, position = _read_up_to(text, position, grammar.parameter_close, inner, f"the value of {key!r}", name)
        add_value(values, key, (kind, value), name)


def _read_open(
    text: str, position: int, tag: tuple[str, str], kind: str = "", tool: str | None = None
) -> tuple[str, str, int]:
    """The name in an opening tag (of a parameter of `tool`), the kind that follows, and the offset behind the tag."""
    before, behind = tag
    if not text.startswith(before, position):
        raise error_at(f"{before}...{behind}", text, position, tool)
    start = position + len(before)
    end = text.find(behind, start, start + 512)  # bounded: an unclosed tag must not cost a search of all that follows
    match = re.compile(f"(.*?)({kind})").fullmatch(text, start, end) if end >= 0 else None
    is_valid = is_name if tool is None else is_key
    if match is not None and is_valid(name := match[1].strip()):
        return name, match[2], end + len(behind)
    of_kinds = f" or is not of the kinds {kind}" if kind else ""
    raise CallError(f"the tag {before}...{behind} has no valid name{of_kinds}", tool)


def _read_up_to(
    text: str, position: int, closing: str, tags: tuple[str, ...], what: str, tool: str | None = None
) -> tuple[str, int]:
    """The text up to a closing tag, and the offset behind that; `what` is the subject of errors.

    Nothing is escaped, so a text that contains one of `tags` may as well be one that was never closed.
    """
    end = text.find(closing, position)
    if end < 0:
        raise CallError(f"{what} is not closed by {closing}", tool)
    if found := next((tag for tag in tags if tag in text[position:end]), None):
        raise CallError(f"{what} contains {found}, or {closing} is missing", tool)
    return text[position:end], end + len(closing)


class TaggedToolParser(ToolParser):
    """A block ends at the first end marker; text in it that is not a call makes the rest of the block malformed."""

    GRAMMAR: ClassVar[TagGrammar]
    SEVERAL_CALLS: ClassVar[bool] = False
    """A block may hold several calls."""

    @property
    def opening(self) -> str:
        before, behind = map(re.escape, self.GRAMMAR.call)
        return rf'{before}\s*(?P<name>[^<>"\s]{{1,256}})\s*{self.GRAMMAR.call_kind}{behind}'

    def read_call(self, block: str, position: int, types: ParameterTypes) -> tuple[str, dict[str, Any], int]:
        """Read the name and arguments of a call, and where it ends; `CallError` if there is no complete call."""
        name, values, end = read_tagged_call(block, self.GRAMMAR, position)
        return name, self.read_arguments(name, values, types), end

    def read_arguments(self, name: str, values: dict[str, tuple[str, str]], types: ParameterTypes) -> dict[str, Any]:
        """Read every value by its parameter's declared type; `CallError` if a value contradicts its tag."""
        return {key: self.read_value(printed, types.of(name, key)) for key, (_, printed) in values.items()}

    def read_value(self, printed: str, types: frozenset[str]) -> Any:
        """The value of the text between the tags of a parameter, of one of these declared types; nothing is layout."""
        return decode_printed(printed, types)

    def read_block(self, text: str, start: int, types: ParameterTypes) -> Block | None:
        begin, end_marker = self.tool_call_tokens
        inner = start + len(begin)
        close = text.find(end_marker, inner)
        if close < 0:
            return None
        block, calls = text[inner:close], list[ToolParseResult]()
        position = skip_space(block, 0)
        while position < len(block) or not calls:
            try:
                if calls and not self.SEVERAL_CALLS:
                    raise CallError(f"found {block[position : position + 40]!r} behind {self.GRAMMAR.call_close}")
                name, arguments, end = self.read_call(block, position, types)
            except CallError as error:
                if not self.SEVERAL_CALLS:  # the block is one call, so all of it is malformed
                    calls, position = [], 0
                calls.append(self.refuse(error, block[position:].strip(), (inner + position, close)))
                break
            calls.append(ToolParseResult(name=name, input=arguments, span=(inner + position, inner + end)))
            position = skip_space(block, end)
        return Block.around(calls, start, close + len(end_marker))

    def guess_name(self, markup: str) -> str:
        match = re.search(self.opening, markup)
        return match.group(1) if match else ""


_GRAMMAR = TagGrammar(
    call=("<function=", ">"),
    call_close="</function>",
    parameter=("<parameter=", ">"),
    parameter_close="</parameter>",
)


@register_tool_parser("qwen_xml", "qwen3_coder", "step3p5", "nanbeige")
class QwenXMLToolParser(TaggedToolParser):
    r"""One call per block, each value between tags.

    Without schemas every value is the string that was printed. With `tools`, values of parameters that are not
    declared as strings are decoded as JSON.

    The template prints a value as `\nVALUE\n`: one newline on each side is layout, the rest is the value, exactly.
    A value on the same line as its tags loses surrounding blanks, unless the schema declares a string.
    """

    GRAMMAR: ClassVar[TagGrammar] = _GRAMMAR

    def read_value(self, printed: str, types: frozenset[str]) -> Any:
        value = printed.removeprefix("\n").removesuffix("\n")
        if value == printed and "\n" not in value and not types:
            value = value.strip()
        return decode_printed(value, types)


@register_tool_parser("mimo")
class MiMoToolParser(TaggedToolParser):
    """MiMo V2: the tags of `QwenXMLToolParser`, but the whole text between them is the value, newlines included."""

    GRAMMAR: ClassVar[TagGrammar] = _GRAMMAR


@register_tool_parser("seed_oss")
class SeedOSSToolParser(MiMoToolParser):
    """Seed-OSS: the format of `MiMoToolParser` with its own markers."""

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<seed:tool_call>", "</seed:tool_call>")
    DEFAULT_THINK: ClassVar[tuple[str, str]] = ("<seed:think>", "</seed:think>")


@register_tool_parser("minimax_m2", "minimax-m2")
class MiniMaxM2ToolParser(TaggedToolParser):
    """MiniMax M2 and M2.5: one block of several calls.

    Without schemas every value is the printed string; with `tools`, values that are not declared as strings are
    decoded as JSON.
    """

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<minimax:tool_call>", "</minimax:tool_call>")
    SEVERAL_CALLS: ClassVar[bool] = True
    GRAMMAR: ClassVar[TagGrammar] = TagGrammar(
        call=('<invoke name="', '">'),
        call_close="</invoke>",
        parameter=('<parameter name="', '">'),
        parameter_close="</parameter>",
    )


_STRING = '" string="true'


@register_tool_parser("deepseek_v32", "deepseekv32")
class DeepSeekV32ToolParser(TaggedToolParser):
    """A block of several calls; each value says whether it is a string as it is, or JSON.

    A value that says it is JSON and is not makes its call malformed, even against its schema.
    """

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>")
    SEVERAL_CALLS: ClassVar[bool] = True
    GRAMMAR: ClassVar[TagGrammar] = TagGrammar(
        call=('<｜DSML｜invoke name="', '">'),
        call_close="</｜DSML｜invoke>",
        parameter=('<｜DSML｜parameter name="', '">'),
        parameter_close="</｜DSML｜parameter>",
        kind='" string="(?:true|false)',
    )

    def read_arguments(self, name: str, values: dict[str, tuple[str, str]], types: ParameterTypes) -> dict[str, Any]:
        return {
            key: printed
            if kind == _STRING
            else load_json(printed.strip(), f'the value of {key!r} says string="false" and is', name)
            for key, (kind, printed) in values.items()
        }


@register_tool_parser("deepseek_v4", "deepseekv4")
class DeepSeekV4ToolParser(DeepSeekV32ToolParser):
    """DeepSeek V4 and V4-Flash: the format of `DeepSeekV32ToolParser` with its own markers."""

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>")


_JSON_BLOCK = ('<|open|>json type="object"<|sep|>', "<|close|>json<|sep|>")


@register_tool_parser("kimi_k3")
class KimiK3ToolParser(TaggedToolParser):
    """Kimi K3: one block of several calls; each value says its type and is a string as it is, or JSON of that type.

    Arguments that the model writes as one JSON object stand in a separate block. Names are printed with `&amp;` and
    `&quot;`. Calls are numbered, but a number ties nothing together: it is not read.
    """

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<|open|>tools<|sep|>", "<|close|>tools<|sep|>")
    DEFAULT_THINK: ClassVar[tuple[str, str]] = ("<|open|>think<|sep|>", "<|close|>think<|sep|>")
    SEVERAL_CALLS: ClassVar[bool] = True
    GRAMMAR: ClassVar[TagGrammar] = TagGrammar(
        call=('<|open|>call tool="', '"<|sep|>'),
        call_close="<|close|>call<|sep|>",
        parameter=('<|open|>argument key="', '"<|sep|>'),
        parameter_close="<|close|>argument<|sep|>",
        call_kind=r'" index="\d{1,9}',
        kind='" type="(?:string|number|boolean|null|object|array)',
    )

    def read_call(self, block: str, position: int, types: ParameterTypes) -> tuple[str, dict[str, Any], int]:
        name, _, inner = _read_open(block, skip_space(block, position), self.GRAMMAR.call, self.GRAMMAR.call_kind)
        opening, closing = _JSON_BLOCK
        if not block.startswith(opening, inner):
            name, arguments, end = super().read_call(block, position, types)
            return _unescape(name), arguments, end
        closing += self.GRAMMAR.call_close
        close = block.find(closing, json_end(block, inner + len(opening)) or inner)
        if close < 0:
            raise CallError(f"{opening} is not closed by {closing}", name)
        arguments = load_arguments(block[inner + len(opening) : close].strip(), name)
        return _unescape(name), arguments, close + len(closing)

    def read_arguments(self, name: str, values: dict[str, tuple[str, str]], types: ParameterTypes) -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        for printed_key, (kind, printed) in values.items():
            key, declared = _unescape(printed_key), kind.removeprefix('" type="')
            says = f"the value of {key!r} says type={declared}"
            value = printed if declared == "string" else load_json(printed.strip(), f"{says} and is", name)
            found = type_of(value)
            if declared != ("number" if found == "integer" else found):
                raise CallError(f"{says} and is of type {found}", name)
            add_value(arguments, key, value, name)
        return arguments


def _unescape(attribute: str) -> str:
    return attribute.replace("&quot;", '"').replace("&amp;", "&")


NAMESPACE = "]<]minimax[>["
_ELEMENT = re.compile(r"<(/?)([^<>]{1,512})>")
_EMPTY: dict[str, Any] = {"string": "", "array": [], "object": {}}
_Element: TypeAlias = "str | list[tuple[str, _Element]]"
"""The content between the tags of an element: a text, or elements by name."""


@register_tool_parser("minimax_m3", "minimax-m3")
class MiniMaxM3ToolParser(TaggedToolParser):
    """MiniMax M3: one block of several calls; a parameter is an element, and so is each value inside of it.

    Items of a list are elements named `item`. No element says its type, so all are decoded by the schema: one of `item`
    elements is a list unless an object is declared, and an empty one is the empty value of its only declared type.
    Without schemas every text is the printed string. The template leaves out null values.
    """

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = (f"{NAMESPACE}<tool_call>", f"{NAMESPACE}</tool_call>")
    DEFAULT_THINK: ClassVar[tuple[str, str]] = ("<mm:think>", "</mm:think>")
    SEVERAL_CALLS: ClassVar[bool] = True
    GRAMMAR: ClassVar[TagGrammar] = TagGrammar(
        call=(f'{NAMESPACE}<invoke name="', '">'),
        call_close=f"{NAMESPACE}</invoke>",
        parameter=(f"{NAMESPACE}<", ">"),
        parameter_close=f"{NAMESPACE}</",
    )

    def read_call(self, block: str, position: int, types: ParameterTypes) -> tuple[str, dict[str, Any], int]:
        name, _, position = _read_open(block, skip_space(block, position), self.GRAMMAR.call)
        try:
            elements, end = _read_element(block, position, "invoke")
            if isinstance(elements, str):
                if elements.strip():
                    raise error_at(f"{NAMESPACE}<", block, position)
                elements = []
            return name, self._read_object(elements, types, (name,)), end
        except CallError as error:
            error.name = name
            raise

    def _read_object(
        self, elements: list[tuple[str, _Element]], types: ParameterTypes, path: tuple[Any, ...]
    ) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, element in elements:
            add_value(values, key, self._read_typed(element, types, (*path, key)))
        return values

    def _read_typed(self, element: _Element, types: ParameterTypes, path: tuple[Any, ...]) -> Any:
        """The value of an element; `path` are the tool and the keys that lead to it, None for an item."""
        declared = types.of(*path)
        if isinstance(element, str):
            empty = [value for kind, value in _EMPTY.items() if kind in declared]
            return type(empty[0])() if not element and len(empty) == 1 else decode_printed(element, declared)
        if {key for key, _ in element} == {"item"} and ("array" in declared or "object" not in declared):
            return [self._read_typed(item, types, (*path, None)) for _, item in element]
        return self._read_object(element, types, path)


def _read_element(text: str, start: int, name: str, depth: int = MAX_DEPTH) -> tuple[_Element, int]:
    """Read the content behind the opening tag of an element, and the offset behind its closing tag."""
    if depth <= 0:
        raise CallError("nested too deeply")
    elements: list[tuple[str, _Element]] = []
    position = start
    while True:
        at = text.find(NAMESPACE, position)
        tag = _ELEMENT.match(text, at + len(NAMESPACE)) if at >= 0 else None
        if tag is None:
            raise error_at(f"{NAMESPACE}</{name}>", text, at if at >= 0 else len(text))
        if tag[1] and not elements and tag[2] == name:
            return text[start:at], tag.end()
        if text[position:at].strip() or (tag[1] and tag[2] != name) or not is_key(tag[2]):
            raise error_at(f"an element or {NAMESPACE}</{name}>", text, skip_space(text, position))
        if tag[1]:
            return elements, tag.end()
        element, position = _read_element(text, tag.end(), tag[2], depth - 1)
        elements.append((tag[2], element))


KEY = ("<arg_key>", "</arg_key>")
VALUE = ("<arg_value>", "</arg_value>")


@register_tool_parser("glm", "glm45", "glm47")
class GLMToolParser(TaggedToolParser):
    """GLM 4.5 to 5: one call per block, the name, then pairs of key and value; newlines are optional.

    The template prints strings bare and everything else as JSON. Without schemas a value that is JSON is decoded and
    any other is the printed string without surrounding blanks; with `tools`, a parameter declared as a string is the
    printed text, exactly.
    """

    @property
    def opening(self) -> str:
        return rf"(?<![^\s>])(?P<name>[^\s<>]{{1,256}}+)\s*+(?={KEY[0]})"

    def read_call(self, block: str, position: int, types: ParameterTypes) -> tuple[str, dict[str, Any], int]:
        name = block.split(KEY[0], 1)[0]
        position = len(name)
        name = name.strip()
        if not is_name(name):
            raise error_at("the tool name", name, 0)
        arguments: dict[str, Any] = {}
        while (position := skip_space(block, position)) < len(block):
            key, position = _read_pair_part(block, position, KEY)
            key = key.strip()
            printed, position = _read_pair_part(block, skip_space(block, position), VALUE)
            if not key:
                raise CallError(f"{KEY[0]} is empty")
            add_value(arguments, key, decode_value(printed, types.of(name, key)))
        return name, arguments, position

    def guess_name(self, markup: str) -> str:
        name = markup.split(KEY[0], 1)[0].strip().split("\n", 1)[0].strip()
        return name if is_name(name) else ""


def _read_pair_part(text: str, position: int, tags: tuple[str, str]) -> tuple[str, int]:
    opening, closing = tags
    if not text.startswith(opening, position):
        raise error_at(opening, text, position)
    return _read_up_to(text, position + len(opening), closing, (KEY[0], VALUE[0]), opening)


def decode_value(printed: str, types: frozenset[str]) -> Any:
    """The value of a printed text: by the declared types or, if there are none, as JSON."""
    if types:
        return decode_printed(printed, types)
    stripped = printed.strip()  # newlines around a value are layout, and blanks look the same
    try:
        return load_json(stripped)
    except JSONError:
        return stripped
