"""Families with markers of their own around JSON, tags or bare values: exact calls, order, text, malformed ones."""

from __future__ import annotations

import re

import pytest

from strands_sglang.tool_parsers import (
    UNKNOWN_TOOL_NAME,
    SectionToolParser,
    get_tool_parser,
)
from strands_sglang.tool_parsers.gpt_oss import GptOssToolParser
from strands_sglang.tool_parsers.json_calls import LlamaJSONToolParser
from tests.tool_call_writer import render
from tests.unit.test_tool_parser import only

DSML_X = '<｜DSML｜parameter name="x" string="true">1</｜DSML｜parameter>'


def dsml(*calls: str) -> str:
    return f"<｜DSML｜function_calls>\n{''.join(calls)}</｜DSML｜function_calls>"


def invoke(*parameters: str, name: str = "f") -> str:
    return f'<｜DSML｜invoke name="{name}">\n{"".join(parameters)}</｜DSML｜invoke>\n'


PARALLEL = [
    (
        "mistral",
        '[TOOL_CALLS][{"name": "b", "arguments": {"x": 1}, "id": "QZid00001"}, {"name": "a", "arguments": {}}]',
    ),
    ("mistral", '[TOOL_CALLS]b[ARGS]{"x": 1}[TOOL_CALLS]a[ARGS]{}'),
    ("mistral", '[TOOL_CALLS]b[CALL_ID]QZid00001[ARGS]{"x": 1}[TOOL_CALLS]a[CALL_ID]QZid00002[ARGS]{}'),
    ("granite", '<|tool_call|>[{"name": "b", "arguments": {"x": 1}}, {"name": "a", "arguments": {}}]'),
    ("nemotron", '<TOOLCALL>[{"name": "b", "arguments": {"x": 1}}, {"name": "a", "arguments": {}}]</TOOLCALL>'),
    (
        "command",
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "b", "parameters": {"x": 1}},\n'
        '    {"tool_call_id": "1", "tool_name": "a", "parameters": {}}\n]<|END_ACTION|>',
    ),
    (
        "command_r_plus",
        'Action:\n```json\n[{"tool_name": "b", "parameters": {"x": 1}}, {"tool_name": "a", "parameters": {}}]```',
    ),
    ("apertus", '<|tools_prefix|>[{"b": {"x": 1}}, {"a": {}}]<|tools_suffix|>'),
    ("minimax_m1", '<tool_calls>\n{"name": "b", "arguments": {"x": 1}}\n{"name": "a", "arguments": {}}\n</tool_calls>'),
    ("xlam", '[{"name": "b", "arguments": {"x": 1}}, {"name": "a", "arguments": {}}]'),
    ("olmo3", "<function_calls>b(x=1)\na()</function_calls>"),
    ("gemma4", "<|tool_call>call:b{x:1}<tool_call|><|tool_call>call:a{}<tool_call|>"),
    (
        "deepseek_v32",
        dsml(invoke('<｜DSML｜parameter name="x" string="false">1</｜DSML｜parameter>\n', name="b"), invoke(name="a")),
    ),
    (
        "longcat",
        '<longcat_tool_call>{"name": "b", "arguments": {"x": 1}}</longcat_tool_call>'
        '<longcat_tool_call>{"name": "a", "arguments": {}}</longcat_tool_call>',
    ),
    (
        "intern_s1",
        '<|action_start|><|plugin|>\n{"name": "b", "parameters": {"x": 1}}\n<|action_end|>'
        '<|action_start|><|plugin|>\n{"name": "a", "parameters": {}}\n<|action_end|>',
    ),
]


@pytest.mark.parametrize(("name", "sampled"), PARALLEL)
def test_parallel_calls_keep_their_order(name: str, sampled: str) -> None:
    before = "" if name == "xlam" else "Sure. "
    output = get_tool_parser(name).parse_all(before + sampled)
    assert [(call.name, call.input, call.error) for call in output.calls] == [("b", {"x": 1}, None), ("a", {}, None)]
    assert output.text == before
    (b_start, b_end), (a_start, a_end) = (call.span for call in output.calls)
    assert b_start < b_end <= a_start < a_end


