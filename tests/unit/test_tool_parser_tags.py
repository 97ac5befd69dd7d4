"""The families that write arguments between tags: Qwen XML and GLM."""

from __future__ import annotations

import re
from typing import Any

import pytest

from strands_sglang.tool_parsers import (
    UNKNOWN_TOOL_NAME,
    GLMToolParser,
    QwenXMLToolParser,
    ToolParser,
)
from tests.tool_call_writer import InexpressibleError, render
from tests.unit.test_tool_parser import only

QWEN, GLM = QwenXMLToolParser(), GLMToolParser()

TOOLS = [
    {
        "name": "f",
        "description": "",
        "inputSchema": {
            "json": {
                "type": "object",
                "properties": {
                    "text": {"type": "string"},
                    "count": {"type": "integer"},
                    "ratio": {"type": "number"},
                    "flag": {"type": "boolean"},
                    "items": {"type": "array"},
                    "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                    "maybe_text": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    "any": {},
                    "point": {"$ref": "#/$defs/Point"},
                    "limited": {"allOf": [{"$ref": "#/$defs/Point"}, {"description": "A point."}]},
                    "bare_object": {"properties": {"x": {"type": "integer"}}},
                    "bare_list": {"items": {"type": "integer"}},
                    "level": {"enum": [1, 2]},
                    "mode": {"enum": ["1", "2"]},
                },
                "$defs": {"Point": {"type": "object"}},
            }
        },
    }
]


def qwen(parameters: str, name: str = "f") -> str:
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def glm(pairs: str, name: str = "f") -> str:
    return f"<tool_call>{name}\n{pairs}</tool_call>"


# --- qwen_xml ---


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ("", {}),
        ("<parameter=x>1</parameter>\n<parameter=y>true</parameter>", {"x": "1", "y": "true"}),
        ("<parameter=x>   value   </parameter>", {"x": "value"}),
        ("<parameter=x>\ngit status\n</parameter>", {"x": "git status"}),
        ("<parameter=x>\n    indented\n\n</parameter>", {"x": "    indented\n"}),
        ("<parameter=x>\n\n</parameter>", {"x": ""}),
        ("<parameter=x></parameter>", {"x": ""}),
        ("<parameter=x>a & b | \"c\" <d> 'e'</parameter>", {"x": "a & b | \"c\" <d> 'e'"}),
        ("<parameter=x>\n<parameters> </function_x>\n</parameter>", {"x": "<parameters> </function_x>"}),
    ],
)
def test_qwen_values_are_the_printed_strings(parameters: str, expected: dict[str, str]) -> None:
    result = only(QWEN.parse(qwen(parameters)))
    assert (result.name, result.input, result.is_error) == ("f", expected, False)


def test_qwen_on_one_line() -> None:
    text = "<tool_call><function=my-tool_v2.0><parameter=x>1</parameter></function></tool_call>"
    assert (only(QWEN.parse(text)).name, only(QWEN.parse(text)).input) == ("my-tool_v2.0", {"x": "1"})


TYPED = [
    ("text", "5", "5"),
    ("text", '"quoted"', '"quoted"'),
    ("count", "5", 5),
    ("count", "five", "five"),
    ("count", "5.5", "5.5"),
    ("ratio", "5", 5),
    ("ratio", "0.5", 0.5),
    ("ratio", "NaN", "NaN"),
    ("flag", "true", True),
    ("flag", "False", False),
    ("flag", "1", "1"),
    ("items", '["a", 1]', ["a", 1]),
    ("items", "['a']", "['a']"),
    ("maybe", "null", None),
    ("maybe", "None", None),
    ("maybe", "7", 7),
    ("maybe_text", "null", None),
    ("maybe_text", "7", "7"),
    ("point", '{"x": 1}', {"x": 1}),
    ("point", '{"x": 1, "x": 2}', '{"x": 1, "x": 2}'),
    ("limited", '{"x": 1}', {"x": 1}),
    ("bare_object", '{"x": 1}', {"x": 1}),
    ("bare_list", "[1]", [1]),
    ("level", "1", 1),
    ("mode", "1", "1"),
]


@pytest.mark.parametrize(("key", "printed", "expected"), TYPED)
def test_values_by_schema(key: str, printed: str, expected: Any) -> None:
    in_qwen = QWEN.parse(qwen(f"<parameter={key}>\n{printed}\n</parameter>"), tools=TOOLS)
    in_glm = GLM.parse(glm(f"<arg_key>{key}</arg_key>\n<arg_value>{printed}</arg_value>\n"), tools=TOOLS)
    for calls in (in_qwen, in_glm):
        value = only(calls).input[key]
        assert (value, type(value)) == (expected, type(expected))


@pytest.mark.parametrize("key", ["any", "undeclared"])
def test_qwen_values_without_a_declared_type_are_strings(key: str) -> None:
    assert only(QWEN.parse(qwen(f"<parameter={key}>5</parameter>"), tools=TOOLS)).input == {key: "5"}


def test_chat_template_tools_are_schemas_too() -> None:
    spec = TOOLS[0]
    tool = {"type": "function", "function": {"name": "f", "parameters": spec["inputSchema"]["json"]}}  # type: ignore[index]
    assert only(QWEN.parse(qwen("<parameter=count>5</parameter>"), tools=[tool])).input == {"count": 5}


def test_qwen_declared_strings_keep_their_blanks() -> None:
    assert only(QWEN.parse(qwen("<parameter=text>  a </parameter>"), tools=TOOLS)).input == {"text": "  a "}


@pytest.mark.parametrize("value", ["a</parameter>b", "</tool_call>", "<parameter=y>", 5, None])
def test_qwen_does_not_misread_what_the_format_cannot_express(value: Any) -> None:
    with pytest.raises(InexpressibleError):
        render(QWEN, "f", {"x": value})


