"""Calls written as chat templates print them, in the format of each tool parser: what the tests of parsers read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import singledispatch
from typing import Any

from strands_sglang.tool_parsers import (
    CallKeys,
    ParameterTypes,
    ToolParser,
    gpt_oss,
    json_calls,
    message_formats,
    notations,
    sections,
    tags,
)
from strands_sglang.tool_parsers.json_calls import ARGS, CALL_ID
from strands_sglang.tool_parsers.notations import PREFIX, QUOTE
from strands_sglang.tool_parsers.tags import KEY, VALUE, decode_value
from strands_sglang.tool_parsers.values import ToolSchemas


class InexpressibleError(ValueError):
    """The format cannot express the call, e.g. because a value contains one of its tags."""


def render(
    parser: ToolParser,
    name: str,
    arguments: Mapping[str, Any],
    model_id: str | None = None,
    *,
    tools: ToolSchemas | None = None,
) -> str:
    """A call as the model would write it; `parser` with the same `tools` gives it back unchanged.

    Raises:
        InexpressibleError: The format cannot express the call.
    """
    text = write(parser, name, arguments, model_id, ParameterTypes(tools))
    calls = parser.parse(text, tools=tools)
    if len(calls) != 1 or calls[0].name != name or dump_json(calls[0].input) != dump_json(arguments):
        raise InexpressibleError(f"{type(parser).__name__} cannot express {name!r} with {arguments!r}: read as {calls}")
    return text


def dump_json(value: Any) -> str:
    """JSON as chat templates print it: separators `", "` and `": "`, text unescaped."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InexpressibleError(f"{value!r} cannot be written as JSON") from error


def write_object(keys: CallKeys, name: str, arguments: Any, model_id: str | None = None) -> str:
    """A call as a JSON object."""
    printed_id = f', "{keys.id}": {dump_json(model_id)}' if keys.id and model_id is not None else ""
    return f'{{"{keys.name}": {dump_json(name)}, "{keys.arguments}": {dump_json(arguments)}{printed_id}}}'


@singledispatch
def write(parser: Any, name: str, arguments: Any, model_id: str | None, types: ParameterTypes) -> str:
    """A call in the format of a parser, unchecked whether it reads back."""
    raise NotImplementedError(f"say how {type(parser).__name__} writes a call: @write.register in {__name__}")


@write.register(json_calls.HermesToolParser)
@write.register(json_calls.MiniMaxM1ToolParser)
def _(parser: Any, name: str, arguments: Any, *_: Any) -> str:
    return f"{parser.tool_start_token}\n{write_object(parser.KEYS, name, arguments)}\n{parser.tool_end_token}"


@write.register
def _(parser: json_calls.JSONListToolParser, name: str, arguments: Any, model_id: str | None, *_: Any) -> str:
    return f"{parser.tool_start_token}[{write_object(parser.KEYS, name, arguments, model_id)}]{parser.tool_end_token}"


@write.register
def _(parser: json_calls.ApertusToolParser, name: str, arguments: Any, *_: Any) -> str:
    return f"{parser.tool_start_token}[{{{dump_json(name)}: {dump_json(arguments)}}}]{parser.tool_end_token}"


@write.register
def _(parser: json_calls.LlamaJSONToolParser, name: str, arguments: Any, *_: Any) -> str:
    return write_object(parser.KEYS, name, arguments)


@write.register
def _(parser: json_calls.XLAMToolParser, name: str, arguments: Any, *_: Any) -> str:
    return f"[{write_object(parser.KEYS, name, arguments)}]"


@write.register
def _(parser: json_calls.MistralToolParser, name: str, arguments: Any, model_id: str | None, *_: Any) -> str:
    printed_id = "" if model_id is None else f"{CALL_ID}{model_id}"
    return f"{parser.tool_start_token}{name}{printed_id}{ARGS}{dump_json(arguments)}"


@write.register
def _(parser: json_calls.FunctionaryV31ToolParser, name: str, arguments: Any, *_: Any) -> str:
    return f"{parser.tool_start_token}{name}>{dump_json(arguments)}{parser.tool_end_token}"


@write.register
def _(parser: json_calls.FunctionaryToolParser, name: str, arguments: Any, *_: Any) -> str:
    return f"{parser.tool_start_token}{name}\n{dump_json(arguments)}"


@write.register
def _(parser: sections.SectionToolParser, name: str, arguments: Any, model_id: str | None, *_: Any) -> str:
    header = model_id or f"functions.{name}:0" if isinstance(parser, sections.KimiK2ToolParser) else name
    call = f"{parser.CALL.begin}{header}{parser.CALL.separator}{dump_json(arguments)}{parser.CALL.end}"
    return f"{parser.tool_start_token}{call}{parser.tool_end_token}"


@write.register
def _(parser: sections.DeepSeekV3ToolParser, name: str, arguments: Any, *_: Any) -> str:
    call = f"{parser.CALL.begin}{name}\n```json\n{dump_json(arguments)}\n{parser.CALL.end}"
    return f"{parser.tool_start_token}{call}{parser.tool_end_token}"


