"""What all tool parsers share, and each family's format: exact calls, or malformed ones that say why."""

from __future__ import annotations

import dataclasses
import pickle
import re
from typing import Any

import pytest

from strands_sglang.exceptions import ToolParserError
from strands_sglang.reasoning import SegmentKind
from strands_sglang.tool_parsers import (
    TOOL_PARSER_REGISTRY,
    UNKNOWN_TOOL_NAME,
    GLMToolParser,
    HermesToolParser,
    KimiK2ToolParser,
    QwenXMLToolParser,
    ToolParser,
    ToolParseResult,
    get_tool_parser,
    list_tool_parsers,
    register_tool_parser,
)

HERMES, QWEN, GLM, KIMI = HermesToolParser(), QwenXMLToolParser(), GLMToolParser(), KimiK2ToolParser()
EVERY = [get_tool_parser(name) for name in sorted({cls: name for name, cls in TOOL_PARSER_REGISTRY.items()}.values())]
every_parser = pytest.mark.parametrize("parser", EVERY, ids=lambda parser: type(parser).__name__)

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
                    "level": {"enum": [1, 2]},
                    "mode": {"enum": ["1", "2"]},
                },
                "$defs": {"Point": {"type": "object"}},
            }
        },
    }
]


def only(results: list[ToolParseResult]) -> ToolParseResult:
    assert len(results) == 1, results
    return results[0]


def think(parser: ToolParser, text: str) -> str:
    assert parser.think_tokens
    return parser.think_tokens[0] + text + parser.think_tokens[1]


def hermes(payload: str) -> str:
    return f"<tool_call>{payload}</tool_call>"


def qwen(parameters: str, name: str = "f") -> str:
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def glm(pairs: str, name: str = "f") -> str:
    return f"<tool_call>{name}\n{pairs}</tool_call>"


def kimi(*calls: str) -> str:
    return f"<|tool_calls_section_begin|>{''.join(calls)}<|tool_calls_section_end|>"


def kimi_call(arguments: str, header: str = "functions.f:0") -> str:
    return f"<|tool_call_begin|>{header}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


# --- results ---


def test_a_result_needs_only_id_name_and_input() -> None:
    result = ToolParseResult(id="call_1", name="f", input={"a": 1, "b": "x"})
    assert (result.raw, result.error, result.model_id, result.is_error) == (None, None, None, False)
    assert result.payload == '{"a": 1, "b": "x"}'


@pytest.mark.parametrize("raw", ["{bad", ""])
def test_a_result_with_raw_text_is_an_error(raw: str) -> None:
    result = ToolParseResult(id="call_1", name="f", input={}, raw=raw)
    assert result.is_error
    assert result.payload == raw


def test_a_result_is_frozen_and_pickles() -> None:
    result = ToolParseResult(id="call_1", name="f", input={}, raw="x", error="y", span=(1, 2))
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.name = "g"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(result)) == result


def test_the_unknown_name_is_on_the_class() -> None:
    assert ToolParseResult.UNKNOWN_NAME == UNKNOWN_TOOL_NAME == "unknown_tool"


# --- registry ---


@pytest.mark.parametrize(
    ("name", "parser_class"),
    [
        ("hermes", HermesToolParser),
        ("qwen25", HermesToolParser),
        ("qwen_xml", QwenXMLToolParser),
        ("qwen3_coder", QwenXMLToolParser),
        ("glm", GLMToolParser),
        ("glm45", GLMToolParser),
        ("kimi_k2", KimiK2ToolParser),
    ],
)
def test_parsers_by_name(name: str, parser_class: type[ToolParser]) -> None:
    assert type(get_tool_parser(name)) is parser_class
    assert TOOL_PARSER_REGISTRY[name] is parser_class
    assert name in list_tool_parsers()


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ToolParserError, match=r"Unknown tool parser 'nonexistent'.*hermes.*qwen_xml"):
        get_tool_parser("nonexistent")


def test_an_unknown_name_is_a_key_error_too() -> None:
    with pytest.raises(KeyError, match="Unknown tool parser"):
        get_tool_parser("nonexistent")