IDS = [
    ("mistral", '[TOOL_CALLS]f[CALL_ID]QZid00001[ARGS]{"x": 1}', "QZid00001"),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}, "id": "QZid00001"}]', "QZid00001"),
    ("command", '<|START_ACTION|>[{"tool_call_id": "3", "tool_name": "f", "parameters": {}}]<|END_ACTION|>', None),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"x": 1}', None),
]


@pytest.mark.parametrize(("name", "sampled", "model_id"), IDS)
def test_the_id_the_model_prints(name: str, sampled: str, model_id: str | None) -> None:
    assert only(get_tool_parser(name).parse(sampled)).model_id == model_id


MARKER_IN_STRING = {
    "mistral": '[TOOL_CALLS]f[ARGS]{"q": "[TOOL_CALLS]g[ARGS]{}"}',
    "gemma4": '<|tool_call>call:f{q:<|"|>a<tool_call|>}{,:<|"|>}<tool_call|>',
    "gpt_oss": '<|channel|>commentary to=functions.f<|message|>{"q": "<|call|><|end|><|start|>assistant"}<|call|>',
    "command": '<|START_ACTION|>[{"tool_name": "f", "parameters": {"q": "]<|END_ACTION|>"}}]<|END_ACTION|>',
    "minimax_m1": '<tool_calls>\n{"name": "f", "arguments": {"q": "</tool_calls>\\n{}"}}\n</tool_calls>',
    "olmo3": '<function_calls>f(q="a)</function_calls>")</function_calls>',
    "llama_json": '{"name": "f", "parameters": {"q": "<|python_tag|>{}"}}',
}


@pytest.mark.parametrize(("name", "sampled"), MARKER_IN_STRING.items())
def test_a_marker_inside_a_string_belongs_to_the_string(name: str, sampled: str) -> None:
    output = get_tool_parser(name).parse_all(sampled)
    call = only(list(output.calls))
    assert (call.name, call.error, list(call.input)) == ("f", None, ["q"])
    assert (call.span, output.text) == ((0, len(sampled)), "")


