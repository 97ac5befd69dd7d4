"""`<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`: Qwen3-Coder, Qwen3.5."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from strands_sglang.tool_parsers._base import Block, Draft, ToolParser, dump_json
from strands_sglang.tool_parsers._registry import register_tool_parser
from strands_sglang.tool_parsers._schema import ParameterTypes, decode_printed
from strands_sglang.tool_parsers._tags import TagError, TagGrammar, read_tagged_call, skip_space

_NAME = re.compile(r"<function=([^>\s<]{1,256})>")


@register_tool_parser("qwen_xml", "qwen3_coder", "step3p5", "nanbeige", "mimo")
class QwenXMLToolParser(ToolParser):
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

    def read_block(self, text: str, start: int, types: ParameterTypes) -> Block | None:
        """Read one tagged call, up to the first end marker."""
        begin, end_marker = self.tool_call_tokens
        inner = start + len(begin)
        close = text.find(end_marker, inner)
        if close < 0:
            return None
        end = close + len(end_marker)
        return Block(end=end, drafts=(self._draft(text[inner:close], (start, end), types),))

    def write(self, name: str, arguments: Mapping[str, Any], model_id: str | None, types: ParameterTypes) -> str:
        """Write every value on lines of its own, strings bare and the rest as JSON."""
        begin, end = self.tool_call_tokens
        lines = [
            f"<parameter={key}>\n{value if isinstance(value, str) else dump_json(value)}\n</parameter>\n"
            for key, value in arguments.items()
        ]
        return f"{begin}\n<function={name}>\n{''.join(lines)}</function>\n{end}"

    def guess_name(self, markup: str) -> str:
        """Name in the first `<function=...>`."""
        match = _NAME.search(markup)
        return match.group(1) if match else ""

    def _draft(self, inner: str, span: tuple[int, int], types: ParameterTypes) -> Draft:
        try:
            call = read_tagged_call(inner, self.GRAMMAR, 0)
            rest = inner[skip_space(inner, call.end) :]
            if rest:
                raise TagError(f"found {rest[:40]!r} behind {self.GRAMMAR.call_close}", call.name)
        except TagError as error:
            name = error.name or self.guess_name(inner)
            return Draft(name=name, raw=inner.strip(), error=str(error), span=span)
        arguments = {key: _value(printed, types.of(call.name, key)) for key, printed in call.values.items()}
        return Draft(name=call.name, input=arguments, span=span)


def _value(printed: str, types: frozenset[str]) -> Any:
    value = printed.removeprefix("\n")
    value = value.removesuffix("\n")
    if value == printed and "\n" not in value and not types:
        value = value.strip()
    return decode_printed(value, types)
