"""Each family's format, by table: exact calls, their order, the text beside them; malformed ones with a reason."""

from __future__ import annotations

import re
from typing import Any

import pytest

from strands_sglang.tool_parsers import UNKNOWN_TOOL_NAME, SectionToolParser, get_tool_parser
from tests.tool_call_writer import render
from tests.unit.strands_sglang.tool_parsers.test_tool_parser import only


def hermes(payload: str) -> str:
    return f"<tool_call>\n{payload} </tool_call>"


def kimi(*calls: str) -> str:
    return f"<|tool_calls_section_begin|>{''.join(calls)}<|tool_calls_section_end|>"


def kimi_call(arguments: str, header: str = "functions.f:0") -> str:
    return f"<|tool_call_begin|>{header}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


def qwen(parameters: str, name: str = "f") -> str:
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def glm(pairs: str, name: str = "f") -> str:
    return f"<tool_call>{name}\n{pairs}</tool_call>"


def pair(key: str, value: str) -> str:
    return f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>"


def dsml(*calls: str) -> str:
    return f"<｜DSML｜function_calls>\n{''.join(calls)}</｜DSML｜function_calls>"


def invoke(*parameters: str, name: str = "f") -> str:
    return f'<｜DSML｜invoke name="{name}">\n{"".join(parameters)}</｜DSML｜invoke>\n'


def parameter(key: str, value: str, is_string: str = "true") -> str:
    return f'<｜DSML｜parameter name="{key}" string="{is_string}">{value}</｜DSML｜parameter>\n'


def v4(*calls: str) -> str:
    return dsml(*calls).replace("function_calls>", "tool_calls>")


def k3(*arguments: str, name: str = "f") -> str:
    return f'<|open|>call tool="{name}" index="1"<|sep|>{"".join(arguments)}<|close|>call<|sep|>'


def k3_argument(key: str, value: str, kind: str = "string") -> str:
    return f'<|open|>argument key="{key}" type="{kind}"<|sep|>{value}<|close|>argument<|sep|>'


def k3_tools(*calls: str) -> str:
    return f"<|open|>tools<|sep|>{''.join(calls)}<|close|>tools<|sep|>"


def k3_json(value: str) -> str:
    return f'<|open|>json type="object"<|sep|>{value}<|close|>json<|sep|>'


def m3(*calls: str) -> str:
    """`^` stands for the mark in front of every tag."""
    return f"^<tool_call>\n{''.join(calls)}^</tool_call>".replace("^", "]<]minimax[>[")


def m3_call(elements: str, name: str = "f") -> str:
    return f'^<invoke name="{name}">{elements}^</invoke>\n'


def muse(
    parameters: str = "", name: str = "f", to: str = "f", end: str = "<|eom|>", start: str = "<|start|>assistant"
) -> str:
    call = f'<atem:function_calls>\n<atem:invoke name="{name}">\n{parameters}</atem:invoke>\n</atem:function_calls>'
    return f"{start} to={to}<|message|>{call}{end}"


def inkling(payload: str, name: str = "f", kind: str = "invoke_tool_json", start: str = "<|message_model|>") -> str:
    return f"{start}{name}<|content_{kind}|>{payload}<|end_message|>"


def solar(*calls: str, start: str = "<|begin|>assistant") -> str:
    return f"{start}<|tool_calls|>{''.join(calls)}<|calls|>"


def solar_call(arguments: str = "{}", name: str = "f", model_id: str = "a1b2c3d4e5") -> str:
    head = f"<|tool_call:begin|>{model_id}<|tool_call:name|>{name}" if name else f"<|tool_call:begin|>{model_id}"
    return f"{head}<|tool_call:args|>{arguments}<|tool_call:end|>"


CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": 1}<|call|>'
THOUGHT = "<|channel|>analysis<|message|>Hm, {}?<|end|>"

# ---- one call of `f`, by its arguments