def test_options_reach_the_parser() -> None:
    assert get_tool_parser("hermes", think_start_token="<reasoning>").think_start_token == "<reasoning>"
    with pytest.raises(TypeError):
        get_tool_parser("hermes", tool_tokens=("a", "b"))


def test_a_registered_parser_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strands_sglang.tool_parsers._registry.TOOL_PARSER_REGISTRY", registry := {})

    @register_tool_parser("mine", "also_mine")
    class MyParser(HermesToolParser):
        pass

    assert type(get_tool_parser("also_mine")) is MyParser
    assert set(registry) == {"mine", "also_mine"}
    with pytest.raises(ToolParserError, match="'mine' belongs to"):
        register_tool_parser("mine")(GLMToolParser)


# --- what all families share ---


@every_parser
def test_text_without_calls(parser: ToolParser) -> None:
    assert parser.parse("") == []
    output = parser.parse_all("Just text.\n")
    assert (output.calls, output.text, output.reasoning, output.unclosed) == ((), "Just text.\n", "", None)


@every_parser
def test_calls_are_numbered_in_the_order_of_the_text(parser: ToolParser) -> None:
    text = " and ".join(parser.render(name, {"q": name}) for name in ("first", "second", "third"))
    results = parser.parse(text)
    assert [(result.id, result.name) for result in results] == [
        ("call_0000", "first"),
        ("call_0001", "second"),
        ("call_0002", "third"),
    ]


@every_parser
def test_calling_the_parser_gives_plain_dicts_of_good_calls(parser: ToolParser) -> None:
    good = parser.render("f", {"q": "x"})
    bad = parser.tool_start_token + "\x00" + parser.tool_end_token
    assert parser(f"{bad} {good}") == [{"id": "call_0001", "name": "f", "input": {"q": "x"}}]


@every_parser
def test_drafts_inside_reasoning_are_not_calls(parser: ToolParser) -> None:
    draft, call = parser.render("draft", {"q": "x"}), parser.render("real", {"q": "y"})
    sampled = think(parser, f"maybe {draft}") + "ok " + think(parser, f"or {draft}") + call
    output = parser.parse_all(sampled)
    assert [result.name for result in output.calls] == ["real"]
    assert output.text == "ok "
    assert output.reasoning == f"maybe {draft}\nor {draft}"


@every_parser
def test_drafts_are_not_calls_when_the_prompt_opened_the_reasoning(parser: ToolParser) -> None:
    draft, call = parser.render("draft", {"q": "x"}), parser.render("real", {"q": "y"})
    sampled = f"maybe {draft}{parser.think_end_token}{call}"
    assert [result.name for result in parser.parse(sampled, in_reasoning=True)] == ["real"]
    assert [result.name for result in parser.parse(sampled)] == ["real"]
    assert parser.parse(f"maybe {draft}", in_reasoning=True) == []


@every_parser
def test_drafts_in_reasoning_that_never_ends_are_not_calls(parser: ToolParser) -> None:
    output = parser.parse_all(f"{parser.think_start_token}maybe {parser.render('draft', {'q': 'x'})}")
    assert output.calls == ()
    assert output.ends_in_reasoning
    assert output.unclosed is None


@every_parser
def test_think_tags_in_arguments_are_arguments(parser: ToolParser) -> None:
    arguments = {"q": f"a {parser.think_start_token} b", "r": f"c {parser.think_end_token} d"}
    output = parser.parse_all(parser.render("f", arguments) + "after")
    assert only(list(output.calls)).input == arguments
    assert (output.text, output.reasoning) == ("after", "")


@every_parser
def test_reasoning_tags_can_be_switched_off(parser: ToolParser) -> None:
    parser = type(parser)(think_tokens=None)
    assert only(parser.parse(f"<think><seed:think>{parser.render('f', {'q': 'x'})}")).name == "f"


@every_parser
def test_special_tokens_around_calls_do_not_disturb(parser: ToolParser) -> None:
    output = parser.parse_all(f"<|im_start|>{parser.render('f', {'q': 'x'})}<|im_end|>")
    assert only(list(output.calls)).input == {"q": "x"}
    assert output.text == "<|im_start|><|im_end|>"


