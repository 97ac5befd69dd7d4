"""Every exception and stop reason has its `TerminationReason`, found through the SDK's wrapping."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from strands.types.exceptions import (
    ContextWindowOverflowException,
    EventLoopException,
    MaxTokensReachedException,
    ModelThrottledException,
    ToolProviderException,
)

from strands_env.core.types import ErrorRecord, Phase, TerminationReason
from strands_sglang.exceptions import (
    SGLangAbortedError,
    SGLangConnectionError,
    SGLangContextLengthError,
    SGLangDecodingError,
    SGLangThrottledError,
    TemplateError,
    TokenBudgetReachedError,
)
from strands_sglang.tool_limiter import MaxToolCallsReachedError, MaxToolIterationsReachedError
from strands_sglang.trajectory import LengthLimit


class ReadTimeoutError(Exception):
    """Named like the clients' own, related to none."""


class ServerDisconnectedError(Exception):
    """Likewise."""


class RateLimitError(Exception):
    """Likewise."""


class AuthenticationError(Exception):
    """openai's."""


class ClientError(Exception):
    """botocore's."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.response = {"Error": {"Code": code}}


def caused(outer: BaseException, cause: BaseException) -> BaseException:
    outer.__cause__ = cause
    return outer


CASES = [
    (MaxToolIterationsReachedError(10), TerminationReason.MAX_TOOL_ITERATIONS_REACHED),
    (MaxToolCallsReachedError(5), TerminationReason.MAX_TOOL_CALLS_REACHED),
    (MaxTokensReachedException("cut"), TerminationReason.MAX_TOKENS_REACHED),
    (TokenBudgetReachedError("max_total_tokens", 5, 6), TerminationReason.TOKEN_BUDGET_REACHED),
    (ContextWindowOverflowException("full"), TerminationReason.CONTEXT_WINDOW_OVERFLOW),
    (SGLangContextLengthError(400, "too long"), TerminationReason.CONTEXT_WINDOW_OVERFLOW),
    (TimeoutError(), TerminationReason.TIMEOUT),
    (ReadTimeoutError(), TerminationReason.TIMEOUT),
    (caused(SGLangConnectionError("no answer"), TimeoutError()), TerminationReason.TIMEOUT),
    (SGLangConnectionError("refused"), TerminationReason.CONNECTION_ERROR),
    (ConnectionResetError("peer"), TerminationReason.CONNECTION_ERROR),
    (ServerDisconnectedError(), TerminationReason.CONNECTION_ERROR),
    (SGLangThrottledError(429, "later"), TerminationReason.THROTTLED),
    (ModelThrottledException("later"), TerminationReason.THROTTLED),
    (RateLimitError(), TerminationReason.THROTTLED),
    (AuthenticationError(), TerminationReason.AUTH_ERROR),
    (ClientError("ExpiredTokenException"), TerminationReason.AUTH_ERROR),
    (ClientError("TooManyRequestsException"), TerminationReason.THROTTLED),
    (ClientError("ValidationException"), TerminationReason.UNCLASSIFIED_ERROR),
    (SGLangAbortedError("update"), TerminationReason.ABORTED),
    (SGLangDecodingError("no JSON"), TerminationReason.MODEL_ERROR),
    (TemplateError("cannot say that"), TerminationReason.MODEL_ERROR),
    (ToolProviderException("no tools"), TerminationReason.TOOL_ERROR),
    (RecursionError(), TerminationReason.RECURSION_DEPTH_EXCEEDED),
    (asyncio.CancelledError(), TerminationReason.CANCELLED),
    (ValueError("what"), TerminationReason.UNCLASSIFIED_ERROR),
]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda error: error,
        lambda error: EventLoopException(EventLoopException(error)),
        lambda error: caused(EventLoopException(Exception()), error),
        lambda error: BaseExceptionGroup("tools", [error]),
    ],
    ids=["raw", "nested in the SDK's", "cause alone", "group"],
)
@pytest.mark.parametrize(("error", "reason"), CASES, ids=lambda case: type(case).__name__)
def test_reason_of_an_error_however_it_is_wrapped(error: BaseException, reason: TerminationReason, wrap: Any) -> None:
    assert TerminationReason.from_error(wrap(error)) is reason


def test_no_error_is_task_complete() -> None:
    assert TerminationReason.from_error(None) is TerminationReason.TASK_COMPLETE


def test_default_applies_only_to_errors_that_say_nothing() -> None:
    default = TerminationReason.MODEL_ERROR
    assert TerminationReason.from_error(ValueError(), default=default) is default
    assert TerminationReason.from_error(TimeoutError(), default=default) is TerminationReason.TIMEOUT


def test_circular_causes_end() -> None:
    first, second = ValueError("a"), ValueError("b")
    caused(first, second)
    caused(second, first)
    assert TerminationReason.from_error(first) is TerminationReason.UNCLASSIFIED_ERROR


@pytest.mark.parametrize("limit", [None, 5, "a bound of tomorrow", "reply"])
def test_a_cut_reply_is_the_fault_of_its_own_bound_unless_another_is_known(limit: object) -> None:
    assert TerminationReason.from_length_limit(limit) is TerminationReason.MAX_TOKENS_REACHED


def test_every_bound_on_the_length_has_its_reason() -> None:
    assert {TerminationReason.from_length_limit(limit) for limit in LengthLimit} == {
        TerminationReason.MAX_TOKENS_REACHED,
        TerminationReason.TOKEN_BUDGET_REACHED,
        TerminationReason.CONTEXT_WINDOW_OVERFLOW,
    }


def test_each_reason_is_complete_a_limit_or_a_failure() -> None:
    for reason in TerminationReason:
        assert [reason is TerminationReason.TASK_COMPLETE, reason.is_limit, reason.is_failure].count(True) == 1


def test_earlier_name_of_unclassified_errors() -> None:
    assert TerminationReason.AGENT_ERROR is TerminationReason.UNCLASSIFIED_ERROR


def test_record_names_the_wrapped_error_and_keeps_the_whole_traceback() -> None:
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise EventLoopException(inner) from inner
    except EventLoopException as error:
        record = ErrorRecord.from_exception(error, Phase.MODEL)
    assert record.type == "KeyError"
    assert record.message == "'inner'"
    assert "EventLoopException" in record.traceback
    assert "KeyError: 'inner'" in record.traceback
    assert record.where == "model"


@pytest.mark.parametrize(
    ("stop_reason", "reason"),
    [
        ("end_turn", TerminationReason.TASK_COMPLETE),
        ("stop_sequence", TerminationReason.TASK_COMPLETE),
        (None, TerminationReason.TASK_COMPLETE),
        ("cancelled", TerminationReason.CANCELLED),
        ("aborted", TerminationReason.ABORTED),
        ("unfinished", TerminationReason.MODEL_ERROR),
        ("interrupt", TerminationReason.INTERRUPTED),
        ("limit_total_tokens", TerminationReason.TOKEN_BUDGET_REACHED),
        ("content_filtered", TerminationReason.CONTENT_FILTERED),
        ("guardrail_intervened", TerminationReason.CONTENT_FILTERED),
        ("weird", TerminationReason.UNCLASSIFIED_ERROR),
    ],
)
def test_only_known_ends_are_a_completed_task(stop_reason: str | None, reason: TerminationReason) -> None:
    assert TerminationReason.from_stop_reason(stop_reason) is reason
