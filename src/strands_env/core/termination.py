"""Termination: the end of an episode as a type, whose outcome it is, and the record of its error."""

from __future__ import annotations

import asyncio
import re
import sysconfig
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Self, cast
from urllib.parse import urlsplit

from pydantic import ValidationError
from strands.types.exceptions import (
    ContextWindowOverflowException,
    MaxTokensReachedException,
    MCPClientInitializationError,
    ModelThrottledException,
    ToolProviderException,
)

from strands_sglang.exceptions import (
    BackendAbortedError,
    BackendConnectionError,
    BackendContextLengthError,
    BackendThrottledError,
    MaxMessagesReachedError,
    MaxToolCallsReachedError,
    MaxToolIterationsReachedError,
    MaxTotalTokensReachedError,
    StrandsSGLangError,
    TokenBudgetReachedError,
)
from strands_sglang.trajectory import LengthLimit


class Phase(StrEnum):
    """The part of an episode an error came from."""

    SETUP = "setup"
    """`reset()`, or building the model, tools and agent of a step."""
    LOOP = "loop"
    """The agent loop, outside a model call and a tool."""
    MODEL = "model"
    """A model call."""
    TOOL = "tool"
    """A tool, its provider, or a hook around it. A tool's own failure is a tool result and no error."""
    REWARD = "reward"
    """The reward function."""
    CLEANUP = "cleanup"
    """`cleanup()`."""