VALUES: list[tuple[str, str, dict[str, Any]]] = [
    ("hermes", hermes('{"name": "f"}'), {}),
    ("hermes", hermes('{"arguments": {"q": "你好 🚀"},\n "name": "f"}\n'), {"q": "你好 🚀"}),
    ("hermes", hermes('{"name": "f", "arguments": {"q": "\\u00e9\\ud83d\\ude80"}}'), {"q": "é🚀"}),
    ("qwen_xml", qwen(""), {}),
    ("qwen_xml", qwen("<parameter=x>1</parameter>\n<parameter=y>true</parameter>"), {"x": "1", "y": "true"}),
    ("qwen_xml", qwen("<parameter=x>   value   </parameter>"), {"x": "value"}),
    ("qwen_xml", qwen("<parameter=x>\n    indented\n\n</parameter>"), {"x": "    indented\n"}),
    ("qwen_xml", qwen("<parameter=x>\n\n</parameter>"), {"x": ""}),
    ("qwen_xml", qwen("<parameter=x>a & b | \"c\" <d> 'e'</parameter>"), {"x": "a & b | \"c\" <d> 'e'"}),
    ("qwen_xml", qwen("<parameter=x>\n<parameters> </function_x>\n</parameter>"), {"x": "<parameters> </function_x>"}),
    ("qwen_xml", "<tool_call><function=f><parameter=x>1</parameter></function></tool_call>", {"x": "1"}),
    ("glm", glm(""), {}),
    ("glm", "<tool_call>  f<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>", {"x": 1}),
    ("glm", glm(pair("x", "1") + pair("y", "z")), {"x": 1, "y": "z"}),
    ("glm", glm(pair("x", '"5"')), {"x": "5"}),
    ("glm", glm(pair("  x ", "  v  ")), {"x": "v"}),
    ("glm", glm(pair("x", "def f():\n    pass")), {"x": "def f():\n    pass"}),
    ("glm", glm(pair("x", '{"a": [1]}')), {"x": {"a": [1]}}),
    ("glm", glm(pair("x", "NaN")), {"x": "NaN"}),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"q": "[TOOL_CALLS]g[ARGS]{}"}', {"q": "[TOOL_CALLS]g[ARGS]{}"}),
    ("olmo3", '<function_calls>f(q="a)</function_calls>")</function_calls>', {"q": "a)</function_calls>"}),
    ("llama_json", '{"name": "f", "parameters": {"q": ["ü", null]}}\n', {"q": ["ü", None]}),
    ("llama_json", '\n <|python_tag|>{"name": "f", "parameters": {"q": "<|python_tag|>"}}', {"q": "<|python_tag|>"}),
    ("llama_json", '<think>hm</think>\n\n{"name": "f", "parameters": {}}', {}),
    ("gemma4", '<|tool_call>call:f{q:<|"|>a<tool_call|>}{,:<|"|>}<tool_call|>', {"q": "a<tool_call|>}{,:"}),
    (
        "gemma4",
        '<|tool_call>call:f{s:<|"|>say "hi", {x:1}\n<|"|>,'
        "l:[-3,1.5e3, [],[]],m:{a:{},b:[false,true,null,None]}}<tool_call|>",
        {"s": 'say "hi", {x:1}\n', "l": [-3, 1500.0, [], []], "m": {"a": {}, "b": [False, True, None, None]}},
    ),
    (
        "gpt_oss",
        '<|channel|>commentary to=functions.f<|message|>{"q": "<|call|><|end|>"}<|call|>',
        {"q": "<|call|><|end|>"},
    ),
    ("deepseek_v4", v4("\n" + invoke("\n")), {}),
    ("deepseek_v4", v4(invoke(parameter("x", "1", "false"))), {"x": 1}),
    ("kimi_k3", k3_tools(k3()), {}),
    (
        "kimi_k3",
        k3_tools(k3(k3_argument("q", " 5 &amp; <b> "), k3_argument("a&amp;&quot;b", "-1.5", "number"))),
        {"q": " 5 &amp; <b> ", 'a&"b': -1.5},
    ),
    (
        "kimi_k3",
        k3_tools(k3(k3_argument("n", "null", "null"), k3_argument("l", '["a"]', "array"), k3_argument("e", ""))),
        {"n": None, "l": ["a"], "e": ""},
    ),
    ("kimi_k3", k3_tools(k3(k3_json('{"q": "<|close|>json<|sep|>"}'))), {"q": "<|close|>json<|sep|>"}),
    ("minimax_m3", m3(m3_call("")), {}),
    ("minimax_m3", m3(m3_call("\n^<-A> 5 <b>^</-A>\n^<e>^</e>\n")), {"-A": " 5 <b>", "e": ""}),
    ("minimax_m3", m3(m3_call("^<x>^<a>1^</a>^<b>^<item>2^</item>^</b>^</x>")), {"x": {"a": "1", "b": ["2"]}}),
    ("muse_glimmer", muse('<atem:parameter name="x"> a\n</b> </atem:parameter>\n'), {"x": " a\n</b> "}),
    ("functionary", '>>>f\n{"q": ">>>all\\n>>>g"}', {"q": ">>>all\n>>>g"}),
    ("gpt_oss", CALL, {"x": 1}),
    ("gpt_oss", f"<|start|>assistant{CALL}", {"x": 1}),
    ("gpt_oss", '<|channel|>commentary to=functions.f json<|message|>{"x": 1}<|call|>', {"x": 1}),
    ("gpt_oss", ' to=functions.f<|channel|>commentary json<|message|>{"x": 1}<|call|>', {"x": 1}),
    ("gpt_oss", "<|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json<|message|>{}<|call|>", {}),
]


@pytest.mark.parametrize(("name", "sampled", "expected"), VALUES)
def test_a_call_is_read_exactly_as_it_was_written(name: str, sampled: str, expected: dict[str, Any]) -> None:
    parser = get_tool_parser(name)
    beside = [("", "")]
    if name == "gpt_oss":
        beside.append((THOUGHT, ""))
    elif parser.tool_end_token:
        beside.append(("a", "b"))
    for before, after in beside:
        output = parser.parse_all(before + sampled + after)
        call = only(output.calls)
        assert (call.name, call.input, call.error) == ("f", expected, None)
        assert {name: type(value) for name, value in call.input.items()} == {n: type(v) for n, v in expected.items()}
        assert output.text.strip() == (before + after).removeprefix(THOUGHT)
        if name not in (
            "kimi_k2",
            "llama_json",
            "solar_open",
        ):  # their calls have blanks or section markers around them
            assert call.span == (len(before), len(before + sampled))