# --- glm ---


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ("", {}),
        ("<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n", {"x": 1}),
        (
            "<arg_key>x</arg_key><arg_value>1</arg_value><arg_key>y</arg_key><arg_value>z</arg_value>",
            {"x": 1, "y": "z"},
        ),
        ('<arg_key>x</arg_key>\n<arg_value>"quoted"</arg_value>', {"x": "quoted"}),
        ("<arg_key>x</arg_key>\n<arg_value>hello world</arg_value>", {"x": "hello world"}),
        ("<arg_key>  x </arg_key>\n<arg_value>  v  </arg_value>", {"x": "v"}),
        ("<arg_key>x</arg_key>\n<arg_value>def f():\n    pass</arg_value>", {"x": "def f():\n    pass"}),
        ('<arg_key>x</arg_key>\n<arg_value>{"a": [1]}</arg_value>', {"x": {"a": [1]}}),
        ("<arg_key>x</arg_key>\n<arg_value>NaN</arg_value>", {"x": "NaN"}),
    ],
)
def test_glm_calls(pairs: str, expected: dict[str, Any]) -> None:
    result = only(GLM.parse(glm(pairs, name="  my-tool_v2.0")))
    assert (result.name, result.input, result.is_error) == ("my-tool_v2.0", expected, False)


QWEN_MALFORMED = [
    ("<tool_call>\n<parameter=x>1</parameter>\n</tool_call>", UNKNOWN_TOOL_NAME, "<function=...> was expected"),
    (qwen("<parameter=x>1</parameter>", name=""), UNKNOWN_TOOL_NAME, "no valid name"),
    ("<tool_call></tool_call>", UNKNOWN_TOOL_NAME, "<function=...> was expected"),
    ("<tool_call><function=f</tool_call>", UNKNOWN_TOOL_NAME, "no valid name"),
    (qwen("<parameter=x>1</parameter><parameter=x>2</parameter>"), "f", "'x' is given twice"),
    (qwen("stray"), "f", "found 'stray</function>"),
    (qwen("<parameter=x>a</parameter> b\n</parameter>"), "f", "found 'b\\\\n</parameter>"),
    (qwen("<parameter=x>1\n<parameter=y>2</parameter>"), "f", "'x' contains <parameter="),
    (qwen("<parameter=x>1\n"), "f", "'x' is not closed"),
    (qwen("<parameter=x>1</function>\n</parameter>"), "f", "'x' contains </function>"),
    (qwen("<parameter=>1</parameter>"), "f", "no valid name"),
    ("<tool_call><function=f></function> more</tool_call>", "f", "'more' behind </function>"),
    ("<tool_call><function=f></function><function=g></function></tool_call>", "f", "behind </function>"),
    ("<tool_call><function=f><parameter=x>1</parameter></tool_call>", "f", "the call ends"),
    ('<tool_call>{"name": "f", "arguments": {}}</tool_call>', UNKNOWN_TOOL_NAME, "<function=...> was expected"),
    (qwen("<parameter=x>a </tool_call> b</parameter>"), "f", "'x' is not closed"),
]
GLM_MALFORMED = [
    (glm("<arg_key>x</arg_key>\n<arg_value>1</arg_value>", name=""), UNKNOWN_TOOL_NAME, "tool name was expected"),
    (glm("", name="  "), UNKNOWN_TOOL_NAME, "tool name was expected"),
    (glm("prose\n"), "f", "tool name was expected"),
    ('<tool_call>{"name": "f"}</tool_call>', UNKNOWN_TOOL_NAME, "tool name was expected"),
    (glm("<arg_key>x</arg_key>"), "f", "<arg_value> is missing"),
    (glm("<arg_key>x</arg_key>stray<arg_value>1</arg_value>"), "f", "found 'stray"),
    (glm("<arg_key>x</arg_key><arg_value>1</arg_value>stray"), "f", "found 'stray'"),
    (glm("<arg_key>x</arg_key><arg_value>1"), "f", "not closed by </arg_value>"),
    (
        glm("<arg_key>x</arg_key><arg_value>1<arg_key>y</arg_key><arg_value>2</arg_value>"),
        "f",
        "contains <arg_key>",
    ),
    (glm("<arg_key>x<arg_value>1</arg_value>"), "f", "not closed by </arg_key>"),
    (glm("<arg_key></arg_key><arg_value>1</arg_value>"), "f", "<arg_key> is empty"),
    (glm("<arg_key>x</arg_key><arg_value>1</arg_value>" * 2), "f", "'x' is given twice"),
]


@pytest.mark.parametrize(
    ("parser", "text", "name", "error"),
    [*((QWEN, *row) for row in QWEN_MALFORMED), *((GLM, *row) for row in GLM_MALFORMED)],
)
def test_malformed_calls_say_why(parser: ToolParser, text: str, name: str, error: str) -> None:
    result = only(parser.parse(text))
    assert (result.name, result.input, result.is_error) == (name, {}, True)
    assert re.search(error, str(result.error))


@pytest.mark.parametrize("value", ["5", "  a ", '"q"', "null", ""])
def test_glm_strings_that_look_like_something_else_survive(value: str) -> None:
    assert only(GLM.parse(render(GLM, "f", {"x": value}))).input == {"x": value}
    assert only(GLM.parse(render(GLM, "f", {"text": value}, tools=TOOLS), tools=TOOLS)).input == {"text": value}


def test_glm_newlines_are_optional() -> None:
    call = only(GLM.parse("<tool_call>f<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>"))
    assert (call.name, call.input) == ("f", {"x": 1})