_CHAINED = re.compile(
    r"\n(?:The above exception was the direct cause of|During handling of the above exception, another exception) .*\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRecord:
    """An exception as data: `ErrorRecord.from_exception(error, Phase.REWARD)`.

    Attributes:
        type: Qualified name of its class.
        traceback: Its traceback, causes included.
        where: The part of the episode it came from.
        raised_at: The line of the user's own code that raised it, as `path:line, in name`; None without one.
    """

    type: str
    message: str
    traceback: str
    where: Phase
    raised_at: str | None = None

    @classmethod
    def from_exception(cls, error: BaseException, where: Phase) -> ErrorRecord:
        """Record the error that the SDK's wrapping hides; the traceback keeps the whole chain."""
        cause = error
        while isinstance(inner := getattr(cause, "original_exception", None), BaseException) and inner is not cause:
            cause = inner  # the error inside the SDK's `EventLoopException`
        module, name = type(cause).__module__, type(cause).__qualname__
        try:
            message = message_of(cause)
        except Exception as failure:
            message = f"<no text: {type(failure).__name__}>"
        text = _printable("".join(traceback.format_exception(error)))
        return cls(
            type=name if module == "builtins" else f"{module}.{name}",
            message=_printable(message),
            traceback=text,
            where=where,
            raised_at=user_line(text),
        )

    @property
    def cause(self) -> str:
        """The exception that a chain of them began with, as `type: message`; empty without a chain."""
        first, *others = _CHAINED.split(self.traceback)
        if not others:
            return ""
        lines = first.rstrip().splitlines()
        frames = [number for number, line in enumerate(lines) if line.startswith("  ")]
        cause = "\n".join(lines[frames[-1] + 1 if frames else 0 :])
        # A record is of the error inside the SDK's own, which is where its traceback begins, too.
        return "" if cause.startswith(str(self)) else cause

    def __str__(self) -> str:
        return f"{self.type}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolErrorRecord:
    """An exception that a tool raised. The model received an error result for it, and the loop went on."""

    tool: str
    tool_use_id: str
    error: ErrorRecord


def _printable(text: str) -> str:
    """Text that any file and any JSON takes: lone surrogates as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


class EpisodeTimeoutError(TimeoutError):
    """The deadline of a part of the episode (`where`), `seconds` long, passed.

    `is_scored`: of a whole episode, its environment has a reward function.
    """

    def __init__(self, where: Phase, seconds: float, is_scored: bool = False) -> None:
        super().__init__(where, seconds, is_scored)
        self.where = where
        self.seconds = seconds
        self.is_scored = is_scored

    def __str__(self) -> str:
        return f"{self.where} took longer than its deadline of {self.seconds:g} s"


@dataclass(eq=False, repr=False)
class WorkCancelledError(Exception):
    """A part of the episode (`where`) ended in a cancellation that came from inside it, not from the caller."""

    where: Phase

    def __str__(self) -> str:
        return f"{self.where} was cancelled from inside"


class TaskTimeLimitReachedError(Exception):
    """The task's own time for its agent is over: the episode is graded for its work so far."""


class Outcome(StrEnum):
    """Who is responsible for the end of an episode. Statistics, resumes and trainers follow it."""

    POLICY = "policy"
    """Scored and trained, and never run again: 0 where no reward function says otherwise."""
    GRADER = "grader"
    """The reward function failed: unscored, and not sampled again. `strands-env rescore` scores the saved rollout."""
    INFRASTRUCTURE = "infrastructure"
    """Lost: unscored, and run again."""

    @property
    def is_lost(self) -> bool:
        """The attempt may be repeated."""
        return self is Outcome.INFRASTRUCTURE


class TerminationReason(StrEnum):
    """The end of an episode, and whose doing it is. Exactly one applies."""

    NOT_TERMINATED = "not_terminated", Outcome.POLICY
    """No episode has run, or an environment that overrides `step` left it: then its reward counts."""

    TASK_COMPLETE = "task_complete", Outcome.POLICY
    """The model ended its turn without another tool call."""

    MAX_TOOL_ITERATIONS_REACHED = "max_tool_iterations_reached", Outcome.POLICY
    """`max_tool_iters` replies with tool calls were served."""
    MAX_TOOL_CALLS_REACHED = "max_tool_calls_reached", Outcome.POLICY
    """`max_tool_calls` calls were served."""
    MAX_MESSAGES_REACHED = "max_messages_reached", Outcome.POLICY
    """`max_messages` messages were added."""
    MAX_TOKENS_REACHED = "max_tokens_reached", Outcome.POLICY
    """A single reply used up the tokens it was allowed (`max_new_tokens`)."""
    TOKEN_BUDGET_REACHED = "token_budget_reached", Outcome.POLICY
    """A budget of the episode was used up: `max_total_tokens`, or the model's own (`max_sampled_tokens`)."""
    CONTEXT_WINDOW_OVERFLOW = "context_window_overflow", Outcome.POLICY
    """The prompt no longer fits the model's context, or the reply was cut at its end."""

    PROGRAM_FAILED = "program_failed", Outcome.POLICY
    """The agent program of a harness crashed, was killed, or broke a limit of its sandbox: its own doing, so scored."""

    TASK_TIME_LIMIT_REACHED = "task_time_limit_reached", Outcome.POLICY
    """The task gives its agent so much time, and it was used up: graded for the work so far."""

    TIMEOUT = "timeout", Outcome.INFRASTRUCTURE
    """A deadline passed, ours or a client's; the error record says where, and so whose doing it is: see `outcome`."""
    CANCELLED = "cancelled", Outcome.INFRASTRUCTURE
    """The caller, a hook or a tool cancelled the agent."""
    ABORTED = "aborted", Outcome.INFRASTRUCTURE
    """The server aborted the request (weight update, shutdown); the partial answer is not an answer."""
    INTERRUPTED = "interrupted", Outcome.POLICY
    """The agent waits for a human (a Strands interrupt), and a rollout has none: its own call asked for one."""
    CONTENT_FILTERED = "content_filtered", Outcome.POLICY
    """The model's service withheld the answer (a content filter, a guardrail)."""
    THROTTLED = "throttled", Outcome.INFRASTRUCTURE
    """The model's service refused for load, after all retries."""
    AUTH_ERROR = "auth_error", Outcome.INFRASTRUCTURE
    """The model's service refused the credentials, or had none."""
    CONNECTION_ERROR = "connection_error", Outcome.INFRASTRUCTURE
    """The model's service could not be reached, or the connection broke."""
    MODEL_ERROR = "model_error", Outcome.INFRASTRUCTURE
    """A model call failed in any other way."""
    TOOL_ERROR = "tool_error", Outcome.INFRASTRUCTURE
    """Tools could not be provided, or a hook around a tool failed. A tool that fails gives a tool result instead."""
    REWARD_ERROR = "reward_error", Outcome.GRADER
    """The episode ended well, its reward function failed. `metrics["loop_termination_reason"]` says how it ended."""
    SETUP_ERROR = "setup_error", Outcome.INFRASTRUCTURE
    """`reset()`, or building the agent, failed; no model call was made."""
    RECURSION_DEPTH_EXCEEDED = "recursion_depth_exceeded", Outcome.INFRASTRUCTURE
    """Python's recursion limit, reached in a hook or tool (the loop itself is flat)."""
    UNCLASSIFIED_ERROR = "unclassified_error", Outcome.INFRASTRUCTURE
    """Any other exception; the error record has it."""
    AGENT_ERROR = UNCLASSIFIED_ERROR
    """The earlier name of `UNCLASSIFIED_ERROR`, the same member."""

    def __new__(cls, value: str, outcome: Outcome = Outcome.INFRASTRUCTURE) -> TerminationReason:
        """A member with its outcome, which evaluator, statistics and trainers read through the method `outcome`."""
        member = str.__new__(cls, value)
        member._value_ = value
        member._outcome = outcome
        return member

    _value_: str
    _outcome: Outcome

    def outcome(self, error: ErrorRecord | None = None) -> Outcome:
        """Who is responsible for this end. `error` tells time-outs apart; `StepResult.outcome` passes its own.

        Without an error a time-out is taken for a client's.
        """
        if self is TerminationReason.TIMEOUT and error is not None:
            if error.where is Phase.REWARD:
                return Outcome.GRADER
            # Else a hook, a tool's provider or `interact` waited for something of its own.
            if error.where is Phase.LOOP and error.type == _OWN_DEADLINE:
                return Outcome.POLICY
        return self._outcome

    @property
    def is_limit(self) -> bool:
        """The policy's outcome, other than an answer: a valid, truncated rollout."""
        return self is not TerminationReason.TASK_COMPLETE and not self.is_failure

    @property
    def is_failure(self) -> bool:
        """Not the policy's outcome: no reward, and not trained. `StepResult.outcome` knows the step's own time-out."""
        return self.outcome() is not Outcome.POLICY

    @classmethod
    def from_error(cls, error: BaseException | None, *, default: TerminationReason | None = None) -> TerminationReason:
        """The reason for an exception, found through the SDK's wrapping and `__cause__` chains.

        Args:
            error: Raised by the agent loop; None for a loop that returned.
            default: The reason for an exception that says nothing by itself; `UNCLASSIFIED_ERROR` if not given.
        """
        if error is None:
            return cls.TASK_COMPLETE
        chain = list(_error_chain(error))
        for reason, matches in _BY_TYPE:
            if any(isinstance(link, matches) for link in chain):
                return reason
        names = [base.__name__.lower() for link in chain for base in type(link).__mro__]
        for link in chain:  # the code of a botocore `ClientError` is the only sign of its kind
            response = getattr(link, "response", None)
            if isinstance(response, dict):
                names.append(str((response.get("Error") or {}).get("Code", "")).lower())
            if _is_providers(link) and isinstance(code := getattr(link, "code", None), str):
                names.append(code.replace("_", "").lower())  # of OpenAI: a prompt that is filtered, or too long
        for reason, words in _BY_NAME:
            if any(word in name for name in names for word in words):
                return reason
        if any(isinstance(link, StrandsSGLangError) or _is_providers(link) for link in chain):
            return cls.MODEL_ERROR
        return default or cls.UNCLASSIFIED_ERROR

    @classmethod
    def from_length_limit(cls, limit: object) -> TerminationReason:
        """The reason for a reply cut by this bound (`LengthLimit`); `MAX_TOKENS_REACHED` if not known."""
        return _BY_LENGTH_LIMIT.get(limit, cls.MAX_TOKENS_REACHED) if isinstance(limit, str) else cls.MAX_TOKENS_REACHED

    @classmethod
    def from_stop_reason(cls, stop_reason: object) -> TerminationReason:
        """The reason for the stop reason of a loop that returned; an unknown one is not a success."""
        if not isinstance(stop_reason, str):
            return cls.TASK_COMPLETE
        return _BY_STOP_REASON.get(stop_reason, cls.UNCLASSIFIED_ERROR)


@dataclass(frozen=True, slots=True)
class End:
    """The end of a rollout: its reason, who is responsible, and the error. Adapters know their trainers' words for it.

    Example: `End(TerminationReason.TIMEOUT, error=record)`

    Attributes:
        outcome: Follows from reason and error where it is not given. One that is given says more than they do: an
            evaluator refused the sample, an exception came out of the environment's own code.
        error: None for normal ends and limits.
    """

    reason: TerminationReason = TerminationReason.NOT_TERMINATED
    outcome: Outcome = field(default=cast(Outcome, None))
    error: ErrorRecord | None = None

    def __post_init__(self) -> None:
        reason: object = self.reason
        if not isinstance(reason, TerminationReason):
            raise TypeError(f"termination_reason must be a TerminationReason, got {reason!r:.200}")
        object.__setattr__(self, "outcome", self.outcome or reason.outcome(self.error))

    @classmethod
    def from_error(
        cls,
        error: BaseException,
        where: Phase,
        *,
        default: TerminationReason | None = None,
        outcome: Outcome | None = None,
    ) -> Self:
        """The end by an exception: `TerminationReason.from_error`, with its record."""
        reason = TerminationReason.from_error(error, default=default)
        return cls(reason, cast(Outcome, outcome), ErrorRecord.from_exception(error, where))

    @property
    def is_limit(self) -> bool:
        """The policy's end, other than an answer: a valid, truncated rollout."""
        return self.outcome is Outcome.POLICY and self.reason not in _UNCUT

    def __str__(self) -> str:
        return str(self.reason) if self.error is None else f"{self.reason} ({self.error})"


ANSWERED = End(TerminationReason.TASK_COMPLETE)
UNKNOWN = End(TerminationReason.UNCLASSIFIED_ERROR)
"""The end of a rollout of which nothing is known."""
_UNCUT = (TerminationReason.TASK_COMPLETE, TerminationReason.NOT_TERMINATED)
_OWN_DEADLINE = f"{EpisodeTimeoutError.__module__}.{EpisodeTimeoutError.__qualname__}"

_BY_STOP_REASON: dict[str, TerminationReason] = {
    "end_turn": TerminationReason.TASK_COMPLETE,
    "program_failed": TerminationReason.PROGRAM_FAILED,  # of `HarnessEnvironment`
    "stop_sequence": TerminationReason.TASK_COMPLETE,
    "tool_use": TerminationReason.TASK_COMPLETE,  # a structured output or a delegated answer ends the loop so
    "content_filtered": TerminationReason.CONTENT_FILTERED,
    "guardrail_intervened": TerminationReason.CONTENT_FILTERED,
    "cancelled": TerminationReason.CANCELLED,
    "aborted": TerminationReason.ABORTED,
    "unfinished": TerminationReason.MODEL_ERROR,  # the server named an end that the model's provider does not know
    "interrupt": TerminationReason.INTERRUPTED,
    "max_tokens": TerminationReason.MAX_TOKENS_REACHED,
    "limit_turns": TerminationReason.MAX_TOOL_ITERATIONS_REACHED,
    "limit_total_tokens": TerminationReason.TOKEN_BUDGET_REACHED,
    "limit_output_tokens": TerminationReason.TOKEN_BUDGET_REACHED,
}

_BY_LENGTH_LIMIT: dict[str, TerminationReason] = {
    LengthLimit.REPLY: TerminationReason.MAX_TOKENS_REACHED,
    LengthLimit.SAMPLED_BUDGET: TerminationReason.TOKEN_BUDGET_REACHED,
    LengthLimit.TRAJECTORY_BUDGET: TerminationReason.TOKEN_BUDGET_REACHED,
    LengthLimit.CONTEXT: TerminationReason.CONTEXT_WINDOW_OVERFLOW,
}

# Read from the top: the first reason any link of the chain stands for.
_BY_TYPE: tuple[tuple[TerminationReason, tuple[type[BaseException], ...]], ...] = (
    (TerminationReason.TASK_TIME_LIMIT_REACHED, (TaskTimeLimitReachedError,)),
    (TerminationReason.MAX_TOOL_ITERATIONS_REACHED, (MaxToolIterationsReachedError,)),
    (TerminationReason.MAX_TOOL_CALLS_REACHED, (MaxToolCallsReachedError,)),
    (TerminationReason.MAX_MESSAGES_REACHED, (MaxMessagesReachedError,)),
    (TerminationReason.TOKEN_BUDGET_REACHED, (TokenBudgetReachedError, MaxTotalTokensReachedError)),
    (TerminationReason.CONTEXT_WINDOW_OVERFLOW, (ContextWindowOverflowException, BackendContextLengthError)),
    (TerminationReason.MAX_TOKENS_REACHED, (MaxTokensReachedException,)),
    (TerminationReason.ABORTED, (BackendAbortedError,)),
    (TerminationReason.THROTTLED, (ModelThrottledException, BackendThrottledError)),
    (TerminationReason.TIMEOUT, (TimeoutError,)),
    (TerminationReason.CONNECTION_ERROR, (BackendConnectionError, ConnectionError)),
    (TerminationReason.TOOL_ERROR, (ToolProviderException, MCPClientInitializationError)),
    (TerminationReason.RECURSION_DEPTH_EXCEEDED, (RecursionError,)),
    (TerminationReason.CANCELLED, (WorkCancelledError, asyncio.CancelledError)),
)

# Clients name these errors alike and share no base class.
_BY_NAME: tuple[tuple[TerminationReason, tuple[str, ...]], ...] = (
    (TerminationReason.CONTEXT_WINDOW_OVERFLOW, ("contextlengthexceed", "contextwindowexceed")),
    (TerminationReason.CONTENT_FILTERED, ("contentfilter", "contentpolicy", "blockedprompt")),
    (TerminationReason.TIMEOUT, ("timeout",)),
    (TerminationReason.CONNECTION_ERROR, ("connectionerror", "connecterror", "disconnected", "connectorerror")),
    (TerminationReason.CONNECTION_ERROR, ("connectionclosed",)),
    (TerminationReason.AUTH_ERROR, ("expiredtoken", "credential", "accessdenied", "unauthorized", "authenticat")),
    (TerminationReason.AUTH_ERROR, ("permissiondenied", "unrecognizedclient")),
    (TerminationReason.THROTTLED, ("throttl", "ratelimit", "toomanyrequests")),
)
_PROVIDERS = frozenset({"aiohttp", "anthropic", "botocore", "httpx", "httpcore", "litellm", "openai", "google"})


def _is_providers(error: BaseException) -> bool:
    return (type(error).__module__ or "").partition(".")[0] in _PROVIDERS


def _error_chain(error: BaseException) -> Iterator[BaseException]:
    """The error, the one that the SDK wrapped in it, its explicit causes and the members of its group, each once."""
    seen: set[int] = set()
    pending: list[BaseException] = [error]
    while pending:
        link = pending.pop()
        if id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        inner = [getattr(link, "original_exception", None), link.__cause__]
        if isinstance(link, BaseExceptionGroup):
            inner.extend(link.exceptions)
        pending.extend(item for item in reversed(inner) if isinstance(item, BaseException))


def message_of(error: BaseException) -> str:
    """The error's text, with the server that an HTTP client's error leaves out.

    For a pydantic error, its first complaint in one line: field, problem, value.
    """
    if not isinstance(error, ValidationError):
        text = str(error)
        try:  # an error of httpx or openai has its request
            url = urlsplit(str(error.request.url))  # type: ignore[attr-defined]
        except (AttributeError, RuntimeError, ValueError):  # httpx raises where there was no request
            return text
        server = f"{url.scheme}://{url.netloc.rpartition('@')[2]}"
        return f"{text} ({server})" if url.scheme and url.netloc and server not in text else text
    complaints = error.errors(include_url=False)
    first, problem = complaints[0], complaints[0]["msg"].removeprefix("Value error, ")
    if first["type"] != "value_error":
        problem = f"{problem[:1].lower()}{problem[1:]}, got {first['input']!r:.100}"
    where = ".".join(map(str, first["loc"]))
    more = f" (and {len(complaints) - 1} more)" if len(complaints) > 1 else ""
    return f"{where}: {problem}{more}" if where else f"{problem}{more}"


# ---- the line of the user's own code ---------------------------------------------------------------------------------

_FRAME = re.compile(r'^[ |]*File "(.+)", line (\d+),? in (.+)$', re.MULTILINE)
_LINK = re.compile(r"^[ |]*(?:The above exception was|During handling of the above).*$", re.MULTILINE)


def user_line(traceback: str) -> str | None:
    """Line of the user's code that raised, as `path:line, in name`; None where none of it is in the traceback.

    The innermost frame of the first exception counts that is neither in Python, nor in an installed package, nor in
    this one.

    Args:
        traceback: As `traceback.format_exception` or `faulthandler` writes it.
    """
    for part in _LINK.split(traceback):
        if frames := _own_frames(part):
            return frames[-1]
    return None


def user_lines(stacks: str) -> list[str]:
    """The innermost line of the user's code in each thread of a dump by `faulthandler`, each once."""
    threads = map(_own_frames, re.split(r"^(?:Current thread|Thread) .*$", stacks, flags=re.MULTILINE))
    return list(dict.fromkeys(frames[0] for frames in threads if frames))  # `faulthandler` writes the innermost first


def _own_frames(stack: str) -> list[str]:
    return [f"{path}:{line}, in {name}" for path, line, name in _FRAME.findall(stack) if not _is_foreign(path)]


@lru_cache(maxsize=4096)
def _is_foreign(path: str) -> bool:
    packages = Path(__file__).parents[2]
    return (
        path.startswith(("<", sysconfig.get_path("stdlib")))
        or not {"site-packages", "dist-packages"}.isdisjoint(Path(path).parts)
        or any(Path(path).is_relative_to(packages / name) for name in ("strands_env", "strands_sglang"))
    )
