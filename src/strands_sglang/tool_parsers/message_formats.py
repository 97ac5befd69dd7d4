# ruff: noqa: D102 - methods without a docstring are documented in `ToolParser`
"""Turns of several messages, each with a header that names its kind: Muse Glimmer, Inkling, Solar Open; gpt-oss."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from .base import ToolParser, register_tool_parser
from .calls import Block
from .json_calls import CallKeys, HermesToolParser
from .sections import CallTokens, Header, SectionToolParser
from .splitting import BlockReader, SegmentKind, Segments, TextSegment
from .tags import TaggedToolParser, TagGrammar
from .values import CallError, ParameterTypes, skip_space


class MessageToolParser(ToolParser):
    """A message is reasoning, visible text or a call by its header; text outside a message is visible.

    A reasoning message ends only at its end marker: a draft of a call in it is not a call. Headers
    have one form, so only the end marker of calls can be replaced.
    """

    HEADER: ClassVar[re.Pattern[str]]
    """The header of a message, with the name of its kind in the group `type`."""
    KINDS: ClassVar[Mapping[str | None, SegmentKind]]
    """The kind of a message by its type; of any other it is a call."""
    END: ClassVar[re.Pattern[str]]
    """The end of a message of visible text."""
    BROKEN_HEADER: ClassVar[re.Pattern[str]] = re.compile(r"(?!)")
    """The beginning of a call whose header has another form; looked for between messages."""

    def kind(self, header: re.Match[str]) -> SegmentKind:
        """The kind of the message with this header; `BLOCK` is a call."""
        return self.KINDS.get(header["type"], SegmentKind.BLOCK)

    def thought_end(self, marker: str) -> re.Pattern[str]:
        """The end of a reasoning message, `marker` at the least."""
        return re.compile(re.escape(marker))

    def cut(self, text: str, read_block: BlockReader | None, *, in_reasoning: bool) -> list[TextSegment]:
        """Cut text into messages."""
        segments = Segments()
        add = segments.add

        def add_body(kind: SegmentKind, start: int, ending: re.Pattern[str]) -> int:
            mark = ending.search(text, start)
            end, behind = mark.span() if mark else (len(text), len(text))
            add(kind, start, end)
            add(SegmentKind.TAG, end, behind)
            return behind

        thought_end = self.thought_end(self.think_tokens[1]) if self.think_tokens else None
        position = add_body(SegmentKind.REASONING, 0, thought_end) if in_reasoning and thought_end else 0
        header, header_at = None, -1
        while position < len(text):
            if header_at < position:  # each stretch is searched once
                header = self.HEADER.search(text, position)
                header_at = header.start() if header else len(text)
            broken = self.BROKEN_HEADER.search(text, position, header_at) if read_block is not None else None
            start = broken.start() if broken else header_at
            add(SegmentKind.TEXT, position, start)
            kind = SegmentKind.BLOCK if broken else self.kind(header) if header else None
            if kind is SegmentKind.BLOCK and read_block is not None:
                end = read_block(start)
                add(SegmentKind.UNCLOSED if end is None else SegmentKind.BLOCK, start, end or len(text))
                position = end or len(text)
                continue
            if header is None:
                break
            add(SegmentKind.TAG, header.start(), header.end())
            if thought_end and kind is SegmentKind.REASONING:
                position = add_body(SegmentKind.REASONING, header.end(), thought_end)
            else:
                position = add_body(SegmentKind.TEXT, header.end(), self.END)
        return segments

    def refuse_block(self, error: CallError, text: str, start: int, end: int) -> Block:
        """The malformed call that a message is."""
        return Block(end, (self.refuse(error, text[start:end].strip(), (start, end)),))


_RECIPIENT = r" to=[^\s<]{1,256}"


@register_tool_parser("muse_glimmer", "muse")
class MuseGlimmerToolParser(MessageToolParser, TaggedToolParser):
    """Muse Glimmer: ` to=NAME<|message|>`, then one call between tags; messages to `self` are reasoning.

    The first header is short, because the prompt ends with `<|start|>assistant`; a call with a short header further on,
    where a thought was not ended, is malformed, and so is one whose recipient is not the tool it calls. Values stand
    bare and are decoded by the schema.
    """

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<atem:function_calls>", "</atem:function_calls>")
    DEFAULT_THINK: ClassVar[tuple[str, str]] = (" to=self<|message|>", "<|eom|>")
    HEADER: ClassVar[re.Pattern[str]] = re.compile(
        r"(?:<\|start\|>assistant)?(?: to=(?P<type>[^\s<]{1,256}))?<\|message\|>"
    )
    KINDS: ClassVar[Mapping[str | None, SegmentKind]] = {
        "self": SegmentKind.REASONING,
        "user": SegmentKind.TEXT,
        None: SegmentKind.TEXT,
    }
    BROKEN_HEADER: ClassVar[re.Pattern[str]] = re.compile(re.escape(DEFAULT_TOKENS[0]))
    END: ClassVar[re.Pattern[str]] = re.compile(
        rf"<\|eo[mt]\|>|(?=<\|start\|>|{_RECIPIENT}<\|message\|>|{BROKEN_HEADER.pattern})"
    )
    GRAMMAR: ClassVar[TagGrammar] = TagGrammar(
        call=('<atem:invoke name="', '">'),
        call_close="</atem:invoke>",
        parameter=('<atem:parameter name="', '">'),
        parameter_close="</atem:parameter>",
    )

    def thought_end(self, marker: str) -> re.Pattern[str]:
        # A header in a thought is no draft: its token is written for nothing but the next message.
        return re.compile(rf"{re.escape(marker)}|(?={_RECIPIENT}<\|message\|>)")

    def read_block(self, text: str, start: int, types: ParameterTypes) -> Block | None:
        header = self.HEADER.match(text, start)
        body = skip_space(text, header.end()) if header else start
        if not text.startswith(self.tool_start_token, body):
            mark = self.END.search(text, body)
            end = mark.end() if mark else len(text)
            return self.refuse_block(
                CallError(f"{self.tool_start_token} is missing", header and header["type"]), text, start, end
            )
        block = super().read_block(text, body, types)
        if block is None:
            return None
        call, behind = block.calls[0], skip_space(text, block.end)
        mark = self.END.search(text, behind)
        close, end = mark.span() if mark else (len(text), len(text))
        if header is None:
            end, error = block.end, "the call stands in no message to a tool"
        elif start and header[0][0] == " ":
            error = "the message before the call is not ended"
        elif not call.is_error and call.name != header["type"]:
            error = f"the message is to {header['type']!r} and calls another tool"
        elif close > behind:
            error = f"text stands behind {self.tool_end_token}"
        else:
            return Block(end=end, calls=(call.with_span(start, end),))
        return self.refuse_block(CallError(error, call.name), text, start, end)


@register_tool_parser("inkling")
class InklingToolParser(MessageToolParser, HermesToolParser):
    """Inkling: `<|message_model|>NAME<|content_invoke_tool_json|>{"name": "NAME", "args": {...}}<|end_message|>`.

    The first header is short, because the prompt ends with `<|message_model|>`. A call whose header names another tool
    or none, or that is not JSON, is malformed.
    """

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<|content_invoke_tool_json|>", "<|end_message|>")
    DEFAULT_THINK: ClassVar[tuple[str, str]] = ("<|content_thinking|>", "<|end_message|>")
    END_IS_TEXT: ClassVar[bool] = True  # it ends every message
    KEYS: ClassVar[CallKeys] = CallKeys(arguments="args")
    _CONTENT: ClassVar[str] = r"<\|content_(?P<type>thinking|text|invoke_tool_\w{1,32})\|>"
    KINDS: ClassVar[Mapping[str | None, SegmentKind]] = {
        "thinking": SegmentKind.REASONING,
        "text": SegmentKind.TEXT,
    }
    HEADER: ClassVar[re.Pattern[str]] = re.compile(rf"(?:(?:\A|<\|message_model\|>)(?P<name>[^<]{{0,256}}))?{_CONTENT}")
    END: ClassVar[re.Pattern[str]] = re.compile(r"<\|end_message\|>|(?=<\|message_model\|>|<\|content_)")

    def read_block(self, text: str, start: int, types: ParameterTypes) -> Block | None:
        header = self.HEADER.match(text, start)
        assert header is not None
        block = super().read_block(text, header.start("type") - len("<|content_"), types)
        if block is None:
            return None
        call, name = block.calls[0], (header["name"] or "").strip()
        if header["type"] != "invoke_tool_json":
            error = CallError("the message is not of the type that calls a tool by JSON", name)
        elif not call.is_error and name != call.name:
            error = CallError(f"the header names {name!r}" if name else "the header names no tool", call.name)
        else:
            return Block(end=block.end, calls=(call.with_span(start, block.end),))
        return self.refuse_block(error, text, start, block.end)


@register_tool_parser("solar_open")
class SolarOpenToolParser(MessageToolParser, SectionToolParser):
    """Solar Open: `<|tool_calls|>`, then `<|tool_call:begin|>ID<|tool_call:name|>NAME<|tool_call:args|>{...}`.

    `<|calls|>` ends the calls and is a stop token. The first header is short, because the prompt ends with
    `<|begin|>assistant`.
    """

    DEFAULT_TOKENS: ClassVar[tuple[str, str]] = ("<|tool_calls|>", "<|calls|>")
    DEFAULT_THINK: ClassVar[tuple[str, str]] = ("<|think|>", "<|end|>")
    HEADER: ClassVar[re.Pattern[str]] = re.compile(r"(?:<\|begin\|>assistant)?<\|(?P<type>think|content|tool_calls)\|>")
    KINDS: ClassVar[Mapping[str | None, SegmentKind]] = {
        "think": SegmentKind.REASONING,
        "content": SegmentKind.TEXT,
    }
    END: ClassVar[re.Pattern[str]] = re.compile(r"<\|(?:end|calls|flush)\|>|(?=<\|begin\|>|<\|tool_calls\|>)")
    CALL: ClassVar[CallTokens] = CallTokens(
        begin="<|tool_call:begin|>", separator="<|tool_call:args|>", end="<|tool_call:end|>"
    )
    BROKEN_HEADER: ClassVar[re.Pattern[str]] = re.compile(re.escape(CALL.begin))

    def read_header(self, header: str) -> Header:
        model_id, _, name = header.partition("<|tool_call:name|>")
        return Header(name=name.strip(), model_id=model_id.strip() or None)

    def read_block(self, text: str, start: int, types: ParameterTypes) -> Block | None:
        header = self.HEADER.match(text, start)
        return super().read_block(text, start if header is None else header.start("type") - len("<|"), types)