TYPED: list[tuple[str, str, Any]] = [
    ("text", "5", "5"),
    ("text", '"quoted"', '"quoted"'),
    ("count", "5", 5),
    ("count", "five", "five"),
    ("count", "5.5", "5.5"),
    ("count", "140.0", 140),
    ("count", "1e23", 10**23),
    ("ratio", "5", 5),
    ("ratio", "0.5", 0.5),
    ("ratio", "140.0", 140.0),
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
    ("any", "5", 5),
    ("any", '{"a": [1]}', {"a": [1]}),
    ("any", "true", True),
    ("any", "five", "five"),
    ("untyped", "[1, 2]", [1, 2]),
    ("any", '"x"', '"x"'),
    ("untyped", '"x"', '"x"'),
    ("maybe_any", "null", None),
    ("digits", "5", "5"),
    ("nullable", "null", None),
    ("narrowed", "5", 5),
    ("only", "5", 5),
    ("in_list", "5", 5),
    ("escaped", "5", 5),
    ("whole", '{"text": "a"}', {"text": "a"}),
    ("circle", "5", 5),
    ("lost", "5", 5),
    ("n_count", "5", 5),
    ("n_1", "5", "5"),
    ("further", "[1]", [1]),
    ("further", "5", "5"),
]
SCHEMA = {
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
        "untyped": {"description": "anything"},
        "maybe_any": {"anyOf": [{}, {"type": "null"}]},
        "digits": {"pattern": "^[0-9]+$"},
        "nullable": {"type": "integer", "nullable": True},
        "narrowed": {"type": ["string", "integer"], "allOf": [{"type": "number"}]},
        "only": {"const": 5},
        "in_list": {"$ref": "#/$defs/Pair/prefixItems/1"},
        "escaped": {"$ref": "#/$defs/a~1b%20~0"},
        "whole": {"$ref": "#"},
        "circle": {"anyOf": [{"$ref": "#/properties/circle"}, {"type": "integer"}]},
        "lost": {"$ref": "https://elsewhere/schema"},
    },
    "patternProperties": {"^n_c": {"type": "integer"}, "^n_": {"type": ["string", "number"]}, "(?<x": {}},
    "additionalProperties": {"type": ["array", "null"]},
    "$defs": {
        "Point": {"type": "object"},
        "Pair": {"prefixItems": [{"type": "string"}, {"type": "integer"}]},
        "a/b ~": {"type": "integer"},
    },
}
SPECS = [{"name": "f", "inputSchema": {"json": SCHEMA}}]
CHAT_TOOLS = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]


@pytest.mark.parametrize("tools", [SPECS, CHAT_TOOLS], ids=["specs", "chat-template tools"])
@pytest.mark.parametrize(("key", "printed", "expected"), TYPED)
def test_bare_values_are_decoded_by_their_schema(key: str, printed: str, expected: Any, tools: Any) -> None:
    for name, sampled in (
        ("qwen_xml", qwen(f"<parameter={key}>\n{printed}\n</parameter>")),
        ("glm", glm(pair(key, printed))),
    ):
        value = only(get_tool_parser(name).parse(sampled, tools=tools)).input[key]
        assert (value, type(value)) == (expected, type(expected))


def test_bare_values_stay_as_printed_where_the_schema_says_nothing_or_a_string() -> None:
    sampled = qwen("<parameter=other> 6 </parameter><parameter=text>  a </parameter>")
    tools = [{"name": "f", "inputSchema": {"json": {"properties": {"text": {"type": "string"}}}}}]
    assert only(get_tool_parser("qwen_xml").parse(sampled, tools=tools)).input == {"other": "6", "text": "  a "}


