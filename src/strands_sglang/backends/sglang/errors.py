"""Error answers of SGLang and of routers in front of it: their typed errors and retry classes.

Servers and routers speak at least eight dialects (`docs/errors-and-retries.md` lists them). All of them are read
here, by structure: the status, then the parsed body, never a substring of the raw text.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import Any

import orjson

from ...exceptions import BackendAnswerError, BackendHTTPError
from .. import answer
from ..http.retry import RetryClass, classify_failure, classify_status

_EXCERPT = 200

# What servers say when a prompt does not fit: whole sentences, since other messages may quote the words.
_OVERFLOW = re.compile(
    r"The input \(\d+ tokens\) is longer than the .{1,200}'s context length \(\d+ tokens\)"
    r"|exceeds the .{1,200}'s maximum context length of \d+ tokens"
    r"|This model's maximum context length is \d+ tokens"
    r"|Input length \(\d+ tokens\) exceeds the maximum allowed length \(\d+ tokens\)"
    r"|^(?:Multimodal )?(?:Prompt|Input) is too long\b"
    r"|^Input token count exceeds? the max(?:imum)? model len",
    re.IGNORECASE,
)
# Messages that quote the caller's own words, which may say anything: validation errors, schema checks, grammars.
_QUOTES_THE_CALLER = re.compile(
    r"\d+ validation errors?:|unknown field|invalid (?:type|value)|failed to compile|invalid grammar|stop_regex",
    re.IGNORECASE,
)
WORKER_LOST_CODES = frozenset({"call_upstream_request_error", "call_upstream_connection_failed"})
"""`code` of the 500 that a router answers when a worker dies during a request."""
_OVERFLOW_CODES = frozenset({"context_length_exceeded"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBody:
    """The content of an error body, whatever its shape.

    Attributes:
        message: The server's words; the whole body if it is not JSON of a known shape.
        known: False if the body is JSON of an unknown shape.
        type: The `type` field, or None.
        code: The `code` field (a number at SGLang, a word at routers), or None.
        retryable: The server's own verdict, where it gives one (stream form), or None.
    """

    message: str
    known: bool = True
    type: str | None = None
    code: int | str | None = None
    retryable: bool | None = None


def parse_error_body(body: str | bytes) -> ErrorBody:
    """Read any error body. Never raises: a body that is not JSON is its own message."""
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
    try:
        parsed = orjson.loads(_first_event(text))
    except orjson.JSONDecodeError:
        return ErrorBody(message=text.strip())
    if not isinstance(parsed, dict):
        return ErrorBody(message=parsed if isinstance(parsed, str) else text.strip(), known=isinstance(parsed, str))
    inner = parsed.get("error")
    if isinstance(inner, str):
        return ErrorBody(message=inner)
    fields: dict[str, Any] = inner if isinstance(inner, dict) else parsed
    message = fields.get("message", fields.get("detail"))
    code, kind, retryable = fields.get("code"), fields.get("type"), fields.get("retryable")
    return ErrorBody(
        message=message if isinstance(message, str) else text.strip(),
        known=isinstance(message, str),
        type=kind if isinstance(kind, str) else None,
        code=code if isinstance(code, (int, str)) and not isinstance(code, bool) else None,
        retryable=retryable if isinstance(retryable, bool) else None,
    )


def _first_event(text: str) -> str:
    """The JSON of the first `data:` line if the text is an event stream, else the text itself."""
    if not text.lstrip().startswith("data:"):
        return text
    return text.lstrip().splitlines()[0].removeprefix("data:").strip()


def is_context_overflow(status: int | None, error: ErrorBody) -> bool:
    """True if a 400 says that the prompt, or prompt plus `max_new_tokens`, does not fit the context.

    SGLang gives overflow no status or code of its own, so the parsed message decides; messages that quote the caller
    (validation errors, grammar errors) do not count.
    """
    if status != 400:
        return False
    if error.code in _OVERFLOW_CODES:
        return True
    if not error.known or _QUOTES_THE_CALLER.match(error.message):
        return False
    return bool(_OVERFLOW.search(error.message))


def http_error(status: int, body: str | bytes, *, hint: str = "") -> BackendHTTPError:
    """The typed error of an error answer; `hint`, which may help, ends its message.

    Its message carries the server's words (their first 2,000 characters), its `body` the whole body.
    """
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
    error = parse_error_body(text)
    overflows = is_context_overflow(status, error)
    return answer.http_error(status, text, error.message, overflows=overflows, hint=hint)


def embedded_error(payload: bytes, parsed: Any) -> BackendHTTPError | None:
    """The error inside a 200 answer (any JSON dialect), or None.

    Its status is the `code` of the error where that is an HTTP status, else 200.
    """
    if not isinstance(parsed, dict) or "meta_info" in parsed:
        return None
    if not (parsed.get("error") or parsed.get("object") == "error" or isinstance(parsed.get("detail"), str)):
        return None
    code = str(parse_error_body(payload).code)
    return http_error(int(code) if re.fullmatch("[45][0-9][0-9]", code) else 200, payload)


def parse_answer(body: bytes) -> Any:
    """The JSON of an answer of status 200.

    Raises:
        BackendAnswerError: It is not JSON (half-written, or not SGLang).
        BackendHTTPError: It is an error object or an error event.
    """
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        with contextlib.suppress(orjson.JSONDecodeError):  # an event stream may hold an error
            event = orjson.loads(_first_event(body.decode("utf-8", "replace")))
            if (failure := embedded_error(body, event)) is not None:
                raise failure from None
        raise BackendAnswerError(f"the answer is not JSON ({error}); {len(body)} bytes: {body[:_EXCERPT]!r}") from error
    if (failure := embedded_error(body, parsed)) is not None:
        raise failure
    return parsed


def classify(error: BaseException) -> RetryClass:
    """The retry class of a failure, from its type, status and parsed body."""
    if not isinstance(error, BackendHTTPError):
        return classify_failure(error)
    status, body = error.status, parse_error_body(error.body)
    if body.retryable is False or is_context_overflow(status, body):
        return RetryClass.NEVER
    if status == 400 and body.message.lower().startswith("duplicate request id"):
        return RetryClass.DUPLICATE_ID
    if status == 500 and body.code in WORKER_LOST_CODES:
        return RetryClass.WORKER_LOST
    by_status = classify_status(status)
    return RetryClass.SERVER_ERROR if by_status is RetryClass.NEVER and body.retryable else by_status
