"""Reads sampled ids as a reply: reasoning, visible text, tool calls."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import pydantic

from ..exceptions import StructuredOutputError
from ..tokenizer import TokenizerAdapter
from ..tool_parsers import ToolParser, ToolParseResult
from ..tool_parsers.splitting import SegmentKind, ThinkTokens
from ..tool_parsers.values import JSONError, load_json
from ..trajectory import Call, Completion, FinishType, Message, ToolCall, Turn
from .messages import MALFORMED_KEY
from .model_options import MalformedCalls
from .prompts import PreparedTurn

T = TypeVar("T", bound=pydantic.BaseModel)

STOP_END_TURN = "end_turn"
STOP_TOOL_USE = "tool_use"
STOP_MAX_TOKENS = "max_tokens"
STOP_ABORTED = "aborted"
"""The server aborted the call and the abort policy is `surface`. The SDK does not know this stop reason: it hands it
through and ends the loop."""
STOP_UNFINISHED = "unfinished"
"""The server named an end that this package does not know, so the reply may lack a part and its calls are not run.
Not a stop reason of the SDK either."""

_STOP_REASONS = {
    FinishType.STOP: STOP_END_TURN,
    FinishType.LENGTH: STOP_MAX_TOKENS,
    FinishType.ABORT: STOP_ABORTED,
    FinishType.UNKNOWN: STOP_UNFINISHED,
}


class ReadReply(NamedTuple):
    """A completion, read.

    Attributes:
        message: Its reasoning, visible text and calls, in this order; the input of a malformed call is an object that
            holds its text.
        calls: Its calls as the trajectory keeps them.
        stop_reason: One of the `STOP_*` names.
        stop_string: The stop string that ended the turn, or None.
    """

    message: Message
    calls: Sequence[ToolCall]
    stop_reason: str
    stop_string: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTurn:
    """A turn that was sampled and committed.

    Attributes:
        turn: The turn as the forest holds it: ids, log-probabilities, finish, calls.
        stop_reason: One of the `STOP_*` names.
        stop_string: The stop string that ended the turn, or None.
        think_end: The token that ends reasoning, or None.
    """

    turn: Turn
    stop_reason: str
    stop_string: str | None
    think_end: str | None

    @property
    def reply(self) -> Message:
        """The reply for the caller: reasoning, text, calls."""
        return self.turn.reply

    @property
    def prompt_length(self) -> int:
        """Length of the whole prompt in tokens, as the server counts it."""
        return self.turn.expanded_end - len(self.turn.completion.output_ids)


def read_reply(
    prepared: PreparedTurn,
    completion: Completion,
    parser: ToolParser,
    tokens: TokenizerAdapter,
    next_call_id: Callable[[], str],
) -> ReadReply:
    """Decode, split and parse a completion.

    A completion that was cut (length, abort, an end unknown here) makes no calls: a call in it may be incomplete, and
    the SDK would put its own words in its place. Its markup stays in the text. Text is decoded from the ids, never
    taken from the server.
    """
    request, tools = prepared.request, prepared.format.renderer.tools
    in_reasoning = prepared.prompt.open is not None
    finish = completion.finish
    reads_calls = tools is not None and finish.type is FinishType.STOP and request.read_calls
    ids = without_stop(completion, tokens, parser if reads_calls else None)
    text = tokens.decode(ids)
    matched = finish.matched if finish.type is FinishType.STOP else None
    stop_string = matched if isinstance(matched, str) and matched in text else None
    if request.trim_stop and stop_string is not None:
        text = text[: text.rindex(stop_string)]

    if request.constraints and in_reasoning and finish.type is FinishType.STOP and is_answer(text, parser.think_tokens):
        in_reasoning, parser = False, parser.with_think_tokens(None)
    if not reads_calls:
        parsed = parser.parse_all(text, in_reasoning=in_reasoning, read_calls=False)
        return ReadReply(_reply(parsed.reasoning, parsed.text), (), _STOP_REASONS[finish.type], stop_string)
    parsed = parser.parse_all(text, in_reasoning=in_reasoning, tools=tools)
    # In text or reasoning, not in a call.
    ends_open = bool(parsed.segments) and parsed.segments[-1].kind in (SegmentKind.TEXT, SegmentKind.REASONING)
    stop = completion.last_stop if ids is completion.output_ids and ends_open else None
    if stop is not None and tokens.is_control(stop):
        text = tokens.decode(ids[:-1])  # a token that ends calls has ended a reply in which none is open
        parsed = parser.parse_all(text, in_reasoning=in_reasoning, tools=tools)
    reply_calls: list[Call] = []
    calls: list[ToolCall] = []
    visible = parsed.text
    for result in (*parsed.calls, *([parsed.unclosed_call] if parsed.unclosed_call is not None else [])):
        call_id = next_call_id()
        error = tokens.without_control_tokens(result.error or "the call is malformed") if result.is_error else None
        is_text = error is not None and request.malformed_calls is MalformedCalls.TEXT
        calls.append(ToolCall(id=call_id, name=result.name, model_id=result.model_id, error=error, is_text=is_text))
        if is_text:
            visible += text[slice(*result.span)] or result.raw or ""
        else:
            reply_calls.append(_call(call_id, result, error, rename=request.malformed_calls is MalformedCalls.RENAME))
    # Calls that are given as text take nothing out of it: the caller sees the reply as it was sampled.
    if calls and not reply_calls:
        shown = (SegmentKind.TEXT, SegmentKind.BLOCK, SegmentKind.UNCLOSED)
        visible = "".join(text[each.start : each.end] for each in parsed.segments if each.kind in shown)
    stop_reason = STOP_TOOL_USE if reply_calls else STOP_END_TURN
    return ReadReply(_reply(parsed.reasoning, visible, reply_calls), calls, stop_reason, stop_string)


def _reply(reasoning: str, visible: str, calls: Sequence[Call] = ()) -> Message:
    parts = (text,) if (text := visible.strip()) else ()
    return Message(role="assistant", parts=parts, reasoning=reasoning.strip(), calls=tuple(calls))


def _call(call_id: str, result: ToolParseResult, error: str | None, *, rename: bool) -> Call:
    if error is None:
        return Call(call_id, result.name, result.input)
    # What was written is kept, in an object: hooks read arguments, and templates that print the history iterate them.
    name = f"{result.name}: {error}" if rename else result.name
    return Call(call_id, name, {MALFORMED_KEY: result.raw or ""})


def without_stop(completion: Completion, tokens: TokenizerAdapter, parser: ToolParser | None = None) -> array[int]:
    """The ids without a stop token that only ends the turn; one that ends a call, or is ordinary text, is read."""
    ids, stop_id = completion.output_ids, completion.last_stop
    if stop_id is None:
        return ids
    ends_call = parser is not None and tokens.token_text(stop_id) in parser.tool_call_tokens
    return ids if ends_call or not tokens.is_control(stop_id) else ids[:-1]


def is_answer(text: str, tags: ThinkTokens | None) -> bool:
    """True if a text sampled under a grammar is the answer from its beginning, though the prompt opened reasoning.

    Servers without a reasoning parser do not know that block and constrain the text from its beginning.
    """
    if tags is None or tags[1] not in text:
        return True
    try:
        load_json(text.strip())
    except JSONError:
        return False
    return True


def read_constrained(output_model: type[T], completion: Completion, text: str, *, open: ThinkTokens | None) -> T:
    """The instance that a text sampled under the model's JSON schema is.

    Args:
        text: The whole text: tags that a string of the JSON holds are a part of it.
        open: Tags of the reasoning block that the prompt opened: the grammar was to wait for its end. Not every server
            does, so both are read.

    Raises:
        StructuredOutputError: It was cut, or does not validate.
    """
    if completion.finish.type is not FinishType.STOP:
        raise StructuredOutputError(
            f"the answer for {output_model.__name__} was cut ({completion.finish.type}) after "
            f"{len(completion.output_ids)} tokens; raise max_new_tokens or bound the strings of the schema"
        )
    candidates = [text]
    if open is not None and open[1] in text:
        candidates.append(text.partition(open[1])[2])
    for candidate in candidates:
        try:
            return output_model.model_validate_json(candidate)
        except pydantic.ValidationError as error:
            failure = error
    raise StructuredOutputError(f"the answer does not validate as {output_model.__name__}: {failure}") from failure
