"""`<minimax:tool_call><invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke></minimax:tool_call>`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from strands_sglang.tool_parsers._base import dump_json
from strands_sglang.tool_parsers._registry import register_tool_parser
from strands_sglang.tool_parsers._schema import decode_printed
from strands_sglang.tool_parsers._tagged import TaggedToolParser
from strands_sglang.tool_parsers._tags import TagGrammar


@register_tool_parser("minimax_m2", "minimax-m2")
class MiniMaxM2ToolParser(TaggedToolParser):
    """MiniMax M2 and M2.5: one block of several calls.

    Without schemas every value is the printed string; with `tools`, values that are not declared as strings are
    decoded as JSON.
    """

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<minimax:tool_call>", "</minimax:tool_call>")
    SEVERAL_CALLS: ClassVar[bool] = True
    GRAMMAR: ClassVar[TagGrammar] = TagGrammar(
        call=('<invoke name="', '">'),
        call_close="</invoke>",
        parameter=('<parameter name="', '">'),
        parameter_close="</parameter>",
    )
    message_separator: ClassVar[str] = "\n"

    def read_value(self, printed: str, types: frozenset[str]) -> Any:
        """Decode by the declared type; nothing is layout."""
        return decode_printed(printed, types)

    def write_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Write strings bare and the rest as JSON."""
        lines = [
            f'<parameter name="{key}">{value if isinstance(value, str) else dump_json(value)}</parameter>\n'
            for key, value in arguments.items()
        ]
        return f'<invoke name="{name}">\n{"".join(lines)}</invoke>'