MALFORMED = [
    ("mistral", '[TOOL_CALLS]{"name": "f", "arguments": {}}', "f", "not a JSON list"),
    ("mistral", "[TOOL_CALLS][]", UNKNOWN_TOOL_NAME, "empty"),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": [1]}]', "f", "not a JSON object"),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}, "id": 7}]', "f", '"id" is not a string'),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}}] ok', "f", "Extra data"),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "0"}]', "f", "nine letters"),
    ("mistral", "[TOOL_CALLS]f[CALL_ID]0[ARGS]{}", "f", "nine letters"),
    ("mistral", "[TOOL_CALLS]f[CALL_ID][ARGS]{}", "f", "nine letters"),
    ("mistral", "[TOOL_CALLS]f[ARGS][1]", "f", "not a JSON object"),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"x": 1}}', "f", "Extra data"),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"x": 1, "x": 2}', "f", "given twice"),
    ("mistral", '[TOOL_CALLS]f{"x": 1}', UNKNOWN_TOOL_NAME, r"\[ARGS\] is missing"),
    ("mistral", "[TOOL_CALLS][ARGS]{}", UNKNOWN_TOOL_NAME, "no valid tool name"),
    ("llama_json", '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', "f", "Extra data"),
    ("llama_json", '{"type": "function", "name": "f", "parameters": {}}', "f", "unexpected key 'type'"),
    ("llama_json", '{"name": "f", "parameters": [1]}', "f", "not a JSON object"),
    ("llama_json", '<|python_tag|>search.call(query="x")', UNKNOWN_TOOL_NAME, "not valid JSON"),
    ("llama_json", '<|python_tag|>{"name": "f", "arguments": {}}', "f", "unexpected key 'arguments'"),
    ("gemma4", "<|tool_call>f{}<tool_call|>", UNKNOWN_TOOL_NAME, "call:NAME"),
    ("gemma4", "<|tool_call>call:f{x:one}<tool_call|>", "f", "a value was expected"),
    ("gemma4", "<|tool_call>call:f{x:NaN}<tool_call|>", "f", "a value was expected"),
    ("gemma4", '<|tool_call>call:f{x:"one"}<tool_call|>', "f", "a value was expected"),
    ("gemma4", "<|tool_call>call:f{x:1,x:2}<tool_call|>", "f", "given twice"),
    ("gemma4", "<|tool_call>call:f{x:1,}<tool_call|>", "f", "a key was expected"),
    ("gemma4", "<|tool_call>call:f{x:1}}<tool_call|>", "f", "expected"),
    ("gemma4", "<|tool_call>call:f[1]<tool_call|>", UNKNOWN_TOOL_NAME, "expected"),
    ("gemma4", f"<|tool_call>call:f{{x:{'[' * 5000}<tool_call|>", "f", "nested too deeply"),
    ("deepseek_v32", dsml(invoke(DSML_X.replace("true", "maybe"))), "f", "not of the kinds"),
    ("deepseek_v32", dsml(invoke(DSML_X.replace(' string="true"', ""))), "f", "not of the kinds"),
    ("deepseek_v32", dsml(invoke(DSML_X.replace("true", "false").replace("1", "one"))), "f", "not valid JSON"),
    ("deepseek_v32", dsml(invoke(DSML_X, DSML_X)), "f", "given twice"),
    ("deepseek_v32", dsml("{}"), UNKNOWN_TOOL_NAME, "was expected"),
    ("apertus", '<|tools_prefix|>[{"f": {}, "g": {}}]<|tools_suffix|>', "f", "one key"),
    ("apertus", '<|tools_prefix|>[{"f": [1]}]<|tools_suffix|>', "f", "not a JSON object"),
    ("apertus", '<|tools_prefix|>[{"f": {"x": NaN}}]<|tools_suffix|>', "f", "NaN"),
    ("nemotron", '<TOOLCALL>{"name": "f", "arguments": {}}</TOOLCALL>', "f", "not a JSON list"),
    ("nemotron", '<TOOLCALL>[{"name": "f", "arguments": "{}"}]</TOOLCALL>', "f", "not a JSON object"),
    ("granite", '<|tool_call|>[{"name": "f", "parameters": {}}]', "f", "unexpected key"),
    ("command", '<|START_ACTION|>[{"tool_name": "f", "arguments": {}}]<|END_ACTION|>', "f", "unexpected key"),
    ("command", '<|START_ACTION|>[{"tool_name": "f", oops}]<|END_ACTION|>', "f", "not valid JSON"),
    ("minimax_m1", '<tool_calls>{"name": "f", oops}</tool_calls>', "f", "not valid JSON"),
    ("minimax_m1", "<tool_calls></tool_calls>", UNKNOWN_TOOL_NAME, "not valid JSON"),
    ("xlam", '[{"name": "f", "arguments": [1]}]', "f", "not a JSON object"),
    ("xlam", '[{"name": "f", "arguments": {}}] ok', "f", "Extra data"),
    ("olmo3", "<function_calls>f(x=True)</function_calls>", "f", "not valid JSON"),
    ("olmo3", "<function_calls>f(x='a')</function_calls>", "f", "not valid JSON"),
    ("olmo3", "<function_calls>f(1)</function_calls>", "f", "KEY= was expected"),
    ("olmo3", "<function_calls>f(x=1 y=2)</function_calls>", "f", ", or \\) was expected"),
    ("olmo3", "<function_calls>f(x=1, x=2)</function_calls>", "f", "given twice"),
    ("olmo3", "<function_calls></function_calls>", UNKNOWN_TOOL_NAME, "NAME\\( was expected"),
    ("gpt_oss", "<|channel|>commentary to=functions.f <|constrain|>json<|message|>[1]<|call|>", "f", "JSON object"),
    ("gpt_oss", "<|channel|>commentary to=functions.f json<|message|>{oops}<|call|>", "f", "not valid JSON"),
    ("gpt_oss", "<|channel|>commentary to=functions.f json<|message|>{} {}<|call|>", "f", "Extra data"),
    ("gpt_oss", "<|channel|>commentary to=functions.f json<|message|>{}<|end|>", "f", re.escape("<|call|> is missing")),
    ("gpt_oss", "<|channel|>commentary to=functions.f code<|message|>{}<|call|>", "f", "header is not of the form"),
    ("gpt_oss", "<|channel|>analysis to=functions.f<|message|>{}<|call|>", "f", "header is not"),
    (
        "gpt_oss",
        "<|channel|>commentary to=browser.search<|message|>{}<|call|>",
        "browser.search",
        "header is not of the form",
    ),
    (
        "gpt_oss",
        " to=functions.f<|channel|>commentary to=functions.f<|message|>{}<|call|>",
        "f",
        "header is not of the form",
    ),
    ("gpt_oss", "<|channel|>commentary to=functions.f x json<|message|>{}<|call|>", "f", "header is not of the form"),
    ("gpt_oss", "<|channel|>commentary to=functions.f  <|constrain|>json<|message|>{}<|call|>", "f", "header is not"),
    ("gpt_oss", "<|channel|>commentary json to=functions.f<|message|>{}<|call|>", "f", "header is not"),
    ("gpt_oss", "<|start|>assistant<|channel|>commentary to= functions.f<|message|>{}<|call|>", "f", "header is not"),
    ("gpt_oss", '<|channel|>commentary to=functions.f{"x": 1}<|call|>', "f", "header is not of the form"),
    ("gpt_oss", '<|channel|>commentary to=functions.f{"x": 1}', "f", re.escape("<|call|> is missing")),
    ("gpt_oss", "to=functions.f <|constrain|>json<|message|>{}<|call|>", "f", "header is not of the form"),
    ("gpt_oss", "<|channel|>commentary json<|message|>{}<|call|>", UNKNOWN_TOOL_NAME, "has no recipient"),
    ("gigachat", '<|function_call|>{"name": "f", "arguments": [1]}<|message_sep|>', "f", "not a JSON object"),
    ("intern_s1", '<|action_start|><|plugin|>{"name": "f", "arguments": {}}<|action_end|>', "f", "unexpected key"),
    ("longcat", '<longcat_tool_call>{"name": "f", "arguments": 1}</longcat_tool_call>', "f", "not a JSON object"),
]


