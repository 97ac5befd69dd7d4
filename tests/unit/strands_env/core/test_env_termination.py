"""Every exception and stop reason has its `TerminationReason`, found through the SDK's wrapping."""

from __future__ import annotations

import json
from typing import Any

import pytest
from strands.types.exceptions import EventLoopException, ModelThrottledException, ToolProviderException

from strands_env.core.jsonable import readable
from strands_env.core.termination import End, EpisodeTimeoutError, ErrorRecord, Outcome, Phase, TerminationReason
from strands_env.core.types import Action, Observation, StepResult
from strands_env.eval import EvalSample
from strands_sglang.exceptions import (
    SGLangAbortedError,
    SGLangConnectionError,
    SGLangContextLengthError,
    SGLangDecodingError,
    SGLangThrottledError,
    TemplateError,
    TokenBudgetReachedError,
)
from strands_sglang.tool_limiter import MaxToolIterationsReachedError
from strands_sglang.trajectory import LengthLimit


def named(name: str) -> Exception:
    """An error named like a client's own, related to none."""
    return type(name, (Exception,), {})()  # type: ignore[no-any-return]


def of_openai(code: str) -> Exception:
    return type("BadRequestError", (Exception,), {"__module__": "openai", "code": code})()  # type: ignore[no-any-return]


def botocore(code: str) -> Exception:
    error = named("ClientError")
    error.response = {"Error": {"Code": code}}  # type: ignore[attr-defined]
    return error


def caused(outer: BaseException, cause: BaseException) -> BaseException:
    outer.__cause__ = cause
    return outer


