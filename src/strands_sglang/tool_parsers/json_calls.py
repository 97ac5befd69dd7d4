# ruff: noqa: D102 - methods without a docstring are documented in `ToolParser`
"""Calls written as JSON objects: one behind a marker (Hermes), a list (Command), or the whole answer (Llama)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from .base import Block, ToolParser, ToolParseResult, register_tool_parser
from .reasoning import BlockReader, SegmentKind, TextSegment, ThinkTokens
from .values import JSONError, ParameterTypes, TagError, json_end, load_json, skip_blank, skip_space


@dataclass(frozen=True, slots=True, kw_only=True)
class CallKeys:
    """The keys of a call object; any other makes the call malformed, because what it says would be lost.

    Attributes:
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

    def read(self, raw: str, span: tuple[int, int], guess: str) -> ToolParseResult:
        """Read the object that `raw` is; `guess` names a malformed call whose name cannot be read."""

        def refuse(error: str, name: str = "") -> ToolParseResult:
            return ToolParseResult(name=name, raw=raw, error=error, span=span)

        try:
            call = load_json(raw)
        except JSONError as error:
            return refuse(f"the call is not valid JSON: {error}", guess)
        if not isinstance(call, dict):
            return refuse(f"the call is not a JSON object; expected {self.shape}")
        name = call.get(self.name)
        if not isinstance(name, str) or not name.strip():
            return refuse(f'the call has no "{self.name}"; expected {self.shape}')
        extra = [key for key in call if key not in (self.name, self.arguments, self.id)]
        if extra:
            known = [key for key in (self.name, self.arguments, self.id) if key]
            listed = ", ".join(f'"{key}"' for key in known[:-1])
            return refuse(f'unexpected key {min(extra)!r}; expected only {listed} and "{known[-1]}"', name)
        arguments = call.get(self.arguments, {})
        if not isinstance(arguments, dict):
            return refuse("the arguments are not a JSON object", name)
        model_id = call.get(self.id) if self.id else None
        if model_id is not None and not isinstance(model_id, str):
            return refuse(f'"{self.id}" is not a string', name)
        return ToolParseResult(name=name, input=arguments, model_id=model_id, span=span)


class JSONListToolParser(ToolParser):
    """A list of call objects, each valid or malformed by itself; anything that is not a list is one malformed call.

    The block ends at the first end marker behind the list. Without an end marker it is all that follows, and ends with
    the turn.
    """

    KEYS: ClassVar[CallKeys] = CallKeys()

    def read_block(self, text: str, start: int, types: ParameterTypes) -> Block | None:
        end_marker = self.tool_end_token
        inner = self.list_start(start)
        if end_marker:
            found = self.find_close(text, inner, end_marker)
            if found is None:
                return None
            close = found
        else:
            value_end = json_end(text, inner)
            close = self.end_of_turn(text, value_end or inner)
            if value_end is None and close == len(text) and text.startswith("[", skip_blank(text, inner)):
                return None
        end = close + len(end_marker)
        return Block.around(self.read_list(text, inner, close), start, end)

    def list_start(self, start: int) -> int:
        """Offset of what follows the begin marker at `start`."""
        return start + len(self.tool_start_token)

    def find_close(self, text: str, start: int, end_marker: str) -> int | None:
        """Offset of the end marker of the list at `start`."""
        return find_json_close(text, start, end_marker)

    def read_list(self, text: str, start: int, end: int) -> list[ToolParseResult]:
        """Read the calls of the list that `text[start:end]` is; not empty."""
        raw = text[start:end].strip()

        def refuse(error: str) -> list[ToolParseResult]:
            return [ToolParseResult(name=self.guess_name(raw), raw=raw, error=error, span=(start, end))]

        try:
            calls = load_json(raw)
        except JSONError as error:
            if (items := _items(text, start, end)) is None:
                return refuse(f"the calls are not valid JSON: {error}")
        else:
            if not isinstance(calls, list):
                return refuse(f"the calls are not a JSON list; expected [{self.KEYS.shape}, ...]")
            items = _items(text, start, end) or []
        if not items:
            return refuse("the list of calls is empty")
        return [self.read_item(text[first:last], (first, last)) for first, last in items]

    def read_item(self, raw: str, span: tuple[int, int]) -> ToolParseResult:
        """Read one call of the list."""
        return self.KEYS.read(raw, span, self.guess_name(raw))