POINT = {"type": "object", "properties": {"x": {"type": "number"}, "item": {"$ref": "#/$defs/Text"}}}
NESTED_SCHEMA = {
    "properties": {
        "points": {"type": "array", "items": {"$ref": "#/$defs/Point"}},
        "maybe": {"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]},
        "names": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
        "tree": {"$ref": "#/$defs/Tree"},
        "free": {"type": "object"},
        "any": {},
    },
    "$defs": {
        "Text": {"type": "string"},
        "Point": POINT,
        "Tree": {"properties": {"n": {"type": "integer"}}, "additionalProperties": {"$ref": "#/$defs/Tree"}},
    },
}
NESTED = [
    (
        "^<points>^<item>^<x>1^</x>^</item>^<item>^<item>1^</item>^</item>^</points>",
        {"points": [{"x": 1}, {"item": "1"}]},
    ),
    ("^<points>^</points>^<maybe>^</maybe>", {"points": [], "maybe": {}}),
    ("^<maybe>^<item>5^</item>^</maybe>", {"maybe": {"item": "5"}}),
    ("^<names>^</names>", {"names": []}),
    ("^<names>^<item>5^</item>^<item> true^</item>^<item>^</item>^</names>", {"names": ["5", " true", ""]}),
    ("^<tree>^<a>^<n>1^</n>^<b>^<n>2^</n>^</b>^</a>^</tree>", {"tree": {"a": {"n": 1, "b": {"n": 2}}}}),
    ("^<free>^<a>5^</a>^<b>five^</b>^<c>^</c>^</free>", {"free": {"a": 5, "b": "five", "c": ""}}),
    ("^<any>^<item>true^</item>^</any>", {"any": [True]}),
    ("^<any>^</any>^<lost>5^</lost>", {"any": "", "lost": "5"}),
]


@pytest.mark.parametrize(("elements", "expected"), NESTED)
def test_nested_elements_are_decoded_by_the_schema_of_their_place(elements: str, expected: dict[str, Any]) -> None:
    tools = [{"name": "f", "inputSchema": {"json": NESTED_SCHEMA}}]
    call = only(get_tool_parser("minimax_m3").parse(m3(m3_call(elements)), tools=tools))
    assert (call.input, call.error) == (expected, None)


INTEGER = {"properties": {"x": {"type": "integer"}}}
TEXT = {"properties": {"x": {"type": "string"}}}
OTHER = {"properties": {"y": {"type": "string"}}}


def of(x: dict[str, Any], name: str = "", **defs: Any) -> dict[str, Any]:
    return {**({"$id": name} if name else {}), "properties": {"x": x}, "$defs": defs}


DEFS = {"$defs": {"A": {**INTEGER, "allOf": [{"$ref": "#"}]}}}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({**DEFS, "$ref": "#/$defs/A"}, 5),
        ({"allOf": [OTHER, INTEGER]}, 5),
        ({**OTHER, "allOf": [{"$ref": "#/$defs/A"}], **DEFS}, 5),
        ({"oneOf": [OTHER, INTEGER]}, 5),
        ({"anyOf": [TEXT, INTEGER]}, "5"),
        ({"properties": {"x": {"anyOf": [{"type": "array"}, {"type": "string"}]}}}, [1]),
        ({"properties": {"x": {"type": ["object", "string"]}}}, {}),
        ({"properties": {"x": {"type": ["object", "string"]}}}, "{a"),
        ({"oneOf": [TEXT]}, "5"),
        ({"if": OTHER, "then": INTEGER, "else": OTHER}, 5),
        ({"additionalProperties": {"type": "integer"}}, 5),
        ({"additionalProperties": True}, 5),
        ({**OTHER, "unevaluatedProperties": {"type": "integer"}}, 5),
        ({**TEXT, "unevaluatedProperties": {"type": "integer"}}, "5"),
        ({**OTHER, "dependentSchemas": {"y": INTEGER}}, 5),
        (of({"enum": [0.5, 1.0]}), 1),
        (of({"type": "number", "enum": [0.5, 1.0]}), 1),
        (of({"type": "integer", "enum": [1.0, 2.0]}), 1),
        (of({"const": 2.0}), 2),
        (of({"$ref": "#N"}, N={"$anchor": "N", "type": "string"}), "5"),
        (of({"$ref": "#N"}, N={"$id": "#N", "type": "string"}), "5"),
        (of({"$ref": "https://a/s#/$defs/N"}, "https://a/s", N={"type": "string"}), "5"),
        (of({"$ref": "s#/$defs/N"}, "https://a/s", N={"type": "string"}), "5"),
        (of({"$ref": "n"}, "https://a/s", N={"$id": "https://a/n", "type": "string"}), "5"),
        (
            of({"$ref": "n#/$defs/M"}, "https://a/s", N={"$id": "n", "$defs": {"M": {"$ref": "#"}}, "type": "string"}),
            "5",
        ),
        (of({"$ref": "#N"}, "urn:s", N={"$anchor": "N", "type": "string"}), "5"),
        (of({"$dynamicRef": "#n"}, N={"$dynamicAnchor": "n", "type": "string"}), "5"),
        (
            of(
                {"$dynamicRef": "t#n"},
                "https://a/s",
                N={"$dynamicAnchor": "n", "type": "string"},
                T={"$id": "t", "$dynamicAnchor": "n", "type": "integer"},
            ),
            "5",
        ),
        (of({"$ref": "#lost"}), 5),
        (of({"$ref": "http://[a"}, "http://[b"), 5),
        ({"patternProperties": {"^x$": {"type": "string"}}, "additionalProperties": {"type": "integer"}}, "5"),
    ],
)
@pytest.mark.parametrize("name", ["qwen_xml", "mimo", "seed_oss", "minimax_m2", "muse_glimmer", "glm"])
def test_a_property_is_found_wherever_the_schema_declares_it(name: str, schema: dict[str, Any], expected: Any) -> None:
    tools = [{"name": "f", "inputSchema": {"json": schema}}]
    sampled = render(get_tool_parser(name), "f", {"x": expected}, tools=tools)
    assert only(get_tool_parser(name).parse(sampled, tools=tools)).input == {"x": expected}
    assert '"' not in sampled.replace('name="', "").replace('">', "")  # printed bare


def test_a_schema_that_refers_to_itself_many_times_costs_linear_time() -> None:
    defs = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 9, **INTEGER} for i in range(90)}
    schema = {"$defs": defs, "properties": {"y": {"$ref": "#/$defs/d0"}}, "anyOf": [{"$ref": "#/$defs/d0"}] * 9}
    tools = [{"name": "f", "inputSchema": {"json": schema}}]
    sampled = qwen("<parameter=x>5</parameter><parameter=y>6</parameter>")
    assert only(get_tool_parser("qwen_xml").parse(sampled, tools=tools)).input["x"] == 5


def test_dsml_values_are_what_their_tag_says() -> None:
    values = parameter("text", '{"a": [null]}', "false"), parameter("count", " 3 "), parameter("n", "3", "false")
    call = only(get_tool_parser("deepseek_v32").parse(dsml(invoke(*values)), tools=SPECS))
    assert call.input == {"text": {"a": [None]}, "count": " 3 ", "n": 3}


IDS = [
    ("kimi_k2", kimi(kimi_call("{}", "\n functions.web-search:12 \n")), "web-search", "functions.web-search:12"),
    ("kimi_k2", kimi(kimi_call("{}", "functions.a.sub_tool:0")), "a.sub_tool", "functions.a.sub_tool:0"),
    ("kimi_k2", kimi(kimi_call("{}", "functions.f")), "f", "functions.f"),
    ("kimi_k2", kimi(kimi_call("{}", "f:0")), "f", "f:0"),
    ("mistral", '[TOOL_CALLS] f [CALL_ID] QZid00001 [ARGS]{"x": 1}', "f", "QZid00001"),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}, "id": "QZid00001"}]', "f", "QZid00001"),
    ("command", '<|START_ACTION|>[{"tool_call_id": "3", "tool_name": "f", "parameters": {}}]<|END_ACTION|>', "f", None),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"x": 1}', "f", None),
    ("solar_open", solar(solar_call(model_id="q9")), "f", "q9"),
    ("qwen_xml", qwen("", "my-tool_v2.0"), "my-tool_v2.0", None),
    ("glm", glm("", "my-tool_v2.0"), "my-tool_v2.0", None),
]


@pytest.mark.parametrize(("name", "sampled", "tool", "model_id"), IDS)
def test_the_name_and_the_id_that_the_model_prints(name: str, sampled: str, tool: str, model_id: str | None) -> None:
    call = only(get_tool_parser(name).parse(sampled))
    assert (call.name, call.model_id, call.error) == (tool, model_id, None)


# ---- malformed calls


