"""Calls written as JSON objects, and the families that write them as one list behind a marker.

`BEGIN[{"name": ..., "arguments": {...}}, ...]END`: Command, Granite 3, Nemotron, Apertus, MiniMax M1, xLAM.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from strands_sglang.tool_parsers import strict_json as _json
from strands_sglang.tool_parsers.bare import BareToolParser
from strands_sglang.tool_parsers.base import Block, Draft, ToolParser, dump_json, register_tool_parser
from strands_sglang.tool_parsers.schema import ParameterTypes
from strands_sglang.tool_parsers.tags import skip_space


@dataclass(frozen=True, slots=True, kw_only=True)
class CallKeys:
    """The keys of a call object; any other makes the call malformed, because what it says would be lost.

    Attributes:
        name: Key of the tool name.
        arguments: Key of the arguments; a call without it has none.
        id: Key of the id the model prints, where the format has one.
    """

    name: str = "name"
    arguments: str = "arguments"
    id: str | None = None

    @property
    def shape(self) -> str:
        """The object, as error messages show it."""
        return f'{{"{self.name}": ..., "{self.arguments}": {{...}}}}'

    def read(self, raw: str, span: tuple[int, int], guess: str) -> Draft:
        """Read the object that `raw` is; `guess` names a malformed call whose name cannot be read."""

        def malformed(error: str, name: str = "") -> Draft:
            return Draft(name=name, raw=raw, error=error, span=span)

        try:
            call = _json.loads(raw)
        except _json.JSONError as error:
            return malformed(f"the call is not valid JSON: {error}", guess)
        if not isinstance(call, dict):
            return malformed(f"the call is not a JSON object; expected {self.shape}")
        name = call.get(self.name)
        if not isinstance(name, str) or not name.strip():
            return malformed(f'the call has no "{self.name}"; expected {self.shape}')
        extra = [key for key in call if key not in (self.name, self.arguments, self.id)]
        if extra:
            known = [key for key in (self.name, self.arguments, self.id) if key]
            listed = ", ".join(f'"{key}"' for key in known[:-1])
            return malformed(f'unexpected key {min(extra)!r}; expected only {listed} and "{known[-1]}"', name)
        arguments = call.get(self.arguments, {})
        if not isinstance(arguments, dict):
            return malformed("the arguments are not a JSON object", name)
        model_id = call.get(self.id) if self.id else None
        if model_id is not None and not isinstance(model_id, str):
            return malformed(f'"{self.id}" is not a string', name)
        return Draft(name=name, input=arguments, model_id=model_id, span=span)

    def write(self, name: str, arguments: Mapping[str, Any], model_id: str | None = None) -> str:
        """Write what `read` reads; without an id where none is given."""
        printed_id = f', "{self.id}": {dump_json(model_id)}' if self.id and model_id is not None else ""
        return f'{{"{self.name}": {dump_json(name)}, "{self.arguments}": {dump_json(arguments)}{printed_id}}}'


class JSONListToolParser(ToolParser):
    """A list of call objects, each valid or malformed by itself; anything that is not a list is one malformed call.

    The block ends at the first end marker behind the list. Without an end marker it is all that follows, and ends with
    the turn.
    """

    KEYS: ClassVar[CallKeys] = CallKeys()

    def read_block(self, text: str, start: int, types: ParameterTypes) -> Block | None:
        """Read one list and the end marker behind it."""
        end_marker = self.tool_end_token
        inner = self.list_start(start)
        if end_marker:
            found = self.find_close(text, inner, end_marker)
            if found is None:
                return None
            close = found
        else:
            value_end = _json.value_end(text, inner)
            close = self.end_of_turn(text, value_end or inner)
            if value_end is None and close == len(text) and text.startswith("[", _json.skip_blank(text, inner)):
                return None
        end = close + len(end_marker)
        drafts = self.read_list(text, inner, close)
        if len(drafts) == 1:  # the only call owns the markers
            drafts = [replace(drafts[0], span=(start, end))]
        return Block(end=end, drafts=tuple(drafts))

    def list_start(self, start: int) -> int:
        """Offset of what follows the begin marker at `start`."""
        return start + len(self.tool_start_token)

    def find_close(self, text: str, start: int, end_marker: str) -> int | None:
        """Offset of the end marker of the list at `start`."""
        return find_json_close(text, start, end_marker)

    def read_list(self, text: str, start: int, end: int) -> list[Draft]:
        """Read the calls of the list that `text[start:end]` is; not empty."""
        raw = text[start:end].strip()

        def malformed(error: str) -> list[Draft]:
            return [Draft(name=self.guess_name(raw), raw=raw, error=error, span=(start, end))]

        try:
            calls = _json.loads(raw)
        except _json.JSONError as error:
            if (items := _items(text, start, end)) is None:
                return malformed(f"the calls are not valid JSON: {error}")
        else:
            if not isinstance(calls, list):
                return malformed(f"the calls are not a JSON list; expected [{self.KEYS.shape}, ...]")
            items = _items(text, start, end) or []
        if not items:
            return malformed("the list of calls is empty")
        return [self.read_item(text[first:last], (first, last)) for first, last in items]

    def read_item(self, raw: str, span: tuple[int, int]) -> Draft:
        """Read one call of the list."""
        return self.KEYS.read(raw, span, self.guess_name(raw))

    def write_item(self, name: str, arguments: Mapping[str, Any], model_id: str | None) -> str:
        """Write one call of the list."""
        return self.KEYS.write(name, arguments, model_id)

    def write(self, name: str, arguments: Mapping[str, Any], model_id: str | None, types: ParameterTypes) -> str:
        """Write a list of one call."""
        begin, end = self.tool_call_tokens
        return f"{begin}[{self.write_item(name, arguments, model_id)}]{end}"


def find_json_close(text: str, start: int, end_marker: str) -> int | None:
    """Offset of the first end marker after the JSON value at `start`; without such a value, of the first end marker."""
    close = text.find(end_marker, _json.value_end(text, start) or start)
    return None if close < 0 else close


def _items(text: str, start: int, end: int) -> list[tuple[int, int]] | None:
    """Offsets of the values of the JSON list that `text[start:end]` is; None when it is not a list."""
    position = skip_space(text, start)
    if not text.startswith("[", position):
        return None
    items: list[tuple[int, int]] = []
    position = _json.skip_blank(text, position + 1)
    while not text.startswith("]", position) or items:
        value_end = _json.value_end(text, position)
        if value_end is None or value_end > end:
            return None
        items.append((position, value_end))
        position = _json.skip_blank(text, value_end)
        if text.startswith("]", position):
            break
        if not text.startswith(",", position):
            return None
        position = _json.skip_blank(text, position + 1)
    return items if skip_space(text, position + 1) >= end else None


_TOOL_NAME = re.compile(r'"tool_name"\s*:\s*"([^"\\\n]+)"')
_FIRST_KEY = re.compile(r'\{\s*"([^"\\\n]+)"\s*:')


@register_tool_parser("granite")
class GraniteToolParser(JSONListToolParser):
    """Granite 3: `<|tool_call|>[{"name": ..., "arguments": {...}}]`, up to the end of the turn."""

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<|tool_call|>", "")


@register_tool_parser("nemotron")
class NemotronToolParser(JSONListToolParser):
    """Nemotron Nano 2, Nemotron Super 1.5: `<TOOLCALL>[{"name": ..., "arguments": {...}}]</TOOLCALL>`."""

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<TOOLCALL>", "</TOOLCALL>")


@register_tool_parser("command")
class CommandToolParser(JSONListToolParser):
    """Command R7B, A, A+: `<|START_ACTION|>[{"tool_call_id": ..., "tool_name": ..., "parameters": ...}]<|END_ACTION|>`.

    The model numbers its calls over the conversation, and so does the template; its number is read but not used as an
    id, because nothing makes it unique.
    """

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<|START_ACTION|>", "<|END_ACTION|>")
    DEFAULT_THINK: ClassVar[tuple[str, str]] = ("<|START_THINKING|>", "<|END_THINKING|>")
    KEYS: ClassVar[CallKeys] = CallKeys(name="tool_name", arguments="parameters", id="tool_call_id")

    def read_item(self, raw: str, span: tuple[int, int]) -> Draft:
        """Read one call, without its number."""
        return replace(super().read_item(raw, span), model_id=None)

    def guess_name(self, markup: str) -> str:
        """Value of the first `tool_name`."""
        match = _TOOL_NAME.search(markup)
        return match.group(1) if match else ""


@register_tool_parser("command_r_plus")
class CommandRPlusToolParser(CommandToolParser):
    """Command R+: a fenced JSON list of `tool_name` and `parameters` under `Action:`."""

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("Action:\n```json\n", "```")
    KEYS: ClassVar[CallKeys] = CallKeys(name="tool_name", arguments="parameters")


@register_tool_parser("apertus")
class ApertusToolParser(JSONListToolParser):
    """Apertus: `<|tools_prefix|>[{"NAME": {...}}, ...]<|tools_suffix|>`; the end is a stop token.

    Its calls stand inside the deliberation (`<|inner_prefix|>`), which is therefore not cut off as reasoning.
    """

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<|tools_prefix|>", "<|tools_suffix|>")

    def read_item(self, raw: str, span: tuple[int, int]) -> Draft:
        """Read an object whose only key is the name."""
        try:
            call = _json.loads(raw)
        except _json.JSONError as problem:
            return Draft(name=self.guess_name(raw), raw=raw, error=f"the call is not valid JSON: {problem}", span=span)
        if not isinstance(call, dict) or len(call) != 1 or not next(iter(call)).strip():
            error = 'the call is not an object with one key; expected {"NAME": {...}}'
            return Draft(name=self.guess_name(raw), raw=raw, error=error, span=span)
        ((name, arguments),) = call.items()
        if not isinstance(arguments, dict):
            return Draft(name=name, raw=raw, error="the arguments are not a JSON object", span=span)
        return Draft(name=name, input=arguments, span=span)

    def write_item(self, name: str, arguments: Mapping[str, Any], model_id: str | None) -> str:
        """Write an object whose only key is the name."""
        return f"{{{dump_json(name)}: {dump_json(arguments)}}}"

    def guess_name(self, markup: str) -> str:
        """First key."""
        match = _FIRST_KEY.search(markup)
        return match.group(1) if match else ""


@register_tool_parser("minimax_m1")
class MiniMaxM1ToolParser(JSONListToolParser):
    """MiniMax M1: `<tool_calls>`, one JSON object a line with `name` and `arguments`, `</tool_calls>`."""

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<tool_calls>", "</tool_calls>")

    def find_close(self, text: str, start: int, end_marker: str) -> int | None:
        """Offset of the first end marker behind the last object."""
        position = start
        while (value_end := _json.value_end(text, position)) is not None:
            position = value_end
        return super().find_close(text, position, end_marker)

    def read_list(self, text: str, start: int, end: int) -> list[Draft]:
        """Read objects with only blanks between them; from the first other text on, all is malformed."""
        drafts: list[Draft] = []
        position = _json.skip_blank(text, start)
        while position < end or not drafts:
            value_end = _json.value_end(text, position)
            last = end if value_end is None or value_end > end else value_end
            drafts.append(self.read_item(text[position:last].strip(), (position, last)))
            position = _json.skip_blank(text, last)
        return drafts

    def write(self, name: str, arguments: Mapping[str, Any], model_id: str | None, types: ParameterTypes) -> str:
        """Write a block of one line."""
        begin, end = self.tool_call_tokens
        return f"{begin}\n{self.write_item(name, arguments, model_id)}\n{end}"


@register_tool_parser("xlam")
class XLAMToolParser(BareToolParser, JSONListToolParser):
    """xLAM 2: `[{"name": ..., "arguments": {...}}, ...]` as the whole answer, recognised by its beginning."""

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("[", "")
    HAS_MARKER: ClassVar[bool] = False
    HEAD: ClassVar[re.Pattern[str]] = re.compile(
        r'\[\s*\{\s*"name"\s*:\s*"(?:[^"\\\n]|\\.){0,256}"\s*,\s*"arguments"\s*:'
    )

    def list_start(self, start: int) -> int:
        """The begin marker is the list's own bracket."""
        return start

    def write(self, name: str, arguments: Mapping[str, Any], model_id: str | None, types: ParameterTypes) -> str:
        """Write the list alone."""
        return f"[{self.write_item(name, arguments, model_id)}]"
