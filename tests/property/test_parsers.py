"""Properties of all tool parsers: they never raise, they lose nothing, they read what they write, in linear time."""

from __future__ import annotations

import json
import re
import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strands_sglang.tool_parsers import TOOL_PARSER_REGISTRY, BareToolParser, ToolParser, get_tool_parser
from strands_sglang.tool_parsers.notations import Gemma4ToolParser
from strands_sglang.tool_parsers.splitting import SegmentKind
from strands_sglang.tool_parsers.tags import MiniMaxM3ToolParser
from tests.tool_call_writer import InexpressibleError, render

EVERY = [get_tool_parser(name) for name in sorted({cls: name for name, cls in TOOL_PARSER_REGISTRY.items()}.values())]

PIECES = [
    "\\",
    '"',
    '{"',
    "{",
    "}",
    "[",
    "]",
    ",",
    "\n",
    " ",
    "NaN",
    '{"x": 1}',
    "[CALL_ID]",
    "<|im_end|>",
    "<|start|>assistant",
]
PIECES += [
    "<|channel|>analysis",
    "<|channel|>final",
    "<parameter=",
    "functions.f:0",
    'string="false">',
    '[{"f": {}}, {}]',
]
for each in EVERY:  # the marks of every format, and what stands between them
    PIECES += [*each.tool_call_tokens, *(each.think_tokens or ())]
    PIECES += re.split(r"(<[^>]*>|\[[A-Z_]+\])", render(each, "f", {"x": "1"}))
PIECES = sorted({*PIECES} - {""})

markup = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=5)), max_size=25).map("".join)
"""Text made of the pieces of all formats in any order."""

WORD = f"{string.ascii_letters}{string.digits}_"
names = st.text(f"{WORD}-", min_size=1, max_size=16).filter(lambda name: name != "self")  # to=self is no tool in one
keys = st.text(WORD, min_size=1, max_size=9).filter(lambda key: not key[0].isdigit())
strings = st.one_of(st.text(max_size=30), markup)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), strings),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)


def schema_of(arguments: dict[str, Any], tool: str) -> list[dict[str, Any]]:
    """A tool whose parameters are declared with exactly the types of these arguments."""
    types = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    properties = {key: {"type": types.get(type(value), "object")} for key, value in arguments.items()}
    return [{"name": tool, "inputSchema": {"json": {"type": "object", "properties": properties}}}]


# Every parser reads every example: making one takes longer than reading it.
more_examples = settings(max_examples=3 * settings.default.max_examples)


@more_examples
@given(text=st.one_of(markup, st.text()), in_reasoning=st.booleans())
def test_no_text_raises_and_no_character_is_lost(text: str, in_reasoning: bool) -> None:
    for parser in EVERY:
        output = parser.parse_all(text, in_reasoning=in_reasoning, tools=schema_of({"x": 1}, "f"))
        assert "".join(text[segment.start : segment.end] for segment in output.segments) == text, parser
        assert [call.id for call in output.calls] == [f"call_{index:04d}" for index in range(len(output.calls))], parser
        for call in output.calls:
            assert call.name, parser
            assert (call.raw is None) == (call.error is None), parser
            assert not (call.is_error and call.input), parser
            json.loads(json.dumps(call.input, allow_nan=False))
            start, end = call.span
            blocks = [segment for segment in output.segments if segment.kind is SegmentKind.BLOCK]
            assert any(block.start <= start < end <= block.end for block in blocks), parser
        spans = [call.span for call in output.calls]
        assert spans == sorted(spans), parser


@more_examples
@given(name=names, arguments=st.dictionaries(keys, json_values, max_size=4), before=st.text(max_size=9))
def test_what_is_rendered_is_read_back(name: str, arguments: dict[str, Any], before: str) -> None:
    tools = schema_of(arguments, name)
    for parser in EVERY:
        try:
            text = render(parser, name, arguments, tools=tools)
        except InexpressibleError:
            # Only formats that print values bare may decline, and only for values with their own tags in them.
            printed = json.dumps(arguments)
            nested = isinstance(parser, MiniMaxM3ToolParser) and re.search(r"null|.[\[{]", printed)
            # Gemma's keys are bare too, and MiniMax M3 prints no null and no type of what is nested.
            assert "<" in printed or "\\u" in printed or isinstance(parser, Gemma4ToolParser) or nested, parser
            continue
        marks = (*parser.tool_call_tokens, *(parser.think_tokens or ()))
        if isinstance(parser, BareToolParser):
            front = ""  # nothing may stand in front
        elif any(mark in before for mark in marks if mark):  # they would not be text
            continue
        else:
            front = before
        output = parser.parse_all(front + text, tools=tools)
        assert [(call.name, call.is_error) for call in output.calls] == [(name, False)], parser
        assert json.dumps(output.calls[0].input) == json.dumps(arguments), parser
        assert output.text == front, parser


