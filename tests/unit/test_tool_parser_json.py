"""The families that write arguments as JSON: Hermes and Kimi K2."""

from __future__ import annotations

import re
from typing import Any

import pytest

from strands_sglang.tool_parsers import (
    UNKNOWN_TOOL_NAME,
    HermesToolParser,
    KimiK2ToolParser,
)
from tests.tool_call_writer import render
from tests.unit.test_tool_parser import only

HERMES, KIMI = HermesToolParser(), KimiK2ToolParser()


def hermes(payload: str) -> str:
    return f"<tool_call>{payload}</tool_call>"


def kimi(*calls: str) -> str:
    return f"<|tool_calls_section_begin|>{''.join(calls)}<|tool_calls_section_end|>"


def kimi_call(arguments: str, header: str = "functions.f:0") -> str:
    return f"<|tool_call_begin|>{header}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


# --- hermes ---


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ('{"name": "f", "arguments": {"x": 1, "y": [1, {"z": null}]}}', {"x": 1, "y": [1, {"z": None}]}),
        ('{"name": "f"}', {}),
        ('{"name": "f", "arguments": {}}', {}),
        ('\n  {"arguments": {"q": "你好 🚀"},\n "name": "f"}\n ', {"q": "你好 🚀"}),
        ('{"name": "f", "arguments": {"q": "\\u00e9\\ud83d\\ude80"}}', {"q": "é🚀"}),
        ('{"name": "f", "arguments": {"q": "a </tool_call> b <tool_call>"}}', {"q": "a </tool_call> b <tool_call>"}),
    ],
)
def test_hermes_calls(payload: str, expected: dict[str, Any]) -> None:
    output = HERMES.parse_all(f"a{hermes(payload)}b")
    result = only(list(output.calls))
    assert (result.name, result.input, result.is_error) == ("f", expected, False)
    assert output.text == "ab"


@pytest.mark.parametrize(
    ("payload", "name", "error"),
    [
        ('{"name": "f", "arguments": {broken}}', "f", "not valid JSON: .* at character 29"),
        ('{"name": "f", oops}', "f", "not valid JSON"),
        ("{oops}", UNKNOWN_TOOL_NAME, "not valid JSON"),
        ("", UNKNOWN_TOOL_NAME, "not valid JSON"),
        ('{"name": "f", "arguments": {"x": 1}', "f", "not valid JSON"),
        ('{"name": "f", "arguments": {"x": 1}}}', "f", "Extra data"),
        ('{"name": "f"}{"name": "g"}', "f", "Extra data"),
        ('{"name": "f", "arguments": {"x": 1, "x": 2}}', "f", "key 'x' is given twice"),
        ('{"name": "f", "arguments": {"x": NaN}}', "f", "NaN is not a JSON value"),
        ('{"name": "f", "arguments": {"x": -Infinity}}', "f", "-Infinity is not a JSON value"),
        ('{"name": "f", "arguments": {"x": 1e999}}', "f", "too large"),
        ('{"name": "f", "arguments": {"x": "\\ud800"}}', "f", "surrogate"),
        ('{"name": "f", "arguments": {"x": "a\nb"}}', "f", "Invalid control character"),
        ('{"name": "f", "arguments": {\'x\': 1}}', "f", "not valid JSON"),
        ('{"name": "f", "arguments": {"x": ' + "1" * 5000 + "}}", "f", "too many digits"),
        ('{"name": "f", "arguments": ' + "[" * 100_000 + "}", "f", "nested too deeply|not valid JSON"),
        ('{"name": "f", "arguments": {"x": ' + "[" * 195 + "]" * 195 + "}}", "f", "nested too deeply"),
        ('{"name": "f", "arguments": [1, 2]}', "f", "not a JSON object"),
        ('{"name": "f", "arguments": null}', "f", "not a JSON object"),
        ('{"name": "f", "arguments": "{}"}', "f", "not a JSON object"),
        ('{"name": "f", "parameters": {"x": 1}}', "f", "unexpected key 'parameters'"),
        ('{"arguments": {"x": 1}}', UNKNOWN_TOOL_NAME, 'no "name"'),
        ('{"name": "", "arguments": {}}', UNKNOWN_TOOL_NAME, 'no "name"'),
        ('{"name": 123, "arguments": {}}', UNKNOWN_TOOL_NAME, 'no "name"'),
        ("[1, 2, 3]", UNKNOWN_TOOL_NAME, "not a JSON object"),
        ("null", UNKNOWN_TOOL_NAME, "not a JSON object"),
    ],
)
def test_hermes_malformed(payload: str, name: str, error: str) -> None:
    result = only(HERMES.parse(hermes(f"\n{payload} ")))
    assert result.is_error
    assert (result.name, result.input, result.raw) == (name, {}, payload)
    assert re.search(error, str(result.error))