@write.register
def tagged(parser: tags.TaggedToolParser, name: str, arguments: Any, *_: Any) -> str:
    (before, behind), newline = parser.GRAMMAR.call, "\n" if isinstance(parser, tags.QwenXMLToolParser) else ""
    lines = []
    for key, value in arguments.items():
        is_text = isinstance(value, str)
        kind = f'" string="{str(is_text).lower()}' if isinstance(parser, tags.DeepSeekV32ToolParser) else ""
        printed = f"{newline}{value if is_text else dump_json(value)}{newline}"
        opening, closing = parser.GRAMMAR.parameter
        lines.append(f"{opening}{key}{kind}{closing}{printed}{parser.GRAMMAR.parameter_close}\n")
    call = f"{before}{name}{behind}\n{''.join(lines)}{parser.GRAMMAR.call_close}"
    return f"{parser.tool_start_token}\n{call}\n{parser.tool_end_token}"


@write.register
def _(parser: tags.KimiK3ToolParser, name: str, arguments: Any, *_: Any) -> str:
    def attribute(text: str) -> str:
        return text.replace("&", "&amp;").replace('"', "&quot;")

    values = ""
    for key, value in arguments.items():
        kind, printed = (
            tags.type_of(value).replace("integer", "number"),
            value if isinstance(value, str) else dump_json(value),
        )
        values += f'<|open|>argument key="{attribute(key)}" type="{kind}"<|sep|>{printed}<|close|>argument<|sep|>'
    call = f'<|open|>call tool="{attribute(name)}" index="1"<|sep|>{values}<|close|>call<|sep|>'
    return f"{parser.tool_start_token}{call}{parser.tool_end_token}"


@write.register
def _(parser: tags.MiniMaxM3ToolParser, name: str, arguments: Any, *_: Any) -> str:
    mark = tags.NAMESPACE

    def element(key: str, value: Any) -> str:
        return f"{mark}<{key}>{inside(value)}{mark}</{key}>"

    def inside(value: Any) -> str:
        if isinstance(value, dict):
            return "".join(element(key, inner) for key, inner in value.items())
        if isinstance(value, list | tuple):
            return "".join(element("item", inner) for inner in value)
        return value if isinstance(value, str) else "" if value is None else dump_json(value)

    call = f'{mark}<invoke name="{name}">{inside(arguments)}{mark}</invoke>'
    return f"{parser.tool_start_token}\n{call}\n{parser.tool_end_token}"


@write.register
def _(parser: tags.GLMToolParser, name: str, arguments: Any, model_id: Any, types: ParameterTypes) -> str:
    text = f"{parser.tool_start_token}{name}\n"
    for key, value in arguments.items():
        # A string bare, unless it would then be read as something else.
        is_bare = isinstance(value, str) and decode_value(value, types.of(name, key)) == value
        text += f"{KEY[0]}{key}{KEY[1]}\n{VALUE[0]}{value if is_bare else dump_json(value)}{VALUE[1]}\n"
    return text + parser.tool_end_token


@write.register
def _(parser: message_formats.MuseGlimmerToolParser, name: str, arguments: Any, *_: Any) -> str:
    call = tagged(parser, name, arguments)
    return f"<|start|>assistant to={name}<|message|>{call}<|eom|>"


@write.register
def _(parser: message_formats.InklingToolParser, name: str, arguments: Any, *_: Any) -> str:
    call = write_object(parser.KEYS, name, arguments)
    return f"<|message_model|>{name}{parser.tool_start_token}{call}{parser.tool_end_token}"


@write.register
def _(parser: message_formats.SolarOpenToolParser, name: str, arguments: Any, model_id: str | None, *_: Any) -> str:
    header = f"{parser.CALL.begin}{model_id or 'a1b2c3d4e5'}<|tool_call:name|>{name}"
    call = f"{header}{parser.CALL.separator}{dump_json(arguments)}"
    return f"<|begin|>assistant{parser.tool_start_token}{call}{parser.CALL.end}{parser.tool_end_token}"


@write.register
def _(parser: gpt_oss.GptOssToolParser, name: str, arguments: Any, *_: Any) -> str:
    return f"{parser.tool_start_token}{name} <|constrain|>json<|message|>{dump_json(arguments)}{parser.tool_end_token}"


@write.register
def _(parser: notations.Olmo3ToolParser, name: str, arguments: Any, *_: Any) -> str:
    printed = ", ".join(f"{key}={dump_json(value)}" for key, value in arguments.items())
    return f"{parser.tool_start_token}{name}({printed}){parser.tool_end_token}"


@write.register
def _(parser: notations.Gemma4ToolParser, name: str, arguments: Any, *_: Any) -> str:
    def printed(value: Any) -> str:
        if isinstance(value, str):
            return f"{QUOTE}{value}{QUOTE}"
        if isinstance(value, dict):
            return "{" + ",".join(f"{key}:{printed(inner)}" for key, inner in value.items()) + "}"
        return "[" + ",".join(map(printed, value)) + "]" if isinstance(value, list | tuple) else dump_json(value)

    return f"{parser.tool_start_token}{PREFIX}{name}{printed(arguments)}{parser.tool_end_token}"