@more_examples
@given(name=names, arguments=st.dictionaries(keys, st.text("abc123 .,:\n\"'{}[]é\t", max_size=30), max_size=4))
def test_strings_are_read_back_without_schemas(name: str, arguments: dict[str, str]) -> None:
    for parser in EVERY:
        results = parser.parse(render(parser, name, arguments))
        assert [(result.name, result.input) for result in results] == [(name, arguments)], parser


HOSTILE = [
    '{begin}{{"',
    '{begin}{{"a":"',
    '{begin}["',
    '{begin}"{end}',
    '{begin}[","{end}',
    "{begin}[1,{end}",
    "{begin}{end}",
    "{begin}",
    "{begin}\n \n",
    "<think>{begin}</think>",
    "<think></think>",
    "to=",
    "to=functions.f<|message|>",
    "to=functions.f<|call|>",
    "<|channel|>to=",
    "<|channel|>to=<|call|>",
    "<|channel|>commentary<|message|><|call|>",
    "<|channel|>final<|message|>",
    "<|channel|>analysis<|message|><|end|>",
    " to=functions.f<|channel|>commentary<|message|>",
    "`",
    "x{end} y",
    "{begin}{{{end} z",
    '{{"name": "f", "arguments": {{',
    '[{{"f": {{',
    "f[ARGS]",
    "call:f{{",
    "f<arg_key>",
    "\nf(x=",
    "<function=f>",
    "{begin}<function=f><parameter=x>",
    "{begin}<function=f>{end}",
    "{begin}f<arg_key>x</arg_key><arg_value>",
    "<|tool_call_begin|><|tool_call_argument_begin|>",
    "<|tool_call_begin|>f<|tool_call_argument_begin|>{{<|tool_call_end|>",
    '<|tool_call_begin|>f<|tool_call_argument_begin|>["<|tool_call_end|>',
    " to=self<|message|> to=f<|message|>{begin}",
    "<|message_model|>f{begin}{{{end}",
    '>>>f\n{{"a":["',
    '{begin}]<]minimax[>[<invoke name="f">]<]minimax[>[<x>{end}',
]


F = schema_of({"x": "y"}, "f")
METHODS = (
    "begin",
    "cut",
    "opening",
    "find_close",
    "read_arguments",
    "read_block",
    "read_call",
    "read_calls",
    "read_list",
)
READERS = list({tuple(getattr(type(parser), name, None) for name in METHODS): parser for parser in EVERY}.values())
"""A parser of every way to read."""


@pytest.mark.timeout(2)
@pytest.mark.parametrize("unit", HOSTILE)
@pytest.mark.parametrize("parser", READERS, ids=lambda parser: type(parser).__name__)
def test_long_hostile_text_is_read_in_linear_time(parser: ToolParser, unit: str) -> None:
    # With cost quadratic in the number of calls this runs into the timeout.
    unit = unit.format(begin=parser.tool_start_token, end=parser.tool_end_token)
    hostile = unit * (100_000 // len(unit))
    parser.parse_all(hostile, tools=F)
    call = render(parser, "f", {"x": "y"})
    parser.parse_all(call[: len(call) - len(parser.tool_end_token)] + hostile)  # and without schemas


@pytest.mark.parametrize("size", [1000, 1023, 1024, 1025, 4096, 5000, 100_000])
@pytest.mark.parametrize("filler", ["x", "\\", "\u00e9\n", "</tool_call>", "<|tool_call_end|>", "\ud83d\ude80"])
def test_long_arguments_are_read_whole(size: int, filler: str) -> None:
    arguments = {"x": (filler * size)[:size], "n": 10**size if size < 4000 else 1, "y": [1.5, True, None]}
    for name in ("hermes", "kimi_k2"):
        parser = get_tool_parser(name)
        assert [call.input for call in parser.parse(render(parser, "f", arguments))] == [arguments]
