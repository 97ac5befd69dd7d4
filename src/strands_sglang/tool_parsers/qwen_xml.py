"""`<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`: Qwen3-Coder, Qwen3.5, MiMo."""

from __future__ import annotations

from typing import Any, ClassVar

from strands_sglang.tool_parsers.base import register_tool_parser
from strands_sglang.tool_parsers.schema import decode_printed
from strands_sglang.tool_parsers.tags import TaggedToolParser, TagGrammar

_GRAMMAR = TagGrammar(
    call=("<function=", ">"),
    call_close="</function>",
    parameter=("<parameter=", ">"),
    parameter_close="</parameter>",
)


@register_tool_parser("qwen_xml", "qwen3_coder", "step3p5", "nanbeige")
class QwenXMLToolParser(TaggedToolParser):
    r"""One call per block, each value between tags.

    Without schemas every value is the string that was printed. With `tools`, values of parameters that are not
    declared as strings are decoded as JSON.

    The template prints a value as `\nVALUE\n`: one newline on each side is layout, what remains is the value, exactly.
    A value on the same line as its tags loses surrounding blanks, unless the schema declares a string.
    """

    GRAMMAR: ClassVar[TagGrammar] = _GRAMMAR
    message_separator: ClassVar[str] = "\n"

    def read_value(self, printed: str, types: frozenset[str]) -> Any:
        """Take off the layout, then decode by the declared type."""
        value = printed.removeprefix("\n").removesuffix("\n")
        if value == printed and "\n" not in value and not types:
            value = value.strip()
        return decode_printed(value, types)

    def write_value(self, value: Any) -> str:
        """Write every value on its own lines."""
        return f"\n{super().write_value(value)}\n"


@register_tool_parser("mimo")
class MiMoToolParser(TaggedToolParser):
    """MiMo V2: the tags of `QwenXMLToolParser`, but all that stands between them is the value, newlines included."""

    GRAMMAR: ClassVar[TagGrammar] = _GRAMMAR


@register_tool_parser("seed_oss")
class SeedOSSToolParser(MiMoToolParser):
    """Seed-OSS: the format of `MiMoToolParser` with its own markers."""

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<seed:tool_call>", "</seed:tool_call>")
    DEFAULT_THINK: ClassVar[tuple[str, str]] = ("<seed:think>", "</seed:think>")