def find_json_close(text: str, start: int, end_marker: str) -> int | None:
    """Offset of the first end marker after the JSON value at `start`; without such a value, of the first end marker."""
    close = text.find(end_marker, json_end(text, start) or start)
    return None if close < 0 else close


def _items(text: str, start: int, end: int) -> list[tuple[int, int]] | None:
    """Offsets of the values of the JSON list that `text[start:end]` is; None when it is not a list."""
    position = skip_space(text, start)
    if not text.startswith("[", position):
        return None
    items: list[tuple[int, int]] = []
    position = skip_blank(text, position + 1)
    while not text.startswith("]", position) or items:
        value_end = json_end(text, position)
        if value_end is None or value_end > end:
            return None
        items.append((position, value_end))
        position = skip_blank(text, value_end)
        if text.startswith("]", position):
            break
        if not text.startswith(",", position):
            return None
        position = skip_blank(text, position + 1)
    return items if skip_space(text, position + 1) >= end else None


# ---- one object behind a marker


@register_tool_parser("hermes", "qwen", "qwen25", "qwen3")
class HermesToolParser(ToolParser):
    """One JSON object per block, with the keys `name` and `arguments`; without `arguments` they are `{}`.

    The block ends at the first end marker behind the object: an end marker inside a JSON string belongs to the string.
    """

    KEYS: ClassVar[CallKeys] = CallKeys()

    def read_block(self, text: str, start: int, types: ParameterTypes) -> Block | None:
        begin, end_marker = self.tool_call_tokens
        inner = start + len(begin)
        close = find_json_close(text, inner, end_marker)
        if close is None:
            return None
        end = close + len(end_marker)
        raw = text[inner:close].strip()
        call = self.KEYS.read(raw, (start, end), self.guess_name(raw))
        if call.raw is not None:  # what follows a broken call is mostly the same marker again, and no visible text
            end = skip_repeated(text, end, end_marker)
        return Block(end=end, calls=(call,))


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
    while text.startswith(marker, following := skip_blank(text, position)):
        position = following + len(marker)
    return position