# --- kimi_k2 ---


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("functions.f:0", "f"),
        ("functions.web-search:12", "web-search"),
        ("functions.module.sub_tool:0", "module.sub_tool"),
        ("functions.f", "f"),
        ("calculator:0", "calculator"),
    ],
)
def test_kimi_names_and_ids(header: str, name: str) -> None:
    result = only(KIMI.parse(kimi(kimi_call("{}", header))))
    assert (result.name, result.model_id, result.is_error) == (name, header, False)


def test_kimi_calls_of_several_sections() -> None:
    first = kimi(kimi_call('{"x": 1}'), kimi_call("{}", "functions.g:1"))
    second = kimi(kimi_call("{}", "functions.h:2"))
    text = f"a{first}b{second}c"
    output = KIMI.parse_all(text)
    assert [(call.id, call.name) for call in output.calls] == [
        ("call_0000", "f"),
        ("call_0001", "g"),
        ("call_0002", "h"),
    ]
    assert output.text == "abc"
    start, end = output.calls[1].span
    assert text[start:end] == kimi_call("{}", "functions.g:1")


def test_kimi_blanks_between_markers() -> None:
    text = kimi(
        '\n  <|tool_call_begin|> functions.f:0 \n  <|tool_call_argument_begin|> {"x": 1} \n  <|tool_call_end|>\n'
    )
    result = only(KIMI.parse(text))
    assert (result.name, result.model_id, result.input) == ("f", "functions.f:0", {"x": 1})


def test_kimi_markers_in_a_string_belong_to_it() -> None:
    value = "<|tool_call_end|><|tool_calls_section_end|><|tool_call_begin|>"
    assert only(KIMI.parse(render(KIMI, "f", {"q": value}))).input == {"q": value}


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        (kimi_call("{bad json}"), [("f", "{bad json}", "not valid JSON")]),
        (kimi_call('{"x": "y'), [("f", '{"x": "y', "not valid JSON")]),
        (kimi_call(""), [("f", "", "not valid JSON")]),
        (kimi_call("[1, 2]"), [("f", "[1, 2]", "not a JSON object")]),
        (kimi_call('{"a": 1, "a": 2}'), [("f", '{"a": 1, "a": 2}', "given twice")]),
        (kimi_call("{} {}"), [("f", "{} {}", "Extra data")]),
        (kimi_call("{}", ""), [(UNKNOWN_TOOL_NAME, "<|tool_call_argument_begin|>{}", "no tool name")]),
        (
            "<|tool_call_begin|>functions.f:0{}<|tool_call_end|>",
            [(UNKNOWN_TOOL_NAME, "functions.f:0{}", "<|tool_call_argument_begin|> is missing")],
        ),
        (
            "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}",
            [("f", "{}", "<|tool_call_end|> is missing")],
        ),
        ("prose", [(UNKNOWN_TOOL_NAME, "prose", "text stands where")]),
        ("prose" + kimi_call("{}"), [(UNKNOWN_TOOL_NAME, "prose", "text stands where"), ("f", None, None)]),
        (kimi_call("{bad") + kimi_call("{}"), [("f", "{bad", "not valid JSON"), ("f", None, None)]),
    ],
)
def test_kimi_malformed(inner: str, expected: list[tuple[str, str | None, str | None]]) -> None:
    output = KIMI.parse_all(kimi(inner))
    assert [(call.name, call.raw) for call in output.calls] == [(name, raw) for name, raw, _ in expected]
    for call, (_, _, error) in zip(output.calls, expected, strict=True):
        assert (error or "") in (call.error or "")
    assert output.text == ""