@pytest.mark.parametrize(("name", "sampled", "tool", "error"), MALFORMED)
def test_malformed_calls_say_why(name: str, sampled: str, tool: str, error: str) -> None:
    parser = get_tool_parser(name)
    output = parser.parse_all(sampled)
    call = only([*output.calls, *([output.unclosed_call] if output.unclosed_call else [])])
    assert (call.name, call.input, call.is_error) == (tool, {}, True)
    assert call.raw is not None and call.raw in sampled
    assert re.search(error, str(call.error)), call.error


OUTSIDE = {
    "kimi_k2": "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
    "deepseek_v3": "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜>",
    "deepseek_v31": "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
}


@pytest.mark.parametrize(("name", "sampled"), OUTSIDE.items())
@pytest.mark.parametrize("ends_section", [False, True])
def test_a_call_outside_of_a_section_is_malformed(name: str, sampled: str, ends_section: bool) -> None:
    parser = get_tool_parser(name)
    assert isinstance(parser, SectionToolParser)
    cut = parser.parse_all(sampled.removesuffix(parser.CALL.end))
    assert (cut.calls, cut.text) == ((), "")
    assert cut.unclosed_call is not None and cut.unclosed_call.name == "f"
    sampled += parser.tool_end_token * ends_section
    good = render(parser, "g", {})
    output = parser.parse_all(f"a{good}b{sampled}c")
    assert [(call.name, call.is_error) for call in output.calls] == [("g", False), ("f", True)]
    assert "outside of a section" in str(output.calls[1].error)
    assert (output.calls[1].raw, output.text) == (sampled, "abc")


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_mention_of_the_marker_of_a_call_is_text(name: str) -> None:
    parser = get_tool_parser(name)
    assert isinstance(parser, SectionToolParser)
    mention = f"{parser.CALL.begin} begins a call. "
    output = parser.parse_all(mention)
    assert (output.calls, output.text, output.unclosed_call) == ((), mention, None)
    output = parser.parse_all(mention + render(parser, "g", {}))
    assert ([(call.name, call.is_error) for call in output.calls], output.text) == ([("g", False)], mention)
    output = parser.parse_all(f"I wonder: {mention}{parser.think_end_token}ok")
    assert (output.text, output.unclosed_call) == ("ok", None)


