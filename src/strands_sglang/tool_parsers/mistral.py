# ruff: noqa: D102 - methods without a docstring are documented in `ToolParser`
"""`[TOOL_CALLS]NAME[ARGS]{...}` and, before that, `[TOOL_CALLS][{"name": ..., "arguments": {...}}]`: Mistral."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from .base import Block, ToolParseResult, register_tool_parser
from .json_calls import CallKeys, JSONListToolParser
from .values import CallError, ParameterTypes, is_name, json_end, load_arguments, skip_space

ARGS = "[ARGS]"
CALL_ID = "[CALL_ID]"

NINE_ALPHANUMERICS = re.compile(r"[A-Za-z0-9]{9}")
"""Ids that the templates take."""
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
            if has_id and not NINE_ALPHANUMERICS.fullmatch(printed_id):
                raise CallError(_WRONG_ID.format(printed_id), name)
            call_id = printed_id or None
            arguments = load_arguments(text[arguments_at:end].strip(), name)
            call = ToolParseResult(name=name, input=arguments, model_id=call_id, span=(start, end))
        except CallError as error:
            call = self.refuse(error, text[raw_start:end].strip(), (start, end), call_id)
        return Block(end=end, calls=(call,))

    def read_object(self, call: Any) -> ToolParseResult:
        """Read one call of a list; its id has to be one that templates print again."""
        result = super().read_object(call)
        if result.model_id is not None and not NINE_ALPHANUMERICS.fullmatch(result.model_id):
            raise CallError(_WRONG_ID.format(result.model_id), result.name)
        return result

    def guess_name(self, markup: str) -> str:
        """The text before the arguments, or the `name` of the first object."""
        name = markup.split(ARGS, 1)[0].split(CALL_ID, 1)[0].strip() if ARGS in markup else ""
        return name if is_name(name) else super().guess_name(markup)
