"""The contract of a dialect: a parsed request, a reply to write, a refusal, and the functions between them."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ... import exceptions as errors
from ...trajectory import Call, History, Message
from ..canonical import Readings
from ..exact_json import dumps

logger = logging.getLogger(__name__)


class Refused(errors.StrandsSGLangError):
    """A request that is refused; each dialect has its own wording.

    Attributes:
        code: Machine-readable reason, or None.
        param: The field at fault, or None.
        retry_after: Seconds after which a retry makes sense; None asks clients not to retry.
        prompt: Tokens of a prompt that does not fit, and the number that would; None for other reasons.
        is_kept: The session goes on, and so may the answer: a stream that began is cut, for its client to ask again.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
        prompt: tuple[int, int] | None = None,
        is_kept: bool = False,
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.code, self.param = message, status, code, param
        self.retry_after, self.prompt, self.is_kept = retry_after, prompt, is_kept

    @classmethod
    def of(cls, error: Exception) -> Refused:
        """The client's view of any error. Words of one that is not ours may hold secrets: nobody gets them."""
        if isinstance(error, cls):
            return error
        match error:
            case errors.ContextOverflowError():
                prompt = (error.tokens, error.limit)
                return cls(str(error), code="context_length_exceeded", param="messages", prompt=prompt)
            case errors.TokenBudgetReachedError() | errors.ToolLimitReachedError():
                return cls(str(error), code="rollout_limit")  # 400: every SDK repeats a 429
            case errors.TemplateError() | errors.MessageConversionError() | errors.ToolParserError():
                return cls(str(error), code="unsupported")
            case errors.BackendRequestError():  # the server cannot serve it
                return cls(str(error), code="unsupported")
            case errors.BackendThrottledError():
                return cls("the model server is busy", status=503, code="overloaded", retry_after=1)
            case errors.BackendHTTPError(status=401 | 403):  # its words may name our own key
                return cls(f"the model server refused the gateway (HTTP {error.status})", status=502, code="upstream")
            case errors.BackendHTTPError() if 400 <= error.status < 500:
                return cls(f"the model server refused the request: {error}", code="upstream_refused")
            case errors.BackendError():
                return cls(f"the model server gave no answer: {error}", status=503, code="upstream", retry_after=1)
            case errors.StateFullError():
                return cls(str(error), status=507, code="state_full", retry_after=10, is_kept=True)
            case errors.StrandsSGLangError():
                return cls(str(error), status=500, code="internal")
        where = traceback.extract_tb(error.__traceback__)[-1]
        logger.error("error=<%s>, where=<%s:%d> | request failed", type(error).__name__, where.name, where.lineno)
        return cls(f"internal error ({type(error).__name__})", status=500, code="internal")