@pytest.mark.parametrize("behind", [" x", "}", " {}"])
def test_what_stands_between_a_call_and_its_end_marker_belongs_to_the_call(behind: str) -> None:
    sampled = '<tool_call>{"name": "f", "arguments": {"q": "</tool_call>"}}' + behind + "</tool_call>"
    output = get_tool_parser("hermes").parse_all(sampled + " ok")
    call = only(list(output.calls))
    assert (call.is_error, call.span, output.text) == (True, (0, len(sampled)), " ok")


def test_gpt_oss_what_is_wrong_with_a_header_is_said_without_control_tokens() -> None:
    call = only(GptOssToolParser().parse("<|channel|>commentary to=functions.f x json<|message|>{}<|call|>"))
    assert "<|" not in str(call.error)  # the template would make another header of them


# --- which calls, and what text is left ---

CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": 1}<|call|>'
BROKEN = "<|channel|>commentary to=functions.f x json<|message|>{}<|call|>"
RECIPIENTS = "<|channel|>final<|message|>Write to=functions.f, then <b>.<|return|>"
PREAMBLE = "<|channel|>commentary<|message|>I look it up.<|end|><|start|>assistant"
LLAMA = [
    '{"name": "Bob", "age": 3}',
    '{"answer": 4}',
    '[{"name": "f", "parameters": {}}]',
    'I: {"name": "f", "parameters": {}}',
]
LLAMA += ['```json\n{"name": "f", "parameters": {}}\n```', '{"parameters": {}, "name": "f"}']
XLAM = ["See [1, 2].", "[1, 2]", 'So [{"name": "f", "arguments": {}}]', '[{"name": "Bob"}]']
LIST = '<TOOLCALL>[{"name": "f", "arguments": {"x": NaN}}, {"name": "g", "arguments": {}}]</TOOLCALL>'
LINES = '<tool_calls>\n{"name": "f"}\n{"name": "g", "arguments": {"q": "</tool_calls>"}}\n</tool_calls>'
READ = [
    *(("llama_json", answer, "", answer) for answer in LLAMA),
    *(("xlam", answer, "", answer) for answer in XLAM),
    ("llama_json", 'So: <|python_tag|>{"name": "f", "parameters": {}}', "f", "So: "),
    ("gpt_oss", RECIPIENTS, "", "Write to=functions.f, then <b>."),
    ("gpt_oss", "<|channel|>final photo=3<|return|>", "", "<|channel|>final photo=3<|return|>"),
    ("gpt_oss", PREAMBLE + CALL, "f", "I look it up."),
    ("gpt_oss", f"{BROKEN}<|start|>assistant{CALL}<|start|>assistant<|channel|>final<|message|>a", "f! f", "a"),
    ("gpt_oss", f"<|channel|>commentary to=functions.f <|constrain|>json{CALL}", "f!", ""),
    ("gpt_oss", f"<|channel|>analysis<|message|>I could {CALL} now", "", ""),
    ("nemotron", LIST, "f! g", ""),
    ("minimax_m1", LINES, "f g", ""),
    ("minimax_m1", '<tool_calls>\n{"name": "g"}\noops\n{"name": "f"}\n</tool_calls>', "g f!", ""),
    ("mistral", "[TOOL_CALLS]f[ARGS]{oops}[TOOL_CALLS]g[ARGS]{}[TOOL_CALLS]h", "f! g unknown_tool!", ""),
    ("hermes", '<tool_call>{"name": "a"}</tool_call>\n<tool_call>{x}</tool_call>', "a unknown_tool!", "\n"),
    ("hermes", '<tool_call><tool_call>{"name": "f"}</tool_call></tool_call>', "f!", ""),
]
"""The calls by name, malformed ones with a `!`, and the text beside them."""


@pytest.mark.parametrize(("name", "sampled", "calls", "text"), READ)
def test_the_calls_and_the_text_beside_them(name: str, sampled: str, calls: str, text: str) -> None:
    output = get_tool_parser(name).parse_all(sampled)
    assert " ".join(call.name + "!" * call.is_error for call in output.calls) == calls
    assert (output.text, output.unclosed_call) == (text, None)
    for call in output.calls:
        assert call.raw is None or call.raw in sampled[slice(*call.span)]


@pytest.mark.parametrize("prefix", ["", "\n ", "<|python_tag|>", "<think>hm</think>\n\n"])
def test_llama_with_and_without_the_tag(prefix: str) -> None:
    sampled = prefix + '{"name": "f", "parameters": {"q": ["ü", null]}}\n'
    call = only(LlamaJSONToolParser().parse(sampled))
    assert (call.name, call.input, call.error) == ("f", {"q": ["ü", None]}, None)


