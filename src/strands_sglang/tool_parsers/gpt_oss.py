# ruff: noqa: D102 - methods without a docstring are documented in `ToolParser`
"""`<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>`: gpt-oss (harmony)."""

from __future__ import annotations

import re
from typing import ClassVar

from .base import register_tool_parser
from .calls import Block, ToolParseResult
from .message_formats import MessageToolParser
from .splitting import SegmentKind
from .values import CallError, ParameterTypes, is_name, json_end, load_arguments, skip_space

_HEADER = re.compile(
    r"(?:<\|start\|>assistant)?"
    r"(?: ?to=(?P<before>[^\s<]{1,256}) ?)?"
    r"<\|channel\|>(?P<channel>\w{1,64})"
    r"(?: to=(?P<behind>[^\s<]{1,256}))?"
    r"(?: ?(?:<\|constrain\|>)?(?P<type>\w{1,64}))? ?"
    r"<\|message\|>"
)
_END = re.compile(r"<\|(?:end|call|return)\|>|(?=<\|start\|>)")
_RECIPIENT = "functions."
_BROKEN_HEADER = re.compile(
    r"(?:<\|start\|>assistant)?"
    r"(?:<\|channel\|>[^<]{0,256}?\bto=|to=functions\.[^<]{0,256}<\|(?:channel|constrain|message)\|>)"
)
_NAME = re.compile(r"(?<=functions\.)[^\s<{]{1,256}")
# The model reads this: its own control tokens would be a header in the midst of the tool result.
_WRONG_HEADER = f"the header is not of the form 'commentary to={_RECIPIENT}NAME json'"


@register_tool_parser("gpt_oss", "gpt-oss", "harmony")
class GptOssToolParser(MessageToolParser):
    """A turn is several messages, each with a channel: `analysis` is reasoning, the others are visible text.

    A message to `functions.NAME` in the commentary channel is a call; the recipient stands before or behind the
    channel. `<|call|>` is a stop token, so a turn has one call at most. A call is malformed if it names another
    recipient or none, stands in another channel, is not JSON, or has a header or an end of another form. An analysis
    message ends only at `<|end|>`: a draft in it is not a call. The header has one form, so only the end
    marker can be replaced.
    """

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<|channel|>commentary to=functions.", "<|call|>")
    DEFAULT_THINK: ClassVar[tuple[str, str]] = ("<|channel|>analysis<|message|>", "<|end|>")
    HEADER: ClassVar[re.Pattern[str]] = _HEADER
    END: ClassVar[re.Pattern[str]] = _END
    BROKEN_HEADER: ClassVar[re.Pattern[str]] = _BROKEN_HEADER

    def kind(self, header: re.Match[str]) -> SegmentKind:
        """A message is a call if it has a recipient, or ends as calls do."""
        if _recipient(header) is not None:
            return SegmentKind.BLOCK
        close = _END.search(header.string, header.end()) if header["channel"] != "analysis" else None
        if close is not None and close.group() == self.tool_end_token:
            return SegmentKind.BLOCK
        return SegmentKind.REASONING if header["channel"] == "analysis" else SegmentKind.TEXT

    def read_block(self, text: str, start: int, types: ParameterTypes) -> Block | None:
        header, end_marker = _HEADER.match(text, start), self.tool_end_token
        begin = header or _BROKEN_HEADER.match(text, start)
        body = begin.end() if begin else start
        # An end marker inside a JSON string is text.
        value_end = json_end(text, body) if header else None
        close = len(text) if value_end is None else skip_space(text, value_end)
        end = close + len(end_marker)
        if not text.startswith(end_marker, close):
            mark = _END.search(text, body)
            if mark is None:
                return None
            close, end = mark.span()
        try:
            name = _called_function(header)
            if not text.startswith(end_marker, close):
                raise CallError(f"{end_marker} is missing", name)
            call = ToolParseResult(name=name, input=load_arguments(text[body:close].strip(), name), span=(start, end))
        except CallError as error:
            call = self.refuse(error, text[body if header else start : close].strip(), (start, end))
        return Block(end=end, calls=(call,))

    def outside_error(self, *, is_opened: bool) -> str:
        return _WRONG_HEADER

    def guess_name(self, markup: str) -> str:
        match = re.match(r"[^\s<={]{1,256}(?=[\s<{]|$)", markup) or _NAME.search(markup)
        return match.group() if match else ""


def _called_function(header: re.Match[str] | None) -> str:
    """The function that a message calls; `CallError` where its header has another form."""
    if header is None:
        raise CallError(_WRONG_HEADER)
    recipient = _recipient(header)
    if not recipient:
        raise CallError(f"the call has no recipient, to={_RECIPIENT}NAME is missing", "")
    name = recipient.removeprefix(_RECIPIENT)
    if (
        not (recipient.startswith(_RECIPIENT) and is_name(name))
        or (header["before"] and header["behind"])
        or header["channel"] != "commentary"
        or header["type"] not in (None, "json")
    ):
        raise CallError(_WRONG_HEADER, name)
    return name


def _recipient(header: re.Match[str]) -> str | None:
    return header["behind"] or header["before"]
