"""`<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`: Qwen3-Coder, Qwen3.5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from strands_sglang.tool_parsers._base import dump_json
from strands_sglang.tool_parsers._registry import register_tool_parser
from strands_sglang.tool_parsers._schema import decode_printed
from strands_sglang.tool_parsers._tagged import TaggedToolParser
from strands_sglang.tool_parsers._tags import TagGrammar


@register_tool_parser("qwen_xml", "qwen3_coder", "step3p5", "nanbeige", "mimo")
class QwenXMLToolParser(TaggedToolParser):
    r"""One call per block, each value between tags.

    Without schemas every value is the string that was printed. With `tools`, values of parameters that are not
    declared as strings are decoded as JSON.

    The template prints a value as `\nVALUE\n`: one newline on each side is layout, what remains is the value, exactly.
    A value on the same line as its tags loses surrounding blanks, unless the schema declares a string.
    """

    GRAMMAR: ClassVar[TagGrammar] = TagGrammar(
        call=("<function=", ">"),
        call_close="</function>",
        parameter=("<parameter=", ">"),
        parameter_close="</parameter>",
    )
    message_separator: ClassVar[str] = "\n"

    def read_value(self, printed: str, types: frozenset[str]) -> Any:
        """Take off the layout, then decode by the declared type."""
        value = printed.removeprefix("\n").removesuffix("\n")
        if value == printed and "\n" not in value and not types:
            value = value.strip()
        return decode_printed(value, types)

    def write_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Write every value on lines of its own, strings bare and the rest as JSON."""
        lines = [
            f"<parameter={key}>\n{value if isinstance(value, str) else dump_json(value)}\n</parameter>\n"
            for key, value in arguments.items()
        ]
        return f"<function={name}>\n{''.join(lines)}</function>"


@register_tool_parser("seed_oss")
class SeedOSSToolParser(QwenXMLToolParser):
    """Seed-OSS: the format of `QwenXMLToolParser` with markers of its own, values on the line of their tags."""

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<seed:tool_call>", "</seed:tool_call>")
    DEFAULT_THINK: ClassVar[tuple[str, str]] = ("<seed:think>", "</seed:think>")

    def read_value(self, printed: str, types: frozenset[str]) -> Any:
        """Decode by the declared type; nothing is layout."""
        return decode_printed(printed, types)

    def write_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Write strings bare and the rest as JSON."""
        lines = [
            f"<parameter={key}>{value if isinstance(value, str) else dump_json(value)}</parameter>\n"
            for key, value in arguments.items()
        ]
        return f"<function={name}>\n{''.join(lines)}</function>"
