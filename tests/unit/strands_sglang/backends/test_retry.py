"""The retry table: classes, limits, delays, deadlines."""

from __future__ import annotations

import json
import random
import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strands_sglang.backends.http.retry import DEFAULT_LIMITS, RequestRetryPolicy, RetryClass, parse_retry_after
from strands_sglang.backends.sglang.answer import classify, http_error
from strands_sglang.exceptions import (
    SGLangAnswerLimitError,
    SGLangConnectionError,
    SGLangContextLengthError,
    SGLangDecodingError,
    SGLangHTTPError,
    SGLangRequestError,
)
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (SGLangHTTPError(400, '{"error":{"message":"Duplicate request ID detected: a"}}'), "duplicate_id"),
        (SGLangHTTPError(500, '{"error":{"code":"call_upstream_request_error","message":"x"}}'), "worker_lost"),
        (SGLangHTTPError(500, '{"error":{"code":"call_upstream_connection_failed","message":"x"}}'), "worker_lost"),
        (SGLangHTTPError(200, '{"error":"x"}'), "server_error"),
        (SGLangHTTPError(500, 'data: {"error":{"message":"x","code":500,"retryable":false}}'), "never"),
        (SGLangHTTPError(400, 'data: {"error":{"message":"x","code":400,"retryable":true}}'), "server_error"),
        (http_error(400, '{"error":{"code":"context_length_exceeded","message":"x"}}'), "never"),
        (SGLangDecodingError("x"), "decoding"),
        (SGLangConnectionError("x"), "unreachable"),
        (SGLangAnswerLimitError("x"), "never"),
        (SGLangRequestError("x"), "never"),
    ],
)
def test_failures_whose_status_does_not_say_it_have_their_class(error: Exception, kind: str) -> None:
    assert classify(error) == kind


@given(
    st.integers(100, 599),
    st.recursive(
        st.none() | st.booleans() | st.integers(-5, 600) | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["error", "message", "code", "type", "detail", "retryable"]), inner)
        ),
        max_leaves=8,
    ),
)
def test_any_json_body_can_be_classified(status: int, body: object) -> None:
    assert classify(http_error(status, json.dumps(body))) in RetryClass


@pytest.mark.parametrize(
    ("body", "overflow"),
    [
        ("Input token count exceed the max model len", True),
        ("Prompt is too long for this model", True),
        ("Bad request: invalid parameter", False),
        ('{"error":{"message":"Input length (508 tokens) exceeds the maximum allowed length (506 tokens)."}}', True),
        ('{"error":{"message":"The input (9 tokens) is longer than the model\'s context length (5 tokens)."}}', True),
        ('{"error":{"message":"x","code":"context_length_exceeded"}}', True),
        ('{"object":"error","message":"1 validation error:\\n {\'input\': \'context length\'}","code":400}', False),
        ('{"error":"unknown field `This model\'s maximum context length is 5 tokens`, expected one of `n`"}', False),
        ('{"error":{"message":"Failed to compile regex grammar: (context length"}}', False),
        ('{"context length": 5}', False),
        ('{"error":{"message":"LoRA adapter \'the context length adapter\' is not loaded"}}', False),
        ('{"error":{"message":"Invalid session: maximum model length, prompt is too long"}}', False),
        (
            '{"error":{"message":"Requested token count exceeds the model\'s maximum context length of 512 tokens."}}',
            True,
        ),
        ('{"error":{"message":"The input (9 tokens) is longer than the tiny\'s context length (5 tokens)."}}', True),
    ],
)
def test_overflow_is_a_400_whose_parsed_message_says_so(body: str, overflow: bool) -> None:
    assert isinstance(http_error(400, body), SGLangContextLengthError) is overflow
    assert not isinstance(http_error(500, body), SGLangContextLengthError)


def test_back_off_is_jittered_and_never_overflows() -> None:
    policy = RequestRetryPolicy(retry_delay=1.0, max_retry_delay=5.0)
    assert len({policy.backoff(1, random.Random(seed)) for seed in range(50)}) > 40
    assert policy.backoff(10_000) <= 5.0


def test_limits_can_be_changed() -> None:
    policy = RequestRetryPolicy(limits={RetryClass.SERVER_ERROR: None, RetryClass.BUSY: 1}, max_retries=5)
    assert [policy.limit(kind) for kind in (RetryClass.SERVER_ERROR, RetryClass.BUSY, RetryClass.RESET)] == [5, 1, 5]


@pytest.mark.parametrize(
    "options",
    [{"max_retries": -1}, {"max_retries": True}, {"max_retries": 1.5}, {"retry_delay": -1}, {"max_retry_delay": "1"},
     {"retry_deadline": float("nan")}, {"retry_delay": None}, {"limits": {"bogus": 1}},
     {"limits": {RetryClass.BUSY: -1}}],
)  # fmt: skip
def test_a_policy_is_checked(options: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        RequestRetryPolicy(**options)  # type: ignore[arg-type]


def test_retry_after_is_seconds_or_a_date() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert parse_retry_after("3") == 3.0
    assert parse_retry_after("0.5") == 0.5
    assert parse_retry_after("-1") == 0.0
    assert parse_retry_after("Thu, 01 Jan 2026 00:01:00 GMT", now) == 60.0
    assert parse_retry_after("Wed, 31 Dec 2025 00:00:00 GMT", now) == 0.0
    absurd = ("Mon, 01 Jan 99999999999999999999 00:00:00 GMT", "9" * 400)
    for nothing in (None, "soon", "nan", "inf", object(), "1_0", "1e9", "", *absurd):
        assert parse_retry_after(nothing) is None


# ------------------------------------------------------------------------ the written table


def rows(title: str) -> list[list[str]]:
    page = (ROOT / "docs" / "errors-and-retries.md").read_text(encoding="utf-8")
    section = page.split(f"## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_page_gives_every_class_its_limit() -> None:
    written = {row[0].strip("`"): row[2].split(",")[0] for row in rows("Retry classes")}
    assert written == {
        kind.value: "`max_retries`" if DEFAULT_LIMITS[kind] is None else str(DEFAULT_LIMITS[kind])
        for kind in RetryClass
    }


def test_the_page_gives_every_status_its_error_and_class() -> None:
    written: dict[int, tuple[str, str]] = {}
    for status, error, kind in rows("By status"):
        for code in re.findall(r"\b[1-5]\d\d\b", status.split("(")[0] if "{" not in status else ""):
            written[int(code)] = (error, kind)  # the last row of a status is the general one
    written.pop(200, None)
    assert {400, 401, 403, 404, 405, 408, 409, 413, 422, 425, 429, 500, 501, 502, 503, 504, 505} <= set(written)
    for status in range(100, 600):
        error = http_error(status, "words")
        general = "server_error" if status >= 500 else "never"
        name, kind = written.get(status, ("`BackendHTTPError`", f"`{general}`"))
        if status != 200:
            assert f"`{type(error).__name__}`" == name, status
            assert f"`{classify(error)}`" == kind, status