MALFORMED = [
    ("hermes", hermes('{"name": "f", "arguments": {broken}}'), "f", "not valid JSON: .* at character 29"),
    ("hermes", hermes('{"name": "f", "arguments": {"x": 1}}}'), "f", "Extra data"),
    ("hermes", hermes('{"name": "f", "arguments": {"x": 1, "x": 2}}'), "f", "key 'x' is given twice"),
    ("hermes", hermes('{"name": "f", "arguments": {"x": NaN}}'), "f", "NaN is not a JSON value"),
    ("hermes", hermes('{"name": "f", "arguments": {"x": 1e999}}'), "f", "too large"),
    ("hermes", hermes('{"name": "f", "arguments": {"x": 1e-400}}'), "f", "too small"),
    ("hermes", hermes('{"name": "f", "arguments": {"x": "\\ud800"}}'), "f", "surrogate"),
    ("hermes", hermes('{"name": "f", "arguments": {"x": "a\nb"}}'), "f", "Invalid control character"),
    ("hermes", hermes('{"name": "f", "arguments": {"x": ' + "1" * 5000 + "}}"), "f", "too many digits"),
    ("hermes", hermes('{"name": "f", "arguments": ' + "[" * 100_000 + "}"), "f", "nested too deeply|not valid JSON"),
    ("hermes", hermes('{"name": "f", "arguments": {"x": ' + "[" * 195 + "]" * 195 + "}}"), "f", "nested too deeply"),
    ("hermes", hermes('{"name": "f", "arguments": "{}"}'), "f", "not a JSON object"),
    ("hermes", hermes('{"name": "f", "parameters": {"x": 1}}'), "f", "unexpected key 'parameters'"),
    ("hermes", hermes('{"arguments": {"x": 1}}'), UNKNOWN_TOOL_NAME, 'no "name"'),
    ("hermes", hermes('{"name": "", "arguments": {}}'), UNKNOWN_TOOL_NAME, 'no "name"'),
    ("hermes", hermes("null"), UNKNOWN_TOOL_NAME, "not a JSON object"),
    ("kimi_k2", kimi(kimi_call("{bad json}")), "f", "not valid JSON"),
    ("kimi_k2", kimi(kimi_call("{}", "")), UNKNOWN_TOOL_NAME, "no tool name"),
    ("kimi_k2", kimi("<|tool_call_begin|>functions.f:0{}<|tool_call_end|>"), UNKNOWN_TOOL_NAME, "begin.. is missing"),
    ("kimi_k2", kimi(kimi_call("{}").removesuffix("<|tool_call_end|>")), "f", "tool_call_end.. is missing"),
    ("kimi_k2", kimi("prose"), UNKNOWN_TOOL_NAME, "text stands where"),
    ("qwen_xml", "<tool_call>\n<parameter=x>1</parameter>\n</tool_call>", UNKNOWN_TOOL_NAME, "<function=...> was"),
    ("qwen_xml", "<tool_call><function=f</tool_call>", UNKNOWN_TOOL_NAME, "no valid name"),
    ("qwen_xml", qwen("<parameter=x>1</parameter><parameter=x>2</parameter>"), "f", "'x' is given twice"),
    ("qwen_xml", qwen("<parameter=x>a</parameter> b\n</parameter>"), "f", "found 'b\\\\n</parameter>"),
    ("qwen_xml", qwen("<parameter=x>1\n<parameter=y>2</parameter>"), "f", "'x' contains <parameter="),
    ("qwen_xml", qwen("<parameter=x>1\n"), "f", "'x' is not closed"),
    ("qwen_xml", qwen("<parameter=x>1</function>\n</parameter>"), "f", "'x' contains </function>"),
    ("qwen_xml", "<tool_call><function=f></function> more</tool_call>", "f", "'more' behind </function>"),
    ("qwen_xml", "<tool_call><function=f><parameter=x>1</parameter></tool_call>", "f", "the call ends"),
    ("glm", glm("prose\n"), "f", "tool name was expected"),
    ("glm", glm("<arg_key>x</arg_key>"), "f", "the call ends where <arg_value> was expected"),
    ("glm", glm("<arg_key>x</arg_key>stray<arg_value>1</arg_value>"), "f", "found 'stray"),
    ("glm", glm("<arg_key>x</arg_key><arg_value>1"), "f", "not closed by </arg_value>"),
    ("glm", glm("<arg_key>x</arg_key><arg_value>1" + pair("y", "2")), "f", "contains <arg_key>"),
    ("glm", glm("<arg_key>x<arg_value>1</arg_value>"), "f", "not closed by </arg_key>"),
    ("glm", glm("<arg_key></arg_key><arg_value>1</arg_value>"), "f", "<arg_key> is empty"),
    ("glm", glm("<arg_key>x</arg_key><arg_value>1</arg_value>" * 2), "f", "'x' is given twice"),
    ("mistral", '[TOOL_CALLS]{"name": "f", "arguments": {}}', "f", "not a JSON list"),
    ("mistral", "[TOOL_CALLS][]", UNKNOWN_TOOL_NAME, "empty"),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}, "id": 7}]', "f", '"id" is not a string'),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}}] ok', "f", "Extra data"),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "0"}]', "f", "nine letters"),
    ("mistral", "[TOOL_CALLS]f[CALL_ID][ARGS]{}", "f", "nine letters"),
    ("mistral", '[TOOL_CALLS]f{"x": 1}', UNKNOWN_TOOL_NAME, r"\[ARGS\] is missing"),
    ("mistral", "[TOOL_CALLS][ARGS]{}", UNKNOWN_TOOL_NAME, "no valid tool name"),
    ("llama_json", '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', "f", "Extra data"),
    ("llama_json", '{"type": "function", "name": "f", "parameters": {}}', "f", "unexpected key 'type'"),
    ("llama_json", '{"name": "f", "parameters": {oops}}', "f", "not valid JSON: Expecting property name"),
    ("llama_json", '<|python_tag|>search.call(query="x")', UNKNOWN_TOOL_NAME, "not valid JSON"),
    ("gemma4", "<|tool_call>f{}<tool_call|>", UNKNOWN_TOOL_NAME, "call:NAME"),
    ("gemma4", "<|tool_call>call:f{x:one}<tool_call|>", "f", "a value was expected"),
    ("gemma4", "<|tool_call>call:f{x:1,x:2}<tool_call|>", "f", "given twice"),
    ("gemma4", "<|tool_call>call:f{x:1,}<tool_call|>", "f", "a key was expected"),
    ("gemma4", "<|tool_call>call:f [1]<tool_call|>", "f", r"found ' \[1.*where \{ was expected"),
    ("gemma4", f"<|tool_call>call:f{{x:{'[' * 5000}<tool_call|>", "f", "nested too deeply"),
    ("deepseek_v32", dsml(invoke(parameter("x", "1", "maybe"))), "f", "not of the kinds"),
    ("deepseek_v32", dsml(invoke(parameter("x", "one", "false"))), "f", "not valid JSON"),
    ("kimi_k3", k3_tools(k3(k3_argument("x", "one", "number"))), "f", "type=number and is not valid JSON"),
    ("kimi_k3", k3_tools(k3(k3_argument("x", '"1"', "number"))), "f", "type=number and is of type string"),
    ("kimi_k3", k3_tools(k3(k3_argument("x", "1", "integer"))), "f", "not of the kinds"),
    ("kimi_k3", k3_tools(k3(k3_argument("&amp;", ""), k3_argument("&", ""))), "f", "'&' is given twice"),
    ("kimi_k3", k3_tools(k3(k3_json("[1]"))), "f", "not a JSON object"),
    ("kimi_k3", k3_tools(k3(k3_json("{}"), k3_argument("x", "1"))), "f", "is not closed by"),
    ("kimi_k3", k3_tools(k3().replace(' index="1"', "")), UNKNOWN_TOOL_NAME, "not of the kinds"),
    ("minimax_m3", m3(m3_call("^<x>1^</x>^<x>2^</x>")), "f", "'x' is given twice"),
    ("minimax_m3", m3(m3_call("^<x>^<a>1^</a>^<a>2^</a>^</x>")), "f", "'a' is given twice"),
    ("minimax_m3", m3(m3_call("stray")), "f", "found 'stray"),
    ("minimax_m3", m3(m3_call("^<x>a^<b>1^</b>^</x>")), "f", "found 'a"),
    ("minimax_m3", m3(m3_call("^<x>^<b>1^</b>a^</x>")), "f", "found 'a"),
    ("minimax_m3", m3(m3_call("^<x>1^</y>")), "f", "</x> was expected"),
    ("minimax_m3", m3(m3_call("^<x>1")), "f", "</x> was expected"),
    ("minimax_m3", m3(m3_call("^<a\nb>1^</a\nb>")), "f", "an element"),
    ("minimax_m3", m3(m3_call("^<x>" * 200)), "f", "nested too deeply"),
    ("muse_glimmer", muse(to="g"), "f", "the message is to 'g'"),
    ("muse_glimmer", muse(end="</b><|eom|>"), "f", "text stands behind"),
    ("muse_glimmer", muse().replace("<atem:function_calls>\n", ""), "f", "<atem:function_calls> is missing"),
    ("inkling", inkling('{"name":"g","args":{}}'), "g", "the header names 'f'"),
    ("inkling", inkling('{"name":"f","args":{}}', name=""), "f", "names no tool"),
    ("inkling", inkling("f()", kind="invoke_tool_text"), "f", "calls a tool by JSON"),
    ("functionary_v31", '<function=f>{"x": 1} ok</function>', "f", "Extra data"),
    ("functionary_v31", "<function=a b>{}</function>", UNKNOWN_TOOL_NAME, "no valid name"),
    ("functionary", ">>>f\n{oops}", "f", "JSON is not complete or not valid"),
    ("functionary", '>>>f\n{"x": 1} ok', "f", "Extra data"),
    ("apertus", '<|tools_prefix|>[{"f": {}, "g": {}}]<|tools_suffix|>', "f", "one key"),
    ("apertus", '<|tools_prefix|>[{"f": [1]}]<|tools_suffix|>', "f", "not a JSON object"),
    ("nemotron", '<TOOLCALL>{"name": "f", "arguments": {}}</TOOLCALL>', "f", "not a JSON list"),
    ("xlam", '[{"name": "f", "arguments": {}}] ok', "f", "Extra data"),
    ("olmo3", "<function_calls>f(x='a')</function_calls>", "f", "not valid JSON"),
    ("olmo3", "<function_calls>f(1)</function_calls>", "f", "KEY= was expected"),
    ("olmo3", "<function_calls>f(x=1 y=2)</function_calls>", "f", ", or \\) was expected"),
    ("olmo3", "<function_calls>f(x=1, x=2)</function_calls>", "f", "given twice"),
    ("gpt_oss", "<|channel|>commentary to=functions.f json<|message|>{}<|end|>", "f", re.escape("<|call|> is missing")),
    ("gpt_oss", "<|channel|>commentary to=functions.f code<|message|>{}<|call|>", "f", "header is not of the form"),
    ("gpt_oss", "<|channel|>analysis to=functions.f<|message|>{}<|call|>", "f", "header is not"),
    ("gpt_oss", "<|channel|>commentary to=browser.open<|message|>{}<|call|>", "browser.open", "header is not"),
    ("gpt_oss", " to=functions.f<|channel|>commentary to=functions.f<|message|>{}<|call|>", "f", "header is not"),
    ("gpt_oss", "<|channel|>commentary to=functions.f  <|constrain|>json<|message|>{}<|call|>", "f", "header is not"),
    ("gpt_oss", "<|channel|>commentary json to=functions.f<|message|>{}<|call|>", "f", "header is not"),
    ("gpt_oss", "<|start|>assistant<|channel|>commentary to= functions.f<|message|>{}<|call|>", "f", "header is not"),
    ("gpt_oss", '<|channel|>commentary to=functions.f{"x": 1}<|call|>', "f", "header is not of the form"),
    ("gpt_oss", '<|channel|>commentary to=functions.f{"x": 1}', "f", re.escape("<|call|> is missing")),
    ("gpt_oss", "to=functions.f <|constrain|>json<|message|>{}<|call|>", "f", "header is not of the form"),
    ("gpt_oss", "<|channel|>commentary json<|message|>{}<|call|>", UNKNOWN_TOOL_NAME, "has no recipient"),
]
PARTS = {"apertus", "functionary", "gpt_oss", "inkling", "kimi_k2", "mistral", "muse_glimmer", "solar_open", "xlam"}
"""Families of which a malformed call is not all that stands between the markers."""


