# ruff: noqa: D102 - methods without a docstring are documented in `ToolParser`
"""Calls written as JSON objects: one behind a marker (Hermes), a list (Command), or the whole answer (Llama)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from .base import ToolParser, register_tool_parser
from .calls import Block, ToolParseResult
from .splitting import BlockFinder, BlockReader, SegmentKind, Segments, TextSegment, ThinkTokens, finder
from .values import (
    CallError,
    JSONError,
    ParameterTypes,
    as_arguments,
    is_name,
    json_end,
    load_arguments,
    load_json,
    read_items,
    skip_blank,
    skip_space,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallKeys:
    """The keys of a call object; any other makes the call malformed, because its value would be lost.

    Attributes:
        arguments: Key of the arguments; a call without it has none.
        id: Key of the id the model prints, where the format has one.
    """

    name: str = "name"
    arguments: str = "arguments"
    id: str | None = None

    @property
    def opening(self) -> str:
        """Pattern of the beginning of the object, as templates print it; see `ToolParser.opening`."""
        id_first = rf'(?:"{self.id}"\s*:\s*"[^"\n]{{0,256}}"\s*,\s*)?' if self.id else ""
        name = r'"(?P<name>(?:[^"\\\n]|\\.){0,256})"'
        return rf'\{{\s*{id_first}"{self.name}"\s*:\s*{name}\s*,\s*"{self.arguments}"'

    @property
    def shape(self) -> str:
        """The object, as error messages show it."""
        return f'{{"{self.name}": ..., "{self.arguments}": {{...}}}}'

    def read(self, call: Any) -> ToolParseResult:
        """Read a call from its object; `CallError` if it has another shape."""
        if not isinstance(call, dict):
            raise CallError(f"the call is not a JSON object; expected {self.shape}", "")
        name = call.get(self.name)
        if not isinstance(name, str) or not name.strip():
            raise CallError(f'the call has no "{self.name}"; expected {self.shape}', "")
        keys = [key for key in (self.name, self.arguments, self.id) if key]
        if extra := call.keys() - set(keys):
            listed = ", ".join(f'"{key}"' for key in keys[:-1])
            raise CallError(f'unexpected key {min(extra)!r}; expected only {listed} and "{keys[-1]}"', name)
        arguments = as_arguments(call.get(self.arguments, {}), name)
        model_id = call.get(self.id) if self.id else None
        if not isinstance(model_id, str | None):
            raise CallError(f'"{self.id}" is not a string', name)
        return ToolParseResult(name=name, input=arguments, model_id=model_id)


class JSONToolParser(ToolParser):
    """JSON behind a begin marker, up to the first end marker behind it or, in a format without one, the turn's end.

    An end marker inside a JSON string belongs to the string.
    """

    KEYS: ClassVar[CallKeys] = CallKeys()
    OPENING: ClassVar[str]
    """The bracket with which the JSON begins."""

    @property
    def opening(self) -> str:
        return self.KEYS.opening

    def read_block(self, text: str, start: int, types: ParameterTypes) -> Block | None:
        begin, end_marker = self.tool_call_tokens
        # The marker is optional (Llama), or the list's own bracket (xLAM).
        inner = start + len(begin) if begin != self.OPENING and text.startswith(begin, start) else start
        close = self.find_close(text, inner)
        if close is None:
            return None
        return Block.around(self.read_calls(text, inner, close), start, close + len(end_marker))

    def read_calls(self, text: str, start: int, end: int) -> list[ToolParseResult]:
        """Read the calls of the JSON that `text[start:end]` is; at least one, perhaps malformed."""
        return [self.read_item(text[start:end].strip(), (start, end))]

    def find_close(self, text: str, start: int) -> int | None:
        """Offset of the end of the calls that begin at `start`, without the end marker; None if they were cut."""
        value_end = json_end(text, start)
        if self.tool_end_token:
            close = text.find(self.tool_end_token, value_end or start)
            return None if close < 0 else close
        close = self.end_of_turn(text, value_end or start)
        # JSON that breaks off with the turn was cut, not written wrongly.
        is_cut = value_end is None and close == len(text) and text.startswith(self.OPENING, skip_blank(text, start))
        return None if is_cut else close

    def read_item(self, raw: str, span: tuple[int, int]) -> ToolParseResult:
        """Read one call."""
        try:
            return self.read_object(load_json(raw, "the call is")).with_span(*span)
        except CallError as error:
            return self.refuse(error, raw, span)

    def read_object(self, call: Any) -> ToolParseResult:
        """Read one call from its decoded JSON; `CallError` if it is none."""
        return self.KEYS.read(call)


# ---- one object behind a marker


@register_tool_parser("hermes", "qwen", "qwen25", "qwen3")
class HermesToolParser(JSONToolParser):
    """A JSON object per block, with the keys `name` and `arguments`; without `arguments` they are `{}`."""

    OPENING: ClassVar[str] = "{"


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
    END_IS_TEXT: ClassVar[bool] = True  # it ends answers, too


# ---- a list behind a marker


class JSONListToolParser(JSONToolParser):
    """A list of call objects, each valid or malformed by itself; anything that is not a list is one malformed call."""

    OPENING: ClassVar[str] = "["

    @property
    def opening(self) -> str:
        return rf"(?:\[\s*)?{self.KEYS.opening}"

    def read_calls(self, text: str, start: int, end: int) -> list[ToolParseResult]:
        try:
            return self.read_list(text, start, end)
        except CallError as error:
            return [self.refuse(error, text[start:end].strip(), (start, end))]

    def read_list(self, text: str, start: int, end: int) -> list[ToolParseResult]:
        """Read the calls of the list that `text[start:end]` is; `CallError` if it is none, or empty."""
        items: list[ToolParseResult] = []

        def read_item(position: int) -> int:
            value_end = json_end(text, position)
            if value_end is None or value_end > end:
                raise CallError("it is not a list of JSON values")
            items.append(self.read_item(text[position:value_end], (position, value_end)))
            return value_end

        try:
            last = read_items(text, skip_space(text, start), "[]", read_item, skip=skip_blank)
            if skip_space(text, last) < end:
                raise CallError("text follows the list")
        except CallError:
            load_json(text[start:end].strip(), "the calls are")  # which names the fault
            raise CallError(f"the calls are not a JSON list; expected [{self.KEYS.shape}, ...]") from None
        if not items:
            raise CallError("the list of calls is empty")
        return items


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
    NAME: ClassVar[re.Pattern[str]] = re.compile(r'"tool_name"\s*:\s*"([^"\\\n]+)"')

    def read_object(self, call: Any) -> ToolParseResult:
        return replace(super().read_object(call), model_id=None)


@register_tool_parser("command_r_plus")
class CommandRPlusToolParser(CommandToolParser):
    """Command R+: a fenced JSON list of `tool_name` and `parameters` under `Action:`."""

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("Action:\n```json\n", "```")
    END_IS_TEXT: ClassVar[bool] = True  # a fence
    KEYS: ClassVar[CallKeys] = CallKeys(name="tool_name", arguments="parameters")


@register_tool_parser("apertus")
class ApertusToolParser(JSONListToolParser):
    """Apertus: `<|tools_prefix|>[{"NAME": {...}}, ...]<|tools_suffix|>`; the end is a stop token.

    Its calls stand inside the deliberation (`<|inner_prefix|>`), which is therefore reasoning but for the calls.
    """

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<|tools_prefix|>", "<|tools_suffix|>")
    NAME: ClassVar[re.Pattern[str]] = re.compile(r'\{\s*"([^"\\\n]+)"\s*:')
    INNER: ClassVar[ThinkTokens] = ("<|inner_prefix|>", "<|inner_suffix|>")

    @property
    def opening(self) -> str:
        return r'\[\s*\{\s*"(?P<name>[^"\\\n]{1,256})"\s*:\s*\{'

    @property
    def think_end_token(self) -> str:
        return self.INNER[1]

    def with_think_tokens(self, think_tokens: ThinkTokens | None) -> Self:
        return self

    def cut(self, text: str, read_block: BlockReader | None, *, in_reasoning: bool) -> list[TextSegment]:
        segments, inside = Segments(), False
        for kind, start, end in super().cut(text, read_block, in_reasoning=in_reasoning):
            while kind is SegmentKind.TEXT and (at := text.find(self.INNER[inside], start, end)) >= 0:
                segments.add(SegmentKind.REASONING if inside else kind, start, at)
                start = at + len(self.INNER[inside])
                segments.add(SegmentKind.TAG, at, start)
                inside = not inside
            is_thought = inside and kind is SegmentKind.TEXT
            segments.add(SegmentKind.REASONING if is_thought else kind, start, end)
        return segments

    def read_object(self, call: Any) -> ToolParseResult:
        if not isinstance(call, dict) or len(call) != 1 or not next(iter(call)).strip():
            raise CallError('the call is not an object with one key; expected {"NAME": {...}}')
        ((name, arguments),) = call.items()
        return ToolParseResult(name=name, input=as_arguments(arguments, name))


@register_tool_parser("minimax_m1")
class MiniMaxM1ToolParser(JSONListToolParser):
    """MiniMax M1: `<tool_calls>`, one JSON object a line with `name` and `arguments`, `</tool_calls>`."""

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<tool_calls>", "</tool_calls>")

    def find_close(self, text: str, start: int) -> int | None:
        while (value_end := json_end(text, start)) is not None:
            start = value_end
        return super().find_close(text, start)

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


# ---- a list, or a name and an object


ARGS = "[ARGS]"
CALL_ID = "[CALL_ID]"

NINE_ALPHANUMERICS = re.compile(r"[A-Za-z0-9]{9}")
"""Ids that the templates take."""


@register_tool_parser("mistral")
class MistralToolParser(JSONListToolParser):
    """Mistral: `[TOOL_CALLS]NAME[ARGS]{...}` and, before that, `[TOOL_CALLS][{"name": ..., "arguments": {...}}]`.

    The two cannot be confused, because no name begins with a bracket.

    One list holds all calls of a turn and ends with it. In the newer form each call has its own marker and ends at
    the next marker or with the turn; some models print `[CALL_ID]ID` behind the name. An id that is not of nine letters
    and digits is malformed: the templates refuse it.
    """

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("[TOOL_CALLS]", "")
    DEFAULT_THINK: ClassVar[tuple[str, str]] = ("[THINK]", "[/THINK]")
    KEYS: ClassVar[CallKeys] = CallKeys(id="id")

    @property
    def opening(self) -> str:
        in_front = rf"(?<![\w.-])(?P<front>[\w.-]{{1,256}}+) ?(?={re.escape(ARGS)}|{re.escape(CALL_ID)})"
        return f"{super().opening}|{in_front}"

    def read_block(self, text: str, start: int, types: ParameterTypes) -> Block | None:
        begin = self.tool_start_token
        inner = start + len(begin)
        first = skip_space(text, inner)
        if text.startswith(("[", "{"), first) and not text.startswith(ARGS, first):
            return super().read_block(text, start, types)
        separator = text.find(ARGS, inner, inner + 1024)  # bounded, so that many markers without it cost linear time
        following = text.find(begin, inner)
        has_args = separator >= 0 and not 0 <= following < separator
        arguments_at = separator + len(ARGS) if has_args else inner
        value_end = json_end(text, arguments_at) if has_args else None
        following = text.find(begin, value_end or arguments_at)
        end = self.end_of_turn(text, value_end or arguments_at, following if following >= 0 else len(text))
        if has_args and value_end is None and end == len(text):
            return None
        raw_start, call_id = inner, None
        try:
            if not has_args:
                raise CallError(f"{ARGS} is missing behind the tool name", "")
            name, has_id, printed_id = (part.strip() for part in text[inner:separator].partition(CALL_ID))
            if not is_name(name):
                raise CallError("the call has no valid tool name", "")
            raw_start = arguments_at
            call_id = self._checked_id(printed_id if has_id else None, name)
            arguments = load_arguments(text[arguments_at:end].strip(), name)
            call = ToolParseResult(name=name, input=arguments, model_id=call_id, span=(start, end))
        except CallError as error:
            call = self.refuse(error, text[raw_start:end].strip(), (start, end), call_id)
        return Block(end=end, calls=(call,))

    def read_object(self, call: Any) -> ToolParseResult:
        """Read one call of a list; its id has to be one that templates print again."""
        result = super().read_object(call)
        self._checked_id(result.model_id, result.name)
        return result

    @staticmethod
    def _checked_id(model_id: str | None, name: str) -> str | None:
        if model_id is not None and not NINE_ALPHANUMERICS.fullmatch(model_id):
            raise CallError(f"the id {model_id!r} is not of nine letters and digits", name)
        return model_id

    def guess_name(self, markup: str) -> str:
        """The text before the arguments, or the `name` of the first object."""
        name = markup.split(ARGS, 1)[0].split(CALL_ID, 1)[0].strip() if ARGS in markup else ""
        return name if is_name(name) else super().guess_name(markup)


@register_tool_parser("functionary")
class FunctionaryToolParser(JSONToolParser):
    """Functionary 3.2: `>>>NAME`, a line break, the arguments; `>>>all` is text. A call ends with the next `>>>`.

    The first recipient has no marker, because the prompt ends with one. The marker is ordinary text, so it begins a
    call only where a name and an object follow it; text behind the object makes the call malformed.
    """

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = (">>>", "")
    OPENING: ClassVar[str] = "{"

    @property
    def opening(self) -> str:
        marked = rf"(?:\A|{re.escape(self.tool_start_token)})(?P<marked>[\w.-]{{1,256}}+)\n"
        return rf"{marked}|(?<![^\n])(?P<name>[\w.-]{{1,256}}+)\n(?=\{{)"

    @property
    def _head(self) -> re.Pattern[str]:
        return re.compile(rf"(?:\A\s{{0,20}}|{re.escape(self.tool_start_token)})(?!all\n)([\w.-]{{1,256}})\n(?=\{{)")

    def begin(self, text: str) -> BlockFinder:
        return finder(self._head, text)

    def read_block(self, text: str, start: int, types: ParameterTypes) -> Block | None:
        head = self._head.match(text, start)
        assert head is not None
        value_end = json_end(text, head.end())
        next_head = re.compile(rf"{re.escape(self.tool_start_token)}(?:(all)\n|[\w.-]{{1,256}}\n(?=\{{))")
        following = next_head.search(text, value_end or head.end())
        end = self.end_of_turn(text, value_end or head.end(), following.start() if following else len(text))
        if value_end is None and end == len(text):
            return None
        raw = text[head.end() : end].strip()
        try:
            call = ToolParseResult(name=head[1], input=load_arguments(raw, head[1]), span=(start, end))
        except CallError as error:
            call = self.refuse(error, raw, (start, end))
        begins_text = following is not None and following[1] and following.start() == end
        return Block(end=following.end() if following is not None and begins_text else end, calls=(call,))

    def guess_name(self, markup: str) -> str:
        name = markup.split("\n", 1)[0]
        return name if is_name(name) else ""


@register_tool_parser("functionary_v31")
class FunctionaryV31ToolParser(JSONToolParser):
    """Functionary 3.1: `<function=NAME>{...}</function>`."""

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<function=", "</function>")
    OPENING: ClassVar[str] = "{"
    opening = r"(?<!\S)(?P<name>[^<>\s]{1,256}+)>(?=\{)"  # a call without its marker
    _NAME: ClassVar[re.Pattern[str]] = re.compile(r"([^<>]{1,256})>")

    def find_close(self, text: str, start: int) -> int | None:
        head = self._NAME.match(text, start)
        return super().find_close(text, head.end() if head else start)

    def read_item(self, raw: str, span: tuple[int, int]) -> ToolParseResult:
        head = self._NAME.match(raw)
        try:
            if head is None or not is_name(head[1]):
                raise CallError(f"the tag {self.tool_start_token}...> has no valid name", "")
            return ToolParseResult(name=head[1], input=load_arguments(raw[head.end() :].strip(), head[1]), span=span)
        except CallError as error:
            return self.refuse(error, raw, span)

    def guess_name(self, markup: str) -> str:
        head = self._NAME.match(markup)
        return head[1] if head and is_name(head[1]) else ""


# ---- the whole answer


class BareToolParser(JSONToolParser):
    """A call begins where the text does, right behind reasoning, or behind the begin marker, and ends with the turn.

    JSON that is an answer and a call look alike, so only an answer that begins exactly as a call does is one. JSON
    further on in the text is text.
    """

    HAS_MARKER: ClassVar[bool] = True
    """A call may also stand after the begin marker, wherever that is."""

    def begin(self, text: str) -> Callable[[int], int]:
        """A block begins at the start of the visible text, or at the begin marker."""
        find_marker = finder(self.tool_start_token if self.HAS_MARKER else "", text)
        opening = re.compile(self.opening)

        def find_begin(position: int) -> int:
            start = skip_space(text, position)
            # Asked only where the text begins, and behind reasoning.
            return start if opening.match(text, start) else find_marker(position)

        return find_begin

    def outside_error(self, *, is_opened: bool) -> str:
        behind = f", or follows {self.tool_start_token}" if self.HAS_MARKER else ""
        return f"the call stands behind other text, but a call is the whole answer{behind}"

    def unclosed_error(self, markup: str) -> str:
        """Say where the JSON of a call breaks off."""
        try:
            load_json(markup.strip(), "the call is")
        except JSONError as error:
            return str(error)
        return super().unclosed_error(markup)


@register_tool_parser("llama_json", "llama3", "llama3_json")
class LlamaJSONToolParser(BareToolParser, HermesToolParser):
    """A single call per turn: a JSON object that is the whole answer, or all that follows `<|python_tag|>`.

    Without the tag an answer is a call when it begins with the name and the parameters as the template prints them, or
    with `"type": "function"`, a key the format does not have. What follows the object makes the call malformed. The
    built-in tools (`<|python_tag|>name.call(...)`) are malformed too.
    """

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<|python_tag|>", "")
    KEYS: ClassVar[CallKeys] = CallKeys(arguments="parameters")

    @property
    def opening(self) -> str:
        return rf'{self.KEYS.opening}|\{{\s*"type"\s*:\s*"function"'


@register_tool_parser("xlam")
class XLAMToolParser(BareToolParser, JSONListToolParser):
    """xLAM 2: `[{"name": ..., "arguments": {...}}, ...]` as the whole answer, recognised by its beginning."""

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("[", "")
    HAS_MARKER: ClassVar[bool] = False

    @property
    def opening(self) -> str:
        return rf"\[\s*{self.KEYS.opening}\s*:"