def test_llama_json_that_is_not_valid_is_told_with_its_place() -> None:
    output = LlamaJSONToolParser().parse_all('{"name": "f", "parameters": {oops}}')
    assert output.calls == ()
    assert "not valid JSON: Expecting property name" in str(output.unclosed_call.error)


# --- Gemma 4 ---


def test_gemma_values() -> None:
    sampled = (
        '<|tool_call>call:a.b-c{s:<|"|>say "hi", {x:1}\n<|"|>,i:-3,f:1.5e3,t:true,n:null,o:None,e:[],'
        'l:[1, [<|"|><|"|>]],m:{a:{},b:false}}<tool_call|>'
    )
    call = only(get_tool_parser("gemma4").parse(sampled))
    assert (call.name, call.error) == ("a.b-c", None)
    assert call.input == {
        "s": 'say "hi", {x:1}\n',
        "i": -3,
        "f": 1500.0,
        "t": True,
        "n": None,
        "o": None,
        "e": [],
        "l": [1, [""]],
        "m": {"a": {}, "b": False},
    }


# --- DeepSeek V3.2 ---


def test_dsml_values_are_what_their_tag_says() -> None:
    sampled = dsml(
        invoke(
            '<｜DSML｜parameter name="s" string="true"> 3 </｜DSML｜parameter>\n',
            '<｜DSML｜parameter name="n" string="false">3</｜DSML｜parameter>\n',
            '<｜DSML｜parameter name="j" string="false">{"a": [null]}</｜DSML｜parameter>\n',
        )
    )
    schema = {"type": "object", "properties": {"s": {"type": "integer"}, "n": {"type": "string"}}}
    call = only(get_tool_parser("deepseek_v32").parse(sampled, tools=[{"name": "f", "inputSchema": {"json": schema}}]))
    assert call.input == {"s": " 3 ", "n": 3, "j": {"a": [None]}}


# --- gpt-oss ---


@pytest.mark.parametrize(
    "call",
    [
        CALL,
        '<|channel|>commentary to=functions.f json<|message|>{"x": 1}<|call|>',
        '<|channel|>commentary to=functions.f<|message|>{"x": 1}<|call|>',
        ' to=functions.f<|channel|>commentary json<|message|>{"x": 1}<|call|>',
        '<|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json<|message|>{"x": 1}<|call|>',
        f"<|start|>assistant{CALL}",
    ],
)
@pytest.mark.parametrize("before", ["", "<|channel|>analysis<|message|>Hm, {}?<|end|>"])
def test_gpt_oss_headers(before: str, call: str) -> None:
    output = GptOssToolParser().parse_all(before + call)
    result = only(list(output.calls))
    assert (result.name, result.input, result.error) == ("f", {"x": 1}, None)
    assert result.span == (len(before), len(before + call))
    assert (output.text, output.reasoning) == ("", "Hm, {}?" if before else "")


def test_gpt_oss_preamble_and_answer_are_text() -> None:
    sampled = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look. <|end|>"
        f"<|start|>assistant<|channel|>analysis<|message|>So.<|end|><|start|>assistant{CALL}"
        "<|start|>assistant<|channel|>final<|message|>Done.<|return|>"
    )
    output = GptOssToolParser().parse_all(sampled)
    assert (output.text, output.reasoning) == ("I look. Done.", "Hm.\nSo.")
    assert only(list(output.calls)).name == "f"


def test_gpt_oss_call_without_its_stop_token_is_no_call() -> None:
    output = GptOssToolParser().parse_all(CALL.removesuffix("<|call|>"))
    assert output.calls == ()
    assert output.unclosed_call is not None and "<|call|> is missing" in str(output.unclosed_call.error)
    assert output.unclosed_call.name == "f"


def test_gpt_oss_split_of_a_cut_turn_keeps_the_markup_of_a_call_out_of_reasoning() -> None:
    sampled = f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{CALL.removesuffix('<|call|>')}"
    split = GptOssToolParser().split(sampled)
    assert (split.reasoning, split.text) == ("Hm.", '{"x": 1}')
