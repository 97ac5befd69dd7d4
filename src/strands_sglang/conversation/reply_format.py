"""The frame of replies: learnt by reading, with the parser in use, the replies that a chat template prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..exceptions import TemplateError
from ..template import DeltaRenderer, TemplateVerdict, tags_of
from ..template.replies import SAID, THOUGHT, PrintedReplies, PrintedReply, argument_of
from ..tool_parsers import HermesToolParser, ParseOutput, ToolParser
from ..tool_parsers.splitting import DEFAULT_THINK_TOKENS, ReplyFrame, SegmentKind
from .tool_calls import (
    PrintedCalls,
    check_names,
    check_tool_parser,
    choose_tool_parser,
    find_tool_parser,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyReader:
    """The reader of a template's replies.

    Attributes:
        parser: Reads calls, reasoning and text, and takes off the frame.
        needs_function_ids: The template prints a tool's name only as part of the call id.
        problem: Markers that are shown as text because nothing takes them off, in a sentence; empty if there are none.
    """

    parser: ToolParser
    needs_function_ids: bool
    problem: str


def choose_reader(renderer: DeltaRenderer, tool_parser: ToolParser | None = None) -> ReplyReader:
    """Find, or check, the parser for a template's replies and prove it on those that the template prints.

    Raises:
        TemplateError: The template cannot be used with tools.
        ToolParserError: No parser reads its calls, or one cannot express the tools.
    """
    report, printed, with_tools = renderer.report, PrintedCalls.of(renderer), renderer.tools is not None
    if not with_tools:
        # Some families write more than reasoning beside the answer, whether there are tools or not.
        parser = tool_parser or find_tool_parser(printed) or HermesToolParser()
    else:
        if report.verdict is TemplateVerdict.UNSUPPORTED:
            raise TemplateError(
                f"this chat template cannot be used with tools: {report.summary}; "
                "`strands-sglang doctor` says why, and chat_template= takes another template"
            )
        if tool_parser is None:
            parser = choose_tool_parser(printed)
        else:
            parser = tool_parser
            check_tool_parser(parser, printed)
        check_names(parser, renderer)
    # A user's own tags, and those of a family, are known better than by a look at the template.
    has_own_tags = parser.think_tokens not in (DEFAULT_THINK_TOKENS, parser.DEFAULT_THINK)
    named = renderer.template.text(tools_present=with_tools)
    if parser.think_tokens == DEFAULT_THINK_TOKENS and DEFAULT_THINK_TOKENS[0] not in named:
        parser = parser.with_think_tokens(tags_of(named) or DEFAULT_THINK_TOKENS)
    reader = parser.with_think_tokens(report.opened_tags(report.generation_prompt) or parser.think_tokens)
    frame, problem = learn_frame(reader, report.replies, with_calls=with_tools, with_reasoning=not has_own_tags)
    if problem and with_tools:
        raise TemplateError(f"this chat template cannot be used with tools: {problem}")
    if frame is not None:
        parser = parser.with_frame(frame)
    needs_function_ids = with_tools and printed.need_function_ids(parser)
    return ReplyReader(parser=parser, needs_function_ids=needs_function_ids, problem=problem)


def learn_frame(
    parser: ToolParser, printed: PrintedReplies, *, with_calls: bool, with_reasoning: bool = True
) -> tuple[ReplyFrame | None, str]:
    """The frame to give to a parser for the replies of a template, and why it does not read them even so.

    Args:
        parser: Has the tags of reasoning that are known by name.
        with_calls: There are tools; without any, a model is not expected to call one.
        with_reasoning: The parser looks for the tags that the template prints, or may.

    Returns:
        None for replies without a frame, and an empty text if they are read.
    """
    replies = [each for each in printed.replies if with_calls or not each.calls]
    replies = [each for each in replies if with_reasoning or not each.thought]
    problem, fallback = "", None
    # The tags that the rendering shows serve where those known by name do not.
    for tags in dict.fromkeys([None, printed.tags if with_reasoning else None]):
        reader = parser.with_frame(ReplyFrame(tags=tags, opening=printed.opening))
        frame = replace(_learn(reader, replies), tags=tags, opening=printed.opening)
        reader = parser.with_frame(frame)
        wrong = [
            (reply, read)
            for reply, _, read in _read(reader, replies)
            if (read.reasoning.strip(), read.text.strip()) != (reply.thought, reply.said)
        ]
        if not wrong:
            return (frame if frame.texts or tags is not None else None), ""
        for reply, read in wrong:
            rest = f"{read.text} {read.reasoning}".replace(SAID, "").replace(THOUGHT, "")
            if not problem and printed.has_marker(rest):
                shown = reply.text.strip().replace(SAID, "TEXT").replace(THOUGHT, "REASONING")
                problem = (
                    f"of its reply {shown!r}, {rest.strip()!r} is left beside reasoning, text and calls; give a "
                    "tool_parser= that reads it, or another chat_template="
                )
        fallback = fallback or frame
    return fallback if fallback is not None and fallback.texts else None, problem


def _learn(parser: ToolParser, replies: Sequence[PrintedReply]) -> ReplyFrame:
    """Remains of the printed frame that a parser leaves in the visible text."""
    before_text, behind_text, before_calls, behind_calls = set[str](), set[str](), set[str](), set[str]()
    for _, text, read in _read(parser, replies):
        is_call = [segment.kind is SegmentKind.BLOCK for segment in read.segments]
        for index, (kind, start, end) in enumerate(read.segments):
            piece = text[start:end]
            if kind is not SegmentKind.TEXT or THOUGHT in piece:
                continue
            follows, leads = index > 0 and is_call[index - 1], is_call[index + 1 : index + 2] == [True]
            before, said, behind = piece.partition(SAID)
            if not said and leads:
                before, behind = "", before
            (behind_calls if follows else before_text).add(_edge(before))
            (before_calls if leads else behind_text).add(_edge(behind[::-1])[::-1])
    return ReplyFrame(
        before_text=_longest_first(before_text),
        behind_text=_longest_first(behind_text),
        before_calls=_longest_first(before_calls),
        behind_calls=_longest_first(behind_calls),
    )


def _longest_first(texts: set[str]) -> tuple[str, ...]:
    return tuple(sorted(texts - {""}, key=lambda text: (-len(text), text)))


def _edge(text: str) -> str:
    """A text before what was said, without blanks, but for one that ends its last word."""
    return text.lstrip() if text.rstrip()[-1:].isalnum() else text.strip()


def _read(parser: ToolParser, replies: Sequence[PrintedReply]) -> Iterator[tuple[PrintedReply, str, ParseOutput]]:
    """Read the replies, but for those whose calls the parser does not know."""
    for reply in replies:
        arguments = [argument_of(number) for number in range(1, reply.calls + 1)]
        # A stop token that ends a call is sampled and read, but not printed.
        for text in (reply.text, reply.text + parser.tool_end_token)[: 2 if reply.calls else 1]:
            read = parser.parse_all(text, in_reasoning=reply.in_reasoning)
            if [call.input for call in read.calls] == arguments:
                yield reply, text, read
                break