@pytest.mark.parametrize(("name", "sampled", "tool", "error"), MALFORMED)
def test_malformed_calls_say_why(name: str, sampled: str, tool: str, error: str) -> None:
    parser = get_tool_parser(name)
    output = parser.parse_all(sampled)
    call = only([*output.calls, *([output.unclosed_call] if output.unclosed_call else [])])
    assert (call.name, call.input, call.is_error, output.text) == (tool, {}, True, "")
    assert re.search(error, str(call.error)), call.error
    inner = sampled.removeprefix(parser.tool_start_token).removesuffix(parser.tool_end_token).strip()
    assert call.raw == inner or (name in PARTS and call.raw is not None and call.raw in sampled)
    assert name != "gpt_oss" or "<|" not in str(call.error) or "missing" in str(call.error)  # a header for the template


# ---- which calls, and what text is left

ARGUMENTS = '[{"name": "b", "arguments": {"x": 1}}, {"name": "a", "arguments": {}}]'
PARAMETERS = '[{"tool_name": "b", "parameters": {"x": 1}},\n    {"tool_name": "a", "parameters": {}}]'
PARALLEL = [
    ("kimi_k2", kimi(kimi_call('{"x": 1}', "functions.b:0"), kimi_call("{}", "functions.a:1"))),
    ("mistral", f"[TOOL_CALLS]{ARGUMENTS}"),
    ("mistral", '[TOOL_CALLS]b[ARGS]{"x": 1}[TOOL_CALLS]a[ARGS]{}'),
    ("granite", f"<|tool_call|>{ARGUMENTS}"),
    ("nemotron", f"<TOOLCALL>{ARGUMENTS}</TOOLCALL>"),
    ("command", f"<|START_ACTION|>{PARAMETERS}<|END_ACTION|>"),
    ("command_r_plus", f"Action:\n```json\n{PARAMETERS}```"),
    ("apertus", '<|tools_prefix|>[{"b": {"x": 1}}, {"a": {}}]<|tools_suffix|>'),
    ("minimax_m1", '<tool_calls>\n{"name": "b", "arguments": {"x": 1}}\n{"name": "a", "arguments": {}}\n</tool_calls>'),
    ("xlam", ARGUMENTS),
    ("olmo3", "<function_calls>b(x=1)\na()</function_calls>"),
    ("deepseek_v32", dsml(invoke(parameter("x", "1", "false"), name="b"), invoke(name="a"))),
    ("deepseek_v4", v4(invoke(parameter("x", "1", "false"), name="b"), invoke(name="a"))),
    ("kimi_k3", k3_tools(k3(k3_argument("x", "1", "number"), name="b"), k3(name="a"))),
    ("minimax_m3", m3(m3_call("^<x>1^</x>", "b"), m3_call("", "a"))),
    ("solar_open", solar(solar_call('{"x": 1}', "b"), solar_call("{}", "a"))),
    ("functionary", '>>>b\n{"x": 1}>>>a\n{}'),
]


