# ruff: noqa: D102 - methods without a docstring are documented in `ToolParser`
"""`<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>`: gpt-oss (harmony)."""

from __future__ import annotations

import re
from typing import ClassVar

from .base import Block, ToolParser, ToolParseResult, register_tool_parser
from .reasoning import BlockReader, SegmentKind, Segments, TextSegment
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
class GptOssToolParser(ToolParser):
    """A turn is several messages, each with a channel: `analysis` is reasoning, the others are visible text.

    A message to `functions.NAME` in the commentary channel is a call; the recipient stands before or behind the
    channel. `<|call|>` is a stop token, so a turn has one call at most. A call is malformed if it names another
    recipient or none, stands in another channel, is not JSON, or has a header or an end of another form. An analysis
    message ends at `<|end|>` and nowhere else: a draft in it is not a call. The header has one form, so only the end
    marker can be replaced.
    """

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<|channel|>commentary to=functions.", "<|call|>")
    DEFAULT_THINK: ClassVar[tuple[str, str]] = ("<|channel|>analysis<|message|>", "<|end|>")

    def cut(self, text: str, read_block: BlockReader | None, *, in_reasoning: bool) -> list[TextSegment]:
        """Cut text into messages; text outside a message is visible."""
        segments = Segments()
        add = segments.add

        def add_body(kind: SegmentKind, start: int, ending: re.Pattern[str]) -> int:
            mark = ending.search(text, start)
            end, behind = mark.span() if mark else (len(text), len(text))
            add(kind, start, end)
            add(SegmentKind.TAG, end, behind)
            return behind

        thought_end = re.compile(re.escape(self.think_tokens[1])) if self.think_tokens else None
        position = add_body(SegmentKind.REASONING, 0, thought_end) if in_reasoning and thought_end else 0
        header, header_at = None, -1
        while position < len(text):
            if header_at < position:  # each stretch is searched once
                header = _HEADER.search(text, position)
                header_at = header.start() if header else len(text)
            broken = _BROKEN_HEADER.search(text, position, header_at) if read_block is not None else None
            start = broken.start() if broken else header_at
            add(SegmentKind.TEXT, position, start)
            if read_block is not None and (broken or (header and self._is_call(text, header))):
                end = read_block(start)
                add(SegmentKind.UNCLOSED if end is None else SegmentKind.BLOCK, start, end or len(text))
                position = end or len(text)
                continue
            if header is None:
                break
            add(SegmentKind.TAG, header.start(), header.end())
            if thought_end and header["channel"] == "analysis" and _recipient(header) is None:
                position = add_body(SegmentKind.REASONING, header.end(), thought_end)
            else:
                position = add_body(SegmentKind.TEXT, header.end(), _END)
        return segments

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

    def _is_call(self, text: str, header: re.Match[str]) -> bool:
        """A message is a call if it has a recipient, or ends as calls do."""
        if _recipient(header) is not None:
            return True
        close = _END.search(text, header.end()) if header["channel"] != "analysis" else None
        return close is not None and close.group() == self.tool_end_token


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
