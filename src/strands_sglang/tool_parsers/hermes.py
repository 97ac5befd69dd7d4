"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen2.5, Qwen3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from strands_sglang.tool_parsers import strict_json as _json
from strands_sglang.tool_parsers.base import Block, ToolParser, register_tool_parser
from strands_sglang.tool_parsers.json_calls import CallKeys, find_json_close
from strands_sglang.tool_parsers.schema import ParameterTypes


@register_tool_parser("hermes", "qwen", "qwen25", "qwen3")
class HermesToolParser(ToolParser):
    """One JSON object per block, with the keys `name` and `arguments`; without `arguments` they are `{}`.

    The block ends at the first end marker behind the object, so an end marker inside a JSON string belongs to the
    string. Any other key makes the call malformed: what it says would be lost.
    """

    KEYS: ClassVar[CallKeys] = CallKeys()
    message_separator: ClassVar[str] = "\n"

    def read_block(self, text: str, start: int, types: ParameterTypes) -> Block | None:
        """Read one JSON object and the end marker behind it."""
        begin, end_marker = self.tool_call_tokens
        inner = start + len(begin)
        close = find_json_close(text, inner, end_marker)
        if close is None:
            return None
        end = close + len(end_marker)
        raw = text[inner:close].strip()
        draft = self.KEYS.read(raw, (start, end), self.guess_name(raw))
        if draft.raw is not None:
            end = skip_repeated(text, end, end_marker)
        return Block(end=end, drafts=(draft,))

    def write(self, name: str, arguments: Mapping[str, Any], model_id: str | None, types: ParameterTypes) -> str:
        """Write one JSON object on its own line."""
        begin, end = self.tool_call_tokens
        return f"{begin}\n{self.KEYS.write(name, arguments)}\n{end}"


@register_tool_parser("longcat")
class LongCatToolParser(HermesToolParser):
    """LongCat-Flash: the format of `HermesToolParser` with its own markers."""

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<longcat_tool_call>", "</longcat_tool_call>")
    DEFAULT_THINK: ClassVar[tuple[str, str]] = ("<longcat_think>", "</longcat_think>")


@register_tool_parser("intern_s1")
class InternS1ToolParser(HermesToolParser):
    """Intern-S1: `<|action_start|><|plugin|>{"name": ..., "parameters": {...}}<|action_end|>`."""

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<|action_start|><|plugin|>", "<|action_end|>")
    KEYS: ClassVar[CallKeys] = CallKeys(arguments="parameters")


@register_tool_parser("gigachat")
class GigaChatToolParser(HermesToolParser):
    """GigaChat 3: `<|function_call|>{"name": ..., "arguments": {...}}<|message_sep|>`; the end is a stop token."""

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<|function_call|>", "<|message_sep|>")


def skip_repeated(text: str, position: int, marker: str) -> int:
    """Offset behind all copies of `marker` that follow `position` with nothing but blanks between."""
    while text.startswith(marker, following := _json.skip_blank(text, position)):
        position = following + len(marker)
    return position
