"""Parsers against what public chat templates print for a structured call: the format the models were trained on.

Without the recorded templates, one of our own stands for each family.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tool_call_writer import write

from strands_sglang.conversation.tool_calls import PrintedCalls, check_names, choose_tool_parser
from strands_sglang.exceptions import ToolParserError
from strands_sglang.template import ChatTemplate, DeltaRenderer
from strands_sglang.tool_parsers import TOOL_PARSER_REGISTRY, ParameterTypes, get_tool_parser
from tests.conftest import SHARED, SHARED_MISSING
from tests.unit import family_templates

FAMILIES = {
    "hermes": "qwen2.5-7b-instruct qwen3-0.6b qwen3-4b-thinking-2507 qwq-32b hermes-2-pro granite-4.0 exaone-4",
    "qwen_xml": "qwen3-coder-30b qwen3.5-4b qwen3.6-35b-a3b nemotron-3-nano kat-coder step-3.5-flash",
    "mimo": "mimo-v2-flash",
    "seed_oss": "seed-oss",
    "glm": "glm-4.5 glm-4.6 glm-4.7-flash glm-5",
    "kimi_k2": "kimi-k2-instruct kimi-k2-0905 kimi-k2-thinking kimi-k2.5",
    "minimax_m2": "minimax-m2 minimax-m2.5",
    "deepseek_v31": "deepseek-v3.1",
    "deepseek_v3": "deepseek-v3-trl deepseek-v3-vllm deepseek-r1-vllm deepseek-r1-distill-qwen",
    "deepseek_v32": "deepseek-v3.2",
    "mistral": "mistral-7b-v0.3 mistral-nemo-2407 mistral-vllm mistral-small-3.2 mistral-small-4 mistral-large-3 "
    "ministral-3-instruct ministral-3-reasoning devstral-small-2507",
    "llama_json": "llama-3.1-8b llama-3.2-3b llama-3.1-json-vllm llama-4-json-vllm",
    "gpt_oss": "gpt-oss-120b",
    "gemma4": "gemma-4-31b gemma-4-31b-interleaved",
    "granite": "granite-vllm",
    "nemotron": "nemotron-nano-v2 nemotron-super-49b-v1.5",
    "command": "command-r7b command-a-plus",
    "command_r_plus": "command-r-plus",
    "apertus": "apertus-8b",
    "minimax_m1": "minimax-m1",
    "xlam": "xlam-2-8b",
    "olmo3": "olmo-3-instruct",
    "longcat": "longcat-flash",
    "intern_s1": "intern-s1",
    "gigachat": "gigachat3.1",
    "deepseek_v4": "own-deepseek_v4",
    "kimi_k3": "own-kimi_k3",
    "minimax_m3": "own-minimax_m3 minimax-m3",
    "muse_glimmer": "own-muse_glimmer",
    "inkling": "own-inkling",
    "solar_open": "own-solar_open solar-open",
    "functionary": "own-functionary functionary-v3.2",
    "functionary_v31": "own-functionary_v31",
}
WITHOUT_PARSER = {
    "falcon3",  # history in another form than the one the system text asks for
    "gemma-3-pythonic-vllm",  # prints no comma between arguments
    "llama-4",  # text between python tags in the history, bare JSON asked for
    "phi-4-mini-vllm",  # prints Python's repr as arguments
    "step3",  # history with another begin marker than the one the system text asks for
}
CASES = [(parser, template) for parser, templates in FAMILIES.items() for template in templates.split()]

ARGUMENTS: dict[str, Any] = {
    "text": "Zürich, 'two' \"words\"",
    "code": "def f(x):\n    return x < 1 && '\\n'",
    "count": 3,
    "items": ["a", {"b": None}],
}
STRINGS = {"text": ARGUMENTS["text"], "code": ARGUMENTS["code"]}  # all that Seed-OSS's template can print
PRINTED = {"seed_oss": STRINGS, "minimax_m3": {**ARGUMENTS, "items": ["a", "5"]}}  # null is left out by MiniMax M3
DELICATE = [
    "a\n",
    "\na",
    "\n",
    "\n\n",
    "  a ",
    "",
    "5",
    "true",
    "None",
    '"q"',
    "[]",
    "{}",
    "a\tb\r\nc",
    "🚀 </b> & <i>",
]


def tools_of(properties: dict[str, Any], name: str = "probe") -> list[dict[str, Any]]:
    """One tool in the form of chat templates."""
    schema = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    return [{"type": "function", "function": {"name": name, "description": "Probes.", "parameters": schema}}]


TOOLS = tools_of(
    {
        "text": {"type": "string", "description": "t"},
        "code": {"type": "string", "description": "c"},
        "count": {"type": "integer", "description": "n"},
        "items": {"type": "array", "description": "i", "items": {"type": "string"}},
    }
)
PROBE_TOOLS = tools_of({name: {"type": "string", "description": name} for name in ("city", "note")}, "probe_tool")


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, str]]:
    own = {
        f"own-{family.parser}.jinja": as_row(family.template, family.stops, family.specials)
        for family in family_templates.FAMILIES
    }
    if not SHARED.is_dir():
        firsts = {parser: f"{templates.split()[0]}.jinja" for parser, templates in FAMILIES.items()}
        missing = {parser for parser, file in firsts.items() if file not in own} - {*NESTED}
        return own | {firsts[parser]: own_template(parser) for parser in missing}
    with (SHARED / "data" / "chat_templates" / "index.tsv").open(encoding="utf-8", newline="") as file:
        return own | {row["file"]: row for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)}


def test_every_parser_has_templates_here_and_a_row_in_the_docs():
    page = (Path(__file__).parents[4] / "docs" / "tool-parsers.md").read_text(encoding="utf-8")
    classes = {TOOL_PARSER_REGISTRY[name] for name in FAMILIES}
    assert classes == set(TOOL_PARSER_REGISTRY.values())
    assert [name for name in TOOL_PARSER_REGISTRY if f"`{name}`" not in page] == []


@pytest.mark.parametrize(("parser_name", "template"), CASES)
def test_the_family_alone_reads_what_its_template_prints(rows, parser_name, template):
    parser, row = get_tool_parser(parser_name), row_of(rows, template)
    expected = PRINTED.get(parser_name, ARGUMENTS)
    delicate = {f"text{index}": text for index, text in enumerate(DELICATE)}
    strings = tools_of({name: {"type": "string", "description": name} for name in delicate})
    for values, tools in ((expected, TOOLS), (delicate, strings)):
        printed = printed_call(row, values, tools)
        if parser.tool_end_token not in printed:
            printed += parser.tool_end_token  # a stop token, which the engine gives but a call as printed leaves out
        calls = parser.parse(printed, tools=tools)
        assert [(call.name, call.input, call.error) for call in calls] == [("probe", values, None)], printed
    printed = printed_call(row, expected, TOOLS)
    for other in others(parser_name):
        good = [call for call in get_tool_parser(other).parse(printed, tools=TOOLS) if not call.is_error]
        assert [call.input for call in good] in ([], [expected]), (other, printed)


READABLE = ["Due Date (UTC)", "filter[status]", "it's", 'say "hi"', "ключ", "a/b"]
MARKED = ["a<b", "a>b", " a", "a ", "a\nb", 'a">b']
REFUSED = {  # names that a format prints bare, and cannot express
    **dict.fromkeys(("qwen_xml", "mimo", "seed_oss", "minimax_m2", "deepseek_v32"), MARKED),
    **dict.fromkeys(("deepseek_v4", "kimi_k3", "muse_glimmer"), MARKED),
    "glm": [" a", "a "],
    "gemma4": [*MARKED, "{id}", "a:b", "a,b", '"q"'],
    "olmo3": [*MARKED, "{id}", "a=b", "a,b", '"q"'],
    "minimax_m3": ["a<b", "a>b", "a\nb", 'a">b'],
}
NAMES = [*READABLE, "{id}", "a:b", "a,b", "a=b", '"q"', *MARKED]


@pytest.mark.parametrize(("parser_name", "templates"), FAMILIES.items(), ids=FAMILIES)
def test_a_parameter_name_is_read_as_printed_or_its_tool_is_refused_at_the_start(rows, parser_name, templates):
    parser, row = get_tool_parser(parser_name), row_of(rows, templates.split()[0])
    for name in NAMES:
        tools = tools_of({name: {"type": "string", "description": "d"}})
        if name in REFUSED.get(parser_name, ()):
            match = f"'probe' has a parameter named {re.escape(repr(name))}.*rename it"
            with pytest.raises(ToolParserError, match=match):
                check_names(parser, renderer(row, tools))
            continue
        check_names(parser, renderer(row, tools))
        printed = printed_call(row, {name: "value"}, tools)
        calls = parser.parse(printed if parser.parse(printed) else printed + parser.tool_end_token, tools=tools)
        assert [(call.input, call.error) for call in calls] == [({name: "value"}, None)]


UNQUOTED = ["a b", 'say "f"', "a<b", "a{b", " a", "a\nb"]  # what no format without quotes can express
RAW = ['say "f"', "a\nb"]  # what most templates print between quotes, as it is
REFUSED_TOOLS = {
    **dict.fromkeys(FAMILIES, RAW),
    **dict.fromkeys(("kimi_k2", "mistral", "granite"), ()),
    **dict.fromkeys(("deepseek_v3", "deepseek_v31"), (" a",)),
    **dict.fromkeys((*REFUSED, "gpt_oss"), UNQUOTED),
    **dict.fromkeys(("olmo3", "functionary"), (*UNQUOTED, "a/b", "a:b", "$f", "f(x)", "f:0")),
    "inkling": ["a<b", " a"],
    "functionary_v31": UNQUOTED,
    "solar_open": [" a"],
}
RESERVED = {"functionary": ["all"], "muse_glimmer": ["self", "user"]}  # recipients that are no tools
REFUSED_OWN = {"granite": RAW, "mistral": UNQUOTED}  # our templates print a name as it is


@pytest.mark.parametrize(("parser_name", "templates"), FAMILIES.items(), ids=FAMILIES)
def test_a_tool_name_is_read_as_printed_or_its_tool_is_refused_at_the_start(rows, parser_name, templates):
    parser, row = get_tool_parser(parser_name), row_of(rows, templates.split()[0])
    for name in [*UNQUOTED, "a/b", "a:b", "$f", "f(x)", "f:0", "a.b", "functions.f", "名", "all", "self", "user"]:
        tools = tools_of({"x": {"type": "string", "description": "d"}}, name)
        is_refused = name in (REFUSED_TOOLS if "file" in row else REFUSED_TOOLS | REFUSED_OWN)[parser_name]
        is_refused = is_refused or name in RESERVED.get(parser_name, ())
        match = re.escape(f"the tool {name!r} has a name, which")
        with pytest.raises(ToolParserError, match=match) if is_refused else nullcontext():
            check_names(parser, renderer(row, tools))


def test_names_inside_of_an_argument_count_where_they_are_printed_bare(rows):
    inner = tools_of({"x": {"type": "object", "properties": {"a:b": {"type": "string", "description": "d"}}}})
    for parser_name, template in CASES:
        if f"{template}.jinja" not in rows:
            continue
        refused = pytest.raises(ToolParserError, match="'a:b'") if parser_name == "gemma4" else nullcontext()
        with refused:
            check_names(get_tool_parser(parser_name), renderer(rows[f"{template}.jinja"], inner))


def test_every_template_that_prints_calls_chooses_its_family(rows):
    chosen: dict[str, Any] = {}
    for file, row in rows.items():
        printed = PrintedCalls.of(renderer(row, PROBE_TOOLS))
        try:
            chosen[file.removesuffix(".jinja")] = type(choose_tool_parser(printed))
        except ToolParserError:
            if printed.texts:
                chosen[file.removesuffix(".jinja")] = None
    expected = {name: type(get_tool_parser(parser)) for parser, name in CASES if f"{name}.jinja" in rows}
    without = WITHOUT_PARSER if SHARED.is_dir() else set()
    assert {name: chosen.get(name) for name in (*expected, *without)} == expected | dict.fromkeys(without)
    assert {name for name, family in chosen.items() if family is None} == without


def others(parser_name: str) -> Iterator[str]:
    same = {"mimo", "qwen_xml"}  # they differ in what is layout only, so which one it is, the template has to say
    return (name for name in FAMILIES if name != parser_name and not {name, parser_name} <= same)


def printed_call(row: dict[str, str], arguments: dict[str, Any], tools: list[dict[str, Any]]) -> str:
    printed = renderer(row, tools).printed_call("probe", arguments)
    assert printed is not None
    # Kimi's template prints the id of the message; the model's own ids hold the name.
    return re.sub(r"(?<=<\|tool_call_begin\|>)\w+(?=<\|tool_call_argument)", "functions.probe:0", printed)


def row_of(rows: dict[str, dict[str, str]], template: str) -> dict[str, str]:
    if f"{template}.jinja" not in rows:
        if SHARED.is_dir() or template.startswith("own-"):
            pytest.fail(f"no template {template!r}: add a Family to tests/unit/family_templates.py")
        pytest.skip(SHARED_MISSING)
    return rows[f"{template}.jinja"]


NESTED = ("deepseek_v32", "gemma4", "olmo3")
"""Their values have a notation of their own, which takes more than a few lines of template."""
OWN_TEMPLATE = """{% if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}CALL{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def own_template(parser_name: str) -> dict[str, str]:
    """ChatML that prints calls in the format of a parser, as the writer of calls does."""

    def write_with(arguments: dict[str, str]) -> str:
        return write(parser, "NAME", arguments, None, ParameterTypes(None))

    def literal(text: str) -> str:
        return f"{{{{ {json.dumps(text)} }}}}" if text else ""

    parser = get_tool_parser(parser_name)
    one, two = {"KEY": "VALUE"}, {"KEY": "VALUE", "OTHER": "MORE"}
    if (printed := json.dumps(one)) in write_with(one):
        before, after = write_with(one).split(printed)
        arguments = "{{ call.function.arguments | tojson }}"
    else:
        before, between, after = re.split("KEY|VALUE", write_with(one))
        separator = re.split("VALUE|OTHER", write_with(two))[1]
        value = "{{ value if value is string else value | tojson }}"
        arguments = (
            "{% for key, value in call.function.arguments.items() %}{% if not loop.first %}"
            f"{literal(separator)}{{% endif %}}{{{{ key }}}}{literal(between)}{value}{{% endfor %}}"
        )
    name = "{{ call.function.name }}".join(map(literal, before.split("NAME")))
    special = ["<|im_start|>", "<|im_end|>", parser.tool_start_token, parser.tool_end_token]
    text = OWN_TEMPLATE.replace("CALL", f"{name}{arguments}{literal(after)}")
    return as_row(text, ["<|im_end|>"], [token for token in special if token])


def as_row(text: str, stops: Sequence[str], specials: Sequence[str]) -> dict[str, str]:
    return {
        "text": text,
        "bos_token": '""',
        "eos_token": json.dumps(stops[0]),
        "stop_tokens": json.dumps(stops),
        "special_tokens": json.dumps(specials),
    }


def renderer(row: dict[str, str], tools: list[dict[str, Any]]) -> DeltaRenderer:
    text = row.get("text") or (SHARED / "data" / "chat_templates" / row["file"]).read_text(encoding="utf-8")
    special = {name: json.loads(row[name]) for name in ("bos_token", "eos_token")}
    return DeltaRenderer(
        ChatTemplate(text, special_values=special),
        tools=tools,
        stop_tokens=json.loads(row["stop_tokens"]),
        special_tokens=json.loads(row["special_tokens"]),
    )