CASES = [
    (MaxToolIterationsReachedError(10), TerminationReason.MAX_TOOL_ITERATIONS_REACHED),
    (TokenBudgetReachedError("max_total_tokens", 5, 6), TerminationReason.TOKEN_BUDGET_REACHED),
    (SGLangContextLengthError(400, "too long"), TerminationReason.CONTEXT_WINDOW_OVERFLOW),
    (TimeoutError(), TerminationReason.TIMEOUT),
    (named("ReadTimeoutError"), TerminationReason.TIMEOUT),
    (caused(SGLangConnectionError("no answer"), TimeoutError()), TerminationReason.TIMEOUT),
    (SGLangConnectionError("refused"), TerminationReason.CONNECTION_ERROR),
    (named("ServerDisconnectedError"), TerminationReason.CONNECTION_ERROR),
    (SGLangThrottledError(429, "later"), TerminationReason.THROTTLED),
    (ModelThrottledException("later"), TerminationReason.THROTTLED),
    (named("RateLimitError"), TerminationReason.THROTTLED),
    (named("ContentFilterFinishReasonError"), TerminationReason.CONTENT_FILTERED),
    (named("ContentPolicyViolationError"), TerminationReason.CONTENT_FILTERED),
    (of_openai("content_filter"), TerminationReason.CONTENT_FILTERED),
    (of_openai("context_length_exceeded"), TerminationReason.CONTEXT_WINDOW_OVERFLOW),
    (named("ContextWindowExceededError"), TerminationReason.CONTEXT_WINDOW_OVERFLOW),
    (of_openai("model_not_found"), TerminationReason.MODEL_ERROR),
    (named("AuthenticationError"), TerminationReason.AUTH_ERROR),
    (botocore("ExpiredTokenException"), TerminationReason.AUTH_ERROR),
    (botocore("TooManyRequestsException"), TerminationReason.THROTTLED),
    (botocore("ValidationException"), TerminationReason.UNCLASSIFIED_ERROR),
    (SGLangAbortedError("update"), TerminationReason.ABORTED),
    (SGLangDecodingError("no JSON"), TerminationReason.MODEL_ERROR),
    (TemplateError("cannot say that"), TerminationReason.MODEL_ERROR),
    (ToolProviderException("no tools"), TerminationReason.TOOL_ERROR),
    (RecursionError(), TerminationReason.RECURSION_DEPTH_EXCEEDED),
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


def test_default_applies_only_to_errors_that_say_nothing() -> None:
    default = TerminationReason.MODEL_ERROR
    assert TerminationReason.from_error(ValueError(), default=default) is default
    assert TerminationReason.from_error(TimeoutError(), default=default) is TerminationReason.TIMEOUT
    assert TerminationReason.from_error(None, default=default) is TerminationReason.TASK_COMPLETE


def test_circular_causes_end() -> None:
    first, second = ValueError("a"), ValueError("b")
    caused(first, second)
    caused(second, first)
    assert TerminationReason.from_error(first) is TerminationReason.UNCLASSIFIED_ERROR


def test_a_cut_reply_is_the_fault_of_its_own_bound_unless_another_is_known() -> None:
    cut = {limit: TerminationReason.from_length_limit(limit) for limit in [*LengthLimit, None, 5, "one of tomorrow"]}
    others = {LengthLimit.SAMPLED_BUDGET, LengthLimit.TRAJECTORY_BUDGET, LengthLimit.CONTEXT}
    assert {limit for limit, reason in cut.items() if reason != "max_tokens_reached"} == others
    assert [cut[limit] for limit in sorted(others)] == ["context_window_overflow", *["token_budget_reached"] * 2]


OWN_DEADLINE = EpisodeTimeoutError(Phase.LOOP, 1.0)


@pytest.mark.parametrize(
    ("reason", "error", "where", "outcome"),
    [
        *((reason, None, Phase.LOOP, Outcome.POLICY) for reason in TerminationReason if reason.is_limit),
        (TerminationReason.TASK_COMPLETE, None, Phase.LOOP, Outcome.POLICY),
        (TerminationReason.CONTENT_FILTERED, None, Phase.LOOP, Outcome.POLICY),
        (TerminationReason.TIMEOUT, OWN_DEADLINE, Phase.LOOP, Outcome.POLICY),
        (TerminationReason.TIMEOUT, TimeoutError("a hook"), Phase.LOOP, Outcome.INFRASTRUCTURE),
        (TerminationReason.TIMEOUT, TimeoutError("no answer"), Phase.MODEL, Outcome.INFRASTRUCTURE),
        (TerminationReason.TIMEOUT, TimeoutError("a provider"), Phase.TOOL, Outcome.INFRASTRUCTURE),
        (TerminationReason.TIMEOUT, OWN_DEADLINE, Phase.SETUP, Outcome.INFRASTRUCTURE),
        (TerminationReason.TIMEOUT, OWN_DEADLINE, Phase.REWARD, Outcome.GRADER),
        (TerminationReason.REWARD_ERROR, ValueError("no judge"), Phase.REWARD, Outcome.GRADER),
        (TerminationReason.CONNECTION_ERROR, ConnectionError(), Phase.MODEL, Outcome.INFRASTRUCTURE),
        (TerminationReason.CANCELLED, None, Phase.LOOP, Outcome.INFRASTRUCTURE),
        (TerminationReason.SETUP_ERROR, ValueError(), Phase.SETUP, Outcome.INFRASTRUCTURE),
    ],
)
def test_an_end_is_the_policys_the_graders_or_the_infrastructures(
    reason: TerminationReason, error: Exception | None, where: Phase, outcome: Outcome
) -> None:
    record = None if error is None else ErrorRecord.from_exception(error, where)
    result = StepResult(observation=Observation(), termination_reason=reason, error=record)
    assert result.end == End(reason, outcome, record)
    assert StepResult.from_json(result.to_json()) == result


def test_the_parts_of_an_end_are_those_of_the_result() -> None:
    result = StepResult(observation=Observation())
    result.termination_reason = TerminationReason.TIMEOUT
    assert result.end == End(TerminationReason.TIMEOUT, Outcome.INFRASTRUCTURE)
    result.error = ErrorRecord.from_exception(OWN_DEADLINE, Phase.LOOP)
    assert (result.end.outcome, result.outcome, str(result.end).split(" ")[0]) == ("policy", "policy", "timeout")
    result.end = End(TerminationReason.TASK_COMPLETE, Outcome.INFRASTRUCTURE)  # an evaluator refused it
    assert json.loads(result.to_json())["outcome"] == "infrastructure"
    assert readable(result).keys() == json.loads(result.to_json()).keys()  # one form, also where a value is no JSON
    assert StepResult.from_json(result.to_json()) == result
    copied = result.model_copy(update={"termination_reason": TerminationReason.TIMEOUT, "is_seeded": True})
    assert (copied.end, copied.is_seeded) == (End(TerminationReason.TIMEOUT), True) and result.end.reason != "timeout"
    sample = EvalSample(action=Action(message="?"), step_result=StepResult(observation=Observation()), aborted=True)
    assert [sample.aborted, sample.model_copy(update={"aborted": False}).aborted] == [True, False]
    assert EvalSample.model_validate_json(sample.model_dump_json()) == sample
    with pytest.raises(TypeError, match="termination_reason must be a TerminationReason, got 'done'"):
        result.termination_reason = "done"  # type: ignore[assignment]


def test_each_reason_is_complete_a_limit_or_a_failure() -> None:
    for reason in TerminationReason:
        assert [reason is TerminationReason.TASK_COMPLETE, reason.is_limit, reason.is_failure].count(True) == 1
    assert TerminationReason.AGENT_ERROR is TerminationReason.UNCLASSIFIED_ERROR  # its earlier name


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


STOP_REASONS = {
    "task_complete": ["end_turn", "stop_sequence", None],
    "cancelled": ["cancelled"],
    "aborted": ["aborted"],
    "model_error": ["unfinished"],
    "interrupted": ["interrupt"],
    "token_budget_reached": ["limit_total_tokens"],
    "content_filtered": ["content_filtered", "guardrail_intervened"],
    "unclassified_error": ["weird"],
}


def test_only_known_ends_are_a_completed_task() -> None:
    for reason, stops in STOP_REASONS.items():
        assert {TerminationReason.from_stop_reason(stop) for stop in stops} == {reason}


def test_an_error_names_the_one_that_its_chain_began_with():
    def recorded(*chain: Exception) -> str:
        error, *inner = chain
        error.__cause__ = inner[0] if inner else None
        return ErrorRecord.from_exception(error, Phase.LOOP).cause

    assert recorded(TimeoutError("late"), OSError("disk full:\nwrite to x")) == "OSError: disk full:\nwrite to x"
    assert recorded(TimeoutError("late")) == ""
    wrapped = ValueError("wrong")
    assert recorded(EventLoopException(wrapped), wrapped) == ""  # the record is of that one