@pytest.mark.parametrize(("name", "sampled"), PARALLEL)
def test_parallel_calls_keep_their_order(name: str, sampled: str) -> None:
    before = "" if name == "xlam" else "Sure. "
    output = get_tool_parser(name).parse_all(before + sampled, tools=[{"name": "b", "inputSchema": {"json": INTEGER}}])
    assert [(call.name, call.input, call.error) for call in output.calls] == [("b", {"x": 1}, None), ("a", {}, None)]
    assert output.text == before
    (b_start, b_end), (a_start, a_end) = (call.span for call in output.calls)
    assert b_start < b_end <= a_start < a_end


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
MUSE = " to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>I look.<|eom|>"
INKLING = "<|content_thinking|>Hm.<|end_message|><|message_model|><|content_text|>I look.<|end_message|>"
SOLAR = "<|think|>Hm.<|end|><|begin|>assistant<|content|>I look.<|end|>"
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
    ("muse_glimmer", MUSE + muse(), "f", "I look."),
    ("muse_glimmer", f"{MUSE}<|start|>assistant<|message|> Yes.", "", "I look. Yes."),
    ("muse_glimmer", " to=self<|message|>So" + muse(start=""), "f!", ""),
    ("muse_glimmer", " to=self<|message|>So to=user<|message|>I look.", "", "I look."),
    ("muse_glimmer", muse(end="junk<|eom|>") + muse(), "f! f", ""),
    ("inkling", INKLING + inkling('{"name":"f","args":{}}') + f"<|message_model|>{INKLING}", "f", "I look.I look."),
    ("inkling", INKLING + 'f<|content_invoke_tool_json|>{"name":"f","args":{}}<|end_message|>', "f!", "I look.f"),
    ("solar_open", SOLAR + solar(solar_call()), "f", "I look."),
    ("solar_open", SOLAR + solar_call(), "f!", "I look."),
    ("functionary", 'all\nSee:>>>f\n{"x": 1}>>>all\nok', "f", "all\nSee:ok"),
    ("functionary", 'all\n{"x": 1} >>> f(1)\n>>>f\n1', "", 'all\n{"x": 1} >>> f(1)\n>>>f\n1'),
    ("functionary", ' f\n{"x": 1}', "f", ""),  # a grammar of a forced call allows the blank
    ("nemotron", LIST, "f! g", ""),
    ("minimax_m1", LINES, "f g", ""),
    ("minimax_m1", '<tool_calls>\n{"name": "g"}\noops\n{"name": "f"}\n</tool_calls>', "g f!", ""),
    ("mistral", "[TOOL_CALLS]f[ARGS]{oops}[TOOL_CALLS]g[ARGS]{}[TOOL_CALLS]h", "f! g unknown_tool!", ""),
    ("hermes", '<tool_call>{"name": "a"}</tool_call>\n<tool_call>{x}</tool_call>', "a unknown_tool!", "\n"),
    ("hermes", '<tool_call><tool_call>{"name": "f"}</tool_call></tool_call>', "f!", ""),
    ("qwen_xml", qwen("<parameter=x>a </tool_call> b"), "f!", ""),
    ("kimi_k2", kimi("prose" + kimi_call("{}")), "unknown_tool! f", ""),
    ("kimi_k2", kimi(kimi_call("{bad") + kimi_call("{}")), "f! f", ""),
    ("hermes", hermes('{"name": "f", "arguments": {"q": "</tool_call>"}}}') + " ok", "f!", " ok"),
]
"""The calls by name, malformed ones with a `!`, and the text beside them."""

