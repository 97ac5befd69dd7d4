# ruff: noqa: D102 - methods without a docstring are documented in `ToolParser`
"""`[TOOL_CALLS]NAME[ARGS]{...}` and, before that, `[TOOL_CALLS][{"name": ..., "arguments": {...}}]`: Mistral."""

from __future__ import annotations

import re
from typing import ClassVar

from .base import Block, ToolParseResult, register_tool_parser
from .json_calls import CallKeys, JSONListToolParser
from .values import JSONError, ParameterTypes, is_name, json_end, load_arguments, skip_space

ARGS = "[ARGS]"
CALL_ID = "[CALL_ID]"

_ID = re.compile(r"[A-Za-z0-9]{9}")
_WRONG_ID = "the id {!r} is not of nine letters and digits"


@register_tool_parser("mistral")
class MistralToolParser(JSONListToolParser):
    """Both forms of Mistral's calls; they cannot be confused, because no name begins with a bracket.

    One list holds all calls of a turn and ends with it. In the newer form each call has a marker of its own and ends at
    the next marker or with the turn; some models print `[CALL_ID]ID` behind the name. An id that is not of nine letters
    and digits is malformed: the templates refuse it.
    """

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("[TOOL_CALLS]", "")
    DEFAULT_THINK: ClassVar[tuple[str, str]] = ("[THINK]", "[/THINK]")
    KEYS: ClassVar[CallKeys] = CallKeys(id="id")

    def read_block(self, text: str, start: int, types: ParameterTypes) -> Block | None:
        begin = self.tool_start_token
        inner = start + len(begin)
        first = skip_space(text, inner)
        if text.startswith(("[", "{"), first) and not text.startswith(ARGS, first):
            return super().read_block(text, start, types)
        separator = text.find(ARGS, inner, inner + 1024)  # bounded, so that many markers without it cost linear time
        following = text.find(begin, inner)
        if separator < 0 or 0 <= following < separator:
            end = self.end_of_turn(text, inner, following if following >= 0 else len(text))
            return self._refuse(text, "", (start, inner, end), f"{ARGS} is missing behind the tool name")
        name, _, model_id = text[inner:separator].partition(CALL_ID)
        name, model_id = name.strip(), model_id.strip()
        arguments_at = separator + len(ARGS)
        value_end = json_end(text, arguments_at)
        following = text.find(begin, value_end or arguments_at)
        end = self.end_of_turn(text, value_end or arguments_at, following if following >= 0 else len(text))
        if value_end is None and end == len(text):
            return None
        where = (start, arguments_at, end)
        if not is_name(name):
            return self._refuse(text, "", (start, inner, end), "the call has no valid tool name")
        if CALL_ID in text[inner:separator] and not _ID.fullmatch(model_id):
            return self._refuse(text, name, where, _WRONG_ID.format(model_id))
        try:
            arguments = load_arguments(text[arguments_at:end].strip())
        except JSONError as error:
            return self._refuse(text, name, where, str(error), model_id or None)
        call = ToolParseResult(name=name, input=arguments, model_id=model_id or None, span=(start, end))
        return Block(end=end, calls=(call,))

    def read_item(self, raw: str, span: tuple[int, int]) -> ToolParseResult:
        """Read one call of a list; its id has to be one that templates print again."""
        call = super().read_item(raw, span)
        if call.raw is None and call.model_id is not None and not _ID.fullmatch(call.model_id):
            return ToolParseResult(name=call.name, raw=raw, error=_WRONG_ID.format(call.model_id), span=span)
        return call

    def guess_name(self, markup: str) -> str:
        """The text before the arguments, or the `name` of the first object."""
        name = markup.split(ARGS, 1)[0].split(CALL_ID, 1)[0].strip() if ARGS in markup else ""
        return name if is_name(name) else super().guess_name(markup)

    @staticmethod
    def _refuse(text: str, name: str, where: tuple[int, int, int], error: str, model_id: str | None = None) -> Block:
        start, raw_start, end = where
        raw = text[raw_start:end].strip()
        return Block(end, (ToolParseResult(name=name, raw=raw, error=error, model_id=model_id, span=(start, end)),))