class Unshown(Refused):
    """A part of content that is not text and not an image given as bytes.

    In the result of a tool the model is told so instead, with `reason`.
    """

    def __init__(self, reason: str, where: str) -> None:
        super().__init__(f"{where}: {reason}", param=where)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The program a request comes from, and the agent within it, by its headers.

    Attributes:
        idempotency_key: Name that the client gave the request, the same for all of its repeats.
        is_retry: It says that it repeats a request whose answer did not come, or that a repeat may come.
    """

    client: str = "unknown"
    agent: str | None = None
    idempotency_key: str | None = None
    is_retry: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WireRequest:
    """A request of any dialect.

    Attributes:
        model: Name of the model as the client wrote it; it is echoed.
        system: System prompt: the system field and the system messages in front of the first other one.
        history: Its messages, calls under the client's ids; a reply may come in pieces.
        glue: Joins texts of the pieces of a reply; None where replies come whole.
        tools: Strands tool specs.
        sampling: Sampling parameters the client asked for, in SGLang's names.
        spelled: The client's names of fields that have other names here.
        constraints: A grammar for the reply, as a sampling parameter of SGLang; empty for none.
        tool_choice: `auto`, `none`, `required`, or the name of a tool.
        usage_chunk: End the stream with a chunk of token counts (Chat Completions).
        token_ids: Return the ids of the prompt and of the reply.
        begun: Pieces of the answer at the end of the history, which the client got before it lost the rest (Responses).
        previous: Id of the response this one continues (Responses), or None.
        custom_tools: Names of tools that take a text in place of arguments (Responses).
        kept_by: Keeps the answer, which a later request may name instead of sending the history (Responses).
        ignored: Names of fields that would have an effect elsewhere and have none here.
        unknown_tools: Types of tools, and of items of a history, that were left out.
    """

    model: str
    system: str
    history: History
    glue: str | None = None
    tools: list[dict[str, Any]] = field(default_factory=list)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)
    spelled: Mapping[str, str] = field(default_factory=dict)
    constraints: Mapping[str, Any] = field(default_factory=dict)
    tool_choice: str = "auto"
    stream: bool = False
    usage_chunk: bool = False
    logprobs: bool = False
    token_ids: bool = False
    begun: Message | None = None
    previous: str | None = None
    custom_tools: frozenset[str] = frozenset()
    kept_by: Readings | None = None
    ignored: tuple[str, ...] = ()
    unknown_tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WireReply:
    """A sampled turn on its way to a client, the same for every delivery.

    Attributes:
        id: 24 hexadecimal digits, new with every turn.
        created: Unix time in seconds.
        text: Visible text.
        calls: Tool calls; an id is 24 hexadecimal digits, to which each dialect adds its own prefix.
        finish: `stop`, `length` or `tool_calls`.
        prompt_tokens: Length of the whole prompt.
        cached_tokens: Prompt tokens found in the server's cache.
        reasoning_tokens: Those of `output_tokens` that are reasoning.
        receipt: Proof by which the turn is recognised when the client returns it.
        logprobs: Text and log-probability of every sampled token, where asked for; None where the server gave none.
        prompt_ids, output_ids: Ids of the whole prompt, and sampled ids, where asked for.
    """

    id: str
    created: int
    model: str
    reasoning: str
    text: str
    calls: Sequence[Call]
    finish: str
    stop_string: str | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    receipt: str
    logprobs: Sequence[tuple[str, float | None]] | None = None
    prompt_ids: Sequence[int] | None = None
    output_ids: Sequence[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A path that a dialect serves with POST, at the root and below `/s/SESSION`.

    Attributes:
        path: The path; its variables, such as `{model}`, are fields of the request.
        fields: Fields of the request that the path stands for.
        query: Parameters that the address must have, with their values.
        counts: The answer is the number of tokens of the prompt; nothing is sampled.
    """

    path: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    counts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WireDialect:
    """A protocol, as pure functions.

    Attributes:
        name: Short name, which keeps its readings apart from those of other dialects.
        key_headers: Headers beside `Authorization` in which clients send their key.
        key_query: Parameter of the address in which they may send it instead, or None.
        read: Body and readings of the session to request; raises `Refused`.
        answer, events: Request and reply to the body of the answer, or to the events of a stream.
        count: Number of prompt tokens to the body of the answer, for a dialect with such a route.
        error, error_event: Refusal to the body of the answer, or to the event that ends a started stream.
        ping: Bytes that keep an idle stream open.
        overflow_in_stream: A prompt that does not fit is reported as an event of the stream, not as a status.
    """

    name: str
    routes: tuple[Route, ...]
    call_prefix: str
    key_headers: tuple[str, ...] = ()
    key_query: str | None = None
    read: Callable[[Mapping[str, Any], Readings], WireRequest]
    answer: Callable[[WireRequest, WireReply], dict[str, Any]]
    events: Callable[[WireRequest, WireReply], Iterator[bytes]]
    error: Callable[[Refused], dict[str, Any]]
    error_event: Callable[[Refused], bytes]
    ping: bytes
    overflow_in_stream: bool = False
    count: Callable[[int], dict[str, Any]] | None = None


ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
"""Types of errors that OpenAI and Anthropic name alike."""


def json_of(call: Call) -> str:
    """The arguments of a call as JSON text."""
    return dumps(call.input).decode()


# ---- events ------------------------------------------------


def named_event(data: Mapping[str, Any]) -> bytes:
    """A server-sent event named by the `type` of its data."""
    return b"event: %s\ndata: %s\n\n" % (data["type"].encode(), dumps(data))


def plain_event(data: Mapping[str, Any]) -> bytes:
    """A server-sent event without a name."""
    return b"data: %s\n\n" % dumps(data)


def logprob_entries(reply: WireReply) -> list[dict[str, Any]]:
    """Log-probabilities of the sampled tokens as OpenAI's APIs write them."""
    return [
        {"token": text, "logprob": value, "bytes": list(text.encode()), "top_logprobs": []}
        for text, value in reply.logprobs or ()
    ]


def openai_usage(reply: WireReply, prompt: str, sampled: str) -> dict[str, Any]:
    """Token counts as OpenAI's APIs write them, by the words of an API for prompt and reply."""
    return {
        f"{prompt}_tokens": reply.prompt_tokens,
        f"{prompt}_tokens_details": {"cached_tokens": reply.cached_tokens},
        f"{sampled}_tokens": reply.output_tokens,
        f"{sampled}_tokens_details": {"reasoning_tokens": reply.reasoning_tokens},  # trae-agent fails without details
        "total_tokens": reply.prompt_tokens + reply.output_tokens,
    }


def id_fields(reply: WireReply) -> dict[str, Any]:
    """The ids of prompt and reply, where the client asked for them."""
    if reply.output_ids is None:
        return {}
    return {"prompt_token_ids": list(reply.prompt_ids or ()), "token_ids": list(reply.output_ids)}