FUNCTION = "<function=f>\n</function>"
KIMI_REST = "f:0<|tool_call_argument_begin|>{}"
HALVES = [
    ("qwen_xml", f"{FUNCTION} and {FUNCTION}</tool_call> so {qwen('')}", "f! f", " so "),
    ("qwen_xml", f"`<function=f>` begins it.\n{FUNCTION}\n\nDone.", "f!", "`<function=f>` begins it.\n"),
    ("qwen_xml", f"See {FUNCTION.replace('f>', 'g>')} {FUNCTION}", "f!", "See <function=g>\n</function> "),
    ("qwen_xml", f"See {FUNCTION.replace('=f', '=g')}</tool_call>", "g!", "See "),
    ("minimax_m2", '<invoke name="f"></invoke><invoke name="f"></invoke></minimax:tool_call>', "f!", ""),
    ("hermes", '{"name": "f", "arguments": {"x": "</tool_call>", "y": "`a"}}\n</tool_call>', "f!", ""),
    ("glm", "Sure.\nf<arg_key>x</arg_key><arg_value>1</arg_value>", "f!", "Sure.\n"),
    ("kimi_k2", "f:0<|tool_call_argument_begin|>{}<|tool_call_end|>", "unknown_tool!", KIMI_REST),
    ("olmo3", "I used f(x=1).", "", "I used f(x=1)."),
    ("mistral", 'So f[ARGS]{"x": 1}', "f!", "So "),
    ("mistral", 'So [{"name": "f", "arguments": {}}]', "f!", "So "),
    ("command", '[{"tool_call_id": "0", "tool_name": "f", "parameters": {}}]<|END_ACTION|>', "f!", ""),
    ("gpt_oss", "<|channel|>final<|message|>{}<|call|>", "unknown_tool!", ""),
]
"""The same, with a declared tool `f`: calls outside of a block."""


@pytest.mark.parametrize(("name", "sampled", "calls", "text"), [*READ, *HALVES])
def test_the_calls_and_the_text_beside_them(name: str, sampled: str, calls: str, text: str) -> None:
    tools = SPECS if (name, sampled, calls, text) in HALVES else None
    output = get_tool_parser(name).parse_all(sampled, tools=tools)
    assert " ".join(call.name + "!" * call.is_error for call in output.calls) == calls
    assert (output.text, output.unclosed_call) == (text, None)
    for call in output.calls:
        assert call.raw is None or call.raw in sampled[slice(*call.span)]


def test_a_malformed_call_has_its_remains_up_to_the_last_end_marker() -> None:
    sampled = qwen("<parameter=x>a </tool_call> b") + " so </tool_call>!"
    output = get_tool_parser("qwen_xml").parse_all(sampled)
    call = only(output.calls)
    assert (call.raw, output.text) == (sampled[len("<tool_call>\n") : -len("</tool_call>!")].strip(), "!")
    assert sampled[slice(*call.span)] == sampled.removesuffix("</tool_call>!")


def test_gpt_oss_messages_are_text_or_reasoning_by_their_channel() -> None:
    parser, cut = get_tool_parser("gpt_oss"), CALL.removesuffix("<|call|>")
    sampled = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look. <|end|>"
        f"<|start|>assistant<|channel|>analysis<|message|>So.<|end|><|start|>assistant{CALL}"
        "<|start|>assistant<|channel|>final<|message|>Done.<|return|>"
    )
    output = parser.parse_all(sampled)
    assert (output.text, output.reasoning, only(output.calls).name) == ("I look. Done.", "Hm.\nSo.", "f")
    output = parser.parse_all(f"{THOUGHT}<|start|>assistant{cut}", read_calls=False)
    assert (output.text, output.reasoning, output.calls) == ('{"x": 1}', "Hm, {}?", ())


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