@every_parser
def test_the_visible_text_has_no_markup_and_is_otherwise_as_sampled(parser: ToolParser) -> None:
    call = parser.render("f", {"q": "x"})
    output = parser.parse_all(f" I look.\n\n{call}\n{call} \nDone.")
    assert output.text == " I look.\n\n\n \nDone."
    assert [segment.kind for segment in output.segments].count(SegmentKind.BLOCK) == 2


@every_parser
def test_the_span_is_the_markup(parser: ToolParser) -> None:
    sampled = "before " + parser.render("f", {"q": "needle"}) + " after"
    start, end = only(parser.parse(sampled)).span
    assert "needle" in sampled[start:end]
    assert "before" not in sampled[start:end]
    assert "after" not in sampled[start:end]


CLOSED_BY_MARKER = [parser for parser in EVERY if parser.tool_end_token]


@pytest.mark.parametrize("parser", CLOSED_BY_MARKER, ids=lambda parser: type(parser).__name__)
def test_an_unclosed_call_is_no_call_but_is_told(parser: ToolParser) -> None:
    call = parser.render("f", {"q": "x"})
    cut = call[: call.rindex(parser.tool_end_token)]
    output = parser.parse_all("so: " + parser.render("g", {"q": "y"}) + cut)
    assert [result.name for result in output.calls] == ["g"]
    assert output.text == "so: "
    assert output.unclosed == cut
    assert output.unclosed_call is not None
    assert (output.unclosed_call.id, output.unclosed_call.name) == ("call_0001", "f")
    assert output.unclosed_call.is_error
    assert parser.tool_end_token in str(output.unclosed_call.error)


@every_parser
def test_other_markers(parser: ToolParser) -> None:
    tokens = ("<call>", "</call>" if parser.tool_end_token else "")
    other = type(parser)(tool_call_tokens=tokens)
    assert only(other.parse(other.render("f", {"q": "x"}))).name == "f"
    assert other.parse(parser.render("f", {"q": "x"})) == []


def test_single_markers_can_be_replaced() -> None:
    parser = HermesToolParser(tool_start_token="<call>", think_end_token="</hm>")
    assert parser.tool_call_tokens == ("<call>", "</tool_call>")
    assert parser.think_tokens == ("<think>", "</hm>")


def test_an_empty_begin_marker_is_refused() -> None:
    with pytest.raises(ToolParserError, match="begin marker"):
        HermesToolParser(tool_call_tokens=("", "x"))


@every_parser
def test_what_cannot_be_json_is_not_rendered(parser: ToolParser) -> None:
    with pytest.raises(ToolParserError):
        parser.render("f", {"q": {1, 2}})


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


def test_hermes_nested_tags_are_one_malformed_call() -> None:
    output = HERMES.parse_all(hermes(hermes('{"name": "inner", "arguments": {}}')))
    assert only(list(output.calls)).is_error
    assert output.text == ""


def test_hermes_good_and_bad_calls_side_by_side() -> None:
    payloads = ['{"name": "a"}', "{broken}", '{"name": "b", "arguments": {"x": 1}}', '{"arguments": {}}']
    results = HERMES.parse("\n".join(map(hermes, payloads)))
    assert [result.name for result in results] == ["a", UNKNOWN_TOOL_NAME, "b", UNKNOWN_TOOL_NAME]
    assert [result.is_error for result in results] == [False, True, False, True]


def test_hermes_render_is_what_the_qwen3_template_prints() -> None:
    expected = '<tool_call>\n{"name": "f", "arguments": {"q": "é", "n": [1, true]}}\n</tool_call>'
    assert HERMES.render("f", {"q": "é", "n": [1, True]}) == expected


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


