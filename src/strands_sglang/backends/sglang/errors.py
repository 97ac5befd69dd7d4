"""Error answers of SGLang and of routers in front of it: their typed errors and retry classes.

Servers and routers speak at least eight dialects (`docs/errors-and-retries.md` lists them). All of them are read
here, by structure: the status, then the parsed body, never a substring of the raw text.
"""

from __future__ import annotations

import re

from ...exceptions import BackendHTTPError
from .. import answer
from ..answer import ErrorBody, parse_error_body
from ..http.retry import RetryClass, classify_failure, classify_status

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