# ---- a list behind a marker


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

    def read_item(self, raw: str, span: tuple[int, int]) -> ToolParseResult:
        """Read one call, without its number."""
        return replace(super().read_item(raw, span), model_id=None)

    def guess_name(self, markup: str) -> str:
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

    Its calls stand inside the deliberation (`<|inner_prefix|>`), which is therefore reasoning but for the calls.
    """

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<|tools_prefix|>", "<|tools_suffix|>")
    INNER: ClassVar[ThinkTokens] = ("<|inner_prefix|>", "<|inner_suffix|>")

    @property
    def think_end_token(self) -> str:
        return self.INNER[1]

    def with_think_tokens(self, think_tokens: ThinkTokens | None) -> Self:
        return self

    def cut(self, text: str, read_block: BlockReader | None, *, in_reasoning: bool) -> list[TextSegment]:
        segments: list[TextSegment] = []
        inside = False
        for segment in super().cut(text, read_block, in_reasoning=in_reasoning):
            kind, start, end = segment
            while kind is SegmentKind.TEXT and (at := text.find(self.INNER[inside], start, end)) >= 0:
                behind = at + len(self.INNER[inside])
                pieces = (SegmentKind.REASONING if inside else kind, start, at), (SegmentKind.TAG, at, behind)
                segments += [TextSegment(*piece) for piece in pieces if piece[1] < piece[2]]
                start, inside = behind, not inside
            if start < end:
                is_thought = inside and kind is SegmentKind.TEXT
                segments.append(TextSegment(SegmentKind.REASONING if is_thought else kind, start, end))
        return segments

    def read_item(self, raw: str, span: tuple[int, int]) -> ToolParseResult:
        name = self.guess_name(raw)
        try:
            call = load_json(raw)
            if not isinstance(call, dict) or len(call) != 1 or not next(iter(call)).strip():
                raise TagError('the call is not an object with one key; expected {"NAME": {...}}')
            ((name, arguments),) = call.items()
            if not isinstance(arguments, dict):
                raise TagError("the arguments are not a JSON object")
        except JSONError as problem:
            return ToolParseResult(name=name, raw=raw, error=f"the call is not valid JSON: {problem}", span=span)
        except TagError as problem:
            return ToolParseResult(name=name, raw=raw, error=str(problem), span=span)
        return ToolParseResult(name=name, input=arguments, span=span)

    def guess_name(self, markup: str) -> str:
        match = _FIRST_KEY.search(markup)
        return match.group(1) if match else ""


@register_tool_parser("minimax_m1")
class MiniMaxM1ToolParser(JSONListToolParser):
    """MiniMax M1: `<tool_calls>`, one JSON object a line with `name` and `arguments`, `</tool_calls>`."""

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<tool_calls>", "</tool_calls>")

    def find_close(self, text: str, start: int, end_marker: str) -> int | None:
        """Offset of the first end marker behind the last object."""
        position = start
        while (value_end := json_end(text, position)) is not None:
            position = value_end
        return super().find_close(text, position, end_marker)

    def read_list(self, text: str, start: int, end: int) -> list[ToolParseResult]:
        """Read objects with only blanks between them; from the first other text on, all is malformed."""
        calls: list[ToolParseResult] = []
        position = skip_blank(text, start)
        while position < end or not calls:
            value_end = json_end(text, position)
            last = end if value_end is None or value_end > end else value_end
            calls.append(self.read_item(text[position:last].strip(), (position, last)))
            position = skip_blank(text, last)
        return calls


# ---- the whole answer


class BareToolParser(ToolParser):
    """A call begins where the text does, right behind reasoning, or behind the begin marker, and ends with the turn.

    JSON that is an answer and a call look alike, so only an answer that begins exactly as a call does is one. JSON
    further on in the text is text.
    """

    HEAD: ClassVar[re.Pattern[str]]
    """The beginning of a call without a marker."""
    HAS_MARKER: ClassVar[bool] = True
    """A call may also stand after the begin marker, wherever that is."""

    def begin(self, text: str) -> Callable[[int], int]:
        """A block begins at the start of the visible text, or at the begin marker."""
        marker_at = -1 if self.HAS_MARKER else len(text)

        def find_begin(position: int) -> int:
            nonlocal marker_at
            start = skip_space(text, position)
            if self.HEAD.match(text, start):  # asked only where the text begins, and behind reasoning
                return start
            if marker_at < position:  # each stretch is searched once
                found = text.find(self.tool_start_token, position)
                marker_at = len(text) if found < 0 else found
            return marker_at

        return find_begin

    def unclosed_error(self, markup: str) -> str:
        """Say where the JSON of a call breaks off."""
        try:
            load_json(markup.strip())
        except JSONError as error:
            return f"the call is not valid JSON: {error}"
        return super().unclosed_error(markup)


@register_tool_parser("llama_json", "llama3", "llama3_json")
class LlamaJSONToolParser(BareToolParser):
    """One call a turn: a JSON object that is the whole answer, or all that follows `<|python_tag|>`.

    Without the tag an answer is a call when it begins with the name and the parameters as the template prints them, or
    with `"type": "function"`, a key the format does not have. What follows the object makes the call malformed. The
    built-in tools (`<|python_tag|>name.call(...)`) are malformed too.
    """

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<|python_tag|>", "")
    KEYS: ClassVar[CallKeys] = CallKeys(arguments="parameters")
    HEAD: ClassVar[re.Pattern[str]] = re.compile(
        r'\{\s*(?:"name"\s*:\s*"(?:[^"\\\n]|\\.){0,256}"\s*,\s*"parameters"|"type"\s*:\s*"function")'
    )

    def read_block(self, text: str, start: int, types: ParameterTypes) -> Block | None:
        inner = start + len(self.tool_start_token) if text.startswith(self.tool_start_token, start) else start
        last = json_end(text, inner)
        end = self.end_of_turn(text, last or inner)
        if last is None and end == len(text) and text.startswith("{", skip_blank(text, inner)):
            return None  # an object that breaks off with the turn was cut, not written wrongly
        raw = text[inner:end].strip()
        call = self.KEYS.read(raw, (start, end), self.guess_name(raw))
        return Block(end=end, calls=(call,))


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
