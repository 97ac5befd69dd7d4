"""DeepSeek: sections of special tokens with JSON arguments (V3, R1, V3.1), and tags (V3.2).

`<｜DSML｜invoke name="NAME"><｜DSML｜parameter name="KEY" string="true">VALUE</...></...>` is the form of V3.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from strands_sglang.tool_parsers import strict_json as _json
from strands_sglang.tool_parsers.base import dump_json, register_tool_parser
from strands_sglang.tool_parsers.schema import ParameterTypes
from strands_sglang.tool_parsers.sections import CallTokens, Header, SectionToolParser
from strands_sglang.tool_parsers.tags import TagError, TaggedCall, TaggedToolParser, TagGrammar

_SECTION = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")


@register_tool_parser("deepseek_v31", "deepseekv31")
class DeepSeekV31ToolParser(SectionToolParser):
    """`<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>`."""

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = _SECTION
    CALL: ClassVar[CallTokens] = CallTokens(
        begin="<｜tool▁call▁begin｜>", separator="<｜tool▁sep｜>", end="<｜tool▁call▁end｜>"
    )

    def read_header(self, header: str) -> Header:
        """The header is the name."""
        return Header(name=header)

    def write_header(self, name: str, model_id: str | None) -> str:
        """The header is the name."""
        return name


@register_tool_parser("deepseek_v3", "deepseekv3")
class DeepSeekV3ToolParser(DeepSeekV31ToolParser):
    """`<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME`, then the arguments as a fenced JSON block."""

    CALL: ClassVar[CallTokens] = CallTokens(
        begin="<｜tool▁call▁begin｜>function<｜tool▁sep｜>", separator="```json", end="```<｜tool▁call▁end｜>"
    )

    def write(self, name: str, arguments: Mapping[str, Any], model_id: str | None, types: ParameterTypes) -> str:
        """Write a section of one call, the fences on their own lines."""
        begin, end = self.tool_call_tokens
        return f"{begin}{self.CALL.begin}{name}\n```json\n{dump_json(arguments)}\n{self.CALL.end}{end}"


_STRING = '" string="true'
_JSON = '" string="false'


@register_tool_parser("deepseek_v32", "deepseekv32")
class DeepSeekV32ToolParser(TaggedToolParser):
    """One block of several calls; each value says whether it is a string as it is, or JSON.

    A value that says it is JSON and is not makes its call malformed, whatever the schema says.
    """

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>")
    SEVERAL_CALLS: ClassVar[bool] = True
    GRAMMAR: ClassVar[TagGrammar] = TagGrammar(
        call=('<｜DSML｜invoke name="', '">'),
        call_close="</｜DSML｜invoke>",
        parameter=('<｜DSML｜parameter name="', '">'),
        parameter_close="</｜DSML｜parameter>",
        kinds=(_STRING, _JSON),
    )

    def read_arguments(self, call: TaggedCall, types: ParameterTypes) -> dict[str, Any]:
        """Read every value by what its tag says."""
        arguments: dict[str, Any] = {}
        for key, printed in call.values.items():
            try:
                arguments[key] = printed if call.kinds[key] == _STRING else _json.loads(printed.strip())
            except _json.JSONError as error:
                message = f'the value of {key!r} says string="false" and is not valid JSON: {error}'
                raise TagError(message, call.name) from None
        return arguments

    def write_parameter(self, key: str, value: Any) -> str:
        """Write a parameter that says what its value is."""
        return super().write_parameter(f"{key}{_STRING if isinstance(value, str) else _JSON}", value)