@pytest.mark.parametrize(
    ("text", "name", "error"),
    [
        ("<tool_call>\n<parameter=x>1</parameter>\n</tool_call>", UNKNOWN_TOOL_NAME, "<function=...> was expected"),
        (qwen("<parameter=x>1</parameter>", name=""), UNKNOWN_TOOL_NAME, "no valid name"),
        ("<tool_call></tool_call>", UNKNOWN_TOOL_NAME, "<function=...> was expected"),
        ("<tool_call><function=f", UNKNOWN_TOOL_NAME, None),
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
    ],
)
def test_qwen_malformed(text: str, name: str, error: str | None) -> None:
    if error is None:
        assert QWEN.parse(text) == []
        return
    result = only(QWEN.parse(text))
    assert (result.name, result.input, result.is_error) == (name, {}, True)
    assert re.search(error, str(result.error))


TYPED = [
    ("text", "5", "5"),
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
    ("level", "1", 1),
    ("mode", "1", "1"),
]


@pytest.mark.parametrize(("key", "printed", "expected"), TYPED)
def test_qwen_values_by_schema(key: str, printed: str, expected: Any) -> None:
    value = only(QWEN.parse(qwen(f"<parameter={key}>\n{printed}\n</parameter>"), tools=TOOLS)).input[key]
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


def test_qwen_render_is_what_the_template_prints() -> None:
    expected = qwen("<parameter=text>\na\n</parameter>\n<parameter=count>\n5\n</parameter>\n")
    assert QWEN.render("f", {"text": "a", "count": 5}, tools=TOOLS) == expected


@pytest.mark.parametrize("value", ["a</parameter>b", "</tool_call>", "<parameter=y>", 5, None])
def test_qwen_does_not_render_what_it_could_not_read(value: Any) -> None:
    with pytest.raises(ToolParserError, match="cannot express"):
        QWEN.render("f", {"x": value})


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


@pytest.mark.parametrize(
    ("text", "name", "error"),
    [
        (glm("<arg_key>x</arg_key>\n<arg_value>1</arg_value>", name=""), UNKNOWN_TOOL_NAME, "tool name was expected"),
        (glm("", name="  "), UNKNOWN_TOOL_NAME, "tool name was expected"),
        (glm("prose\n"), "f", "tool name was expected"),
        (hermes('{"name": "f"}'), UNKNOWN_TOOL_NAME, "tool name was expected"),
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
    ],
)
def test_glm_malformed(text: str, name: str, error: str) -> None:
    result = only(GLM.parse(text))
    assert (result.name, result.input, result.is_error) == (name, {}, True)
    assert re.search(error, str(result.error))


@pytest.mark.parametrize(("key", "printed", "expected"), TYPED)
def test_glm_values_by_schema(key: str, printed: str, expected: Any) -> None:
    text = glm(f"<arg_key>{key}</arg_key>\n<arg_value>{printed}</arg_value>\n")
    value = only(GLM.parse(text, tools=TOOLS)).input[key]
    assert (value, type(value)) == (expected, type(expected))


@pytest.mark.parametrize("value", ["5", "  a ", '"q"', "null", ""])
def test_glm_strings_that_look_like_something_else_survive(value: str) -> None:
    assert only(GLM.parse(GLM.render("f", {"x": value}))).input == {"x": value}
    assert only(GLM.parse(GLM.render("f", {"text": value}, tools=TOOLS), tools=TOOLS)).input == {"text": value}


def test_glm_renders_with_and_without_newlines() -> None:
    with_newlines = "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"
    assert GLM.render("f", {"x": 1}) == with_newlines
    assert GLMToolParser(newlines=False).render("f", {"x": 1}) == with_newlines.replace("\n", "")


# --- kimi_k2 ---


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("functions.f:0", "f"),
        ("functions.web-search:12", "web-search"),
        ("functions.module.sub_tool:0", "module.sub_tool"),
        ("functions.f", "f"),
        ("calculator:0", "calculator:0"),
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
    assert only(KIMI.parse(KIMI.render("f", {"q": value}))).input == {"q": value}


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


def test_kimi_renders_the_id_it_is_given() -> None:
    assert KIMI.render("f", {"x": 1}, "functions.f:3") == kimi(kimi_call('{"x": 1}', "functions.f:3"))
    with pytest.raises(ToolParserError):
        KIMI.render("f", {}, "functions.g:3")


def test_message_separators() -> None:
    assert (QWEN.message_separator, GLM.message_separator, KIMI.message_separator) == ("\n", "", "")
