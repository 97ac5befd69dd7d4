"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen2.5, Qwen3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from strands_sglang.tool_parsers import _json
from strands_sglang.tool_parsers._base import Block, Draft, ToolParser, dump_json
from strands_sglang.tool_parsers._registry import register_tool_parser
from strands_sglang.tool_parsers._schema import ParameterTypes


@register_tool_parser("hermes", "qwen", "qwen25", "qwen3")
class HermesToolParser(ToolParser):
    """One JSON object per block, with the keys `name` and `arguments`; without `arguments` they are `{}`.

    The block ends at the first end marker behind the object, so an end marker inside a JSON string belongs to the
    string. Any other key makes the call malformed: what it says would be lost.
    """

    message_separator: ClassVar[str] = "\n"

    def read_block(self, text: str, start: int, types: ParameterTypes) -> Block | None:
        """Read one JSON object and the end marker behind it."""
        begin, end_marker = self.tool_call_tokens
        inner = start + len(begin)
        close = find_json_close(text, inner, end_marker)
        if close is None:
            return None
        end = close + len(end_marker)
        draft = self._draft(text[inner:close].strip(), (start, end))
        if draft.raw is not None:
            end = skip_repeated(text, end, end_marker)
        return Block(end=end, drafts=(draft,))

    def write(self, name: str, arguments: Mapping[str, Any], model_id: str | None, types: ParameterTypes) -> str:
        """Write one JSON object on a line of its own."""
        begin, end = self.tool_call_tokens
        return f'{begin}\n{{"name": {dump_json(name)}, "arguments": {dump_json(arguments)}}}\n{end}'

    def _draft(self, raw: str, span: tuple[int, int]) -> Draft:
        def malformed(error: str, name: str = "") -> Draft:
            return Draft(name=name, raw=raw, error=error, span=span)

        try:
            call = _json.loads(raw)
        except _json.JSONError as error:
            return malformed(f"the call is not valid JSON: {error}", self.guess_name(raw))
        if not isinstance(call, dict):
            return malformed('the call is not a JSON object; expected {"name": ..., "arguments": {...}}')
        name = call.get("name")
        if not isinstance(name, str) or not name.strip():
            return malformed('the call has no "name"; expected {"name": ..., "arguments": {...}}')
        extra = sorted(call.keys() - {"name", "arguments"})
        if extra:
            return malformed(f'unexpected key {extra[0]!r}; expected only "name" and "arguments"', name)
        arguments = call.get("arguments", {})
        if not isinstance(arguments, dict):
            return malformed(NOT_AN_OBJECT, name)
        return Draft(name=name, input=arguments, span=span)


NOT_AN_OBJECT = "the arguments are not a JSON object"


def find_json_close(text: str, start: int, end_marker: str) -> int | None:
    """Offset of the end marker behind the JSON value at `start`; of the first one when there is no such value."""
    value_end = _json.value_end(text, start)
    if value_end is not None:
        close = _json.skip_blank(text, value_end)
        if text.startswith(end_marker, close):
            return close
    close = text.find(end_marker, start)
    return None if close < 0 else close


def skip_repeated(text: str, position: int, marker: str) -> int:
    """Offset behind all copies of `marker` that follow `position` with nothing but blanks between."""
    while text.startswith(marker, following := _json.skip_blank(text, position)):
        position = following + len(marker)
    return position
