"""Error answers of vLLM and of its router: their typed errors and retry classes."""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

from ...exceptions import BackendHTTPError
from .. import answer
from ..http.retry import RetryClass, classify_failure, classify_status

# Whole sentences: other messages may quote the caller's words.
_OVERFLOW: Final = re.compile(
    r"^The (?:decoder |encoder )?prompt \(length \d+\) is longer than the maximum model length of \d+"
    r"|^This model's maximum context length is \d+ tokens",
    re.IGNORECASE,
)
_OTHER_VOCABULARY: Final = re.compile(r"^Token id \d+ is out of vocabulary")
_HINTS: Final = {
    401: "give api_key, or set VLLM_API_KEY, to the key that the server was started with",
    403: "start vLLM with --enable-scale-out",
    404: "vLLM has /inference/v1/generate from 0.20 on; an SGLang server is reached with SGLangClient, or "
    "--backend sglang",
}


def http_error(status: int, body: bytes) -> BackendHTTPError:
    """The typed error of an error answer, in the server's words and with what may help."""
    text = body.decode("utf-8", "replace")
    words = _message(text)
    hint = _HINTS.get(status) if status != 404 or '"NotFoundError"' not in text else None  # else: an unknown model
    if hint is not None and "--enable-scale-out" in words:
        hint = None  # newer servers name the flag themselves
    if _OTHER_VOCABULARY.search(words):
        hint = "the tokenizer is not that of the served model"
    overflows = status == 400 and _OVERFLOW.search(words) is not None
    return answer.http_error(status, text, words, overflows=overflows, hint=hint)


def embedded_error(parsed: Any, body: bytes) -> BackendHTTPError | None:
    """The error inside a 200 answer, or None."""
    if not isinstance(parsed, dict) or "choices" in parsed or not parsed.get("error"):
        return None
    inner = parsed["error"]
    code = inner.get("code") if isinstance(inner, dict) else None
    return http_error(code if isinstance(code, int) and 400 <= code <= 599 else 200, body)


def classify(error: BaseException) -> RetryClass:
    """The retry class of a failure, from its type and status."""
    return classify_status(error.status) if isinstance(error, BackendHTTPError) else classify_failure(error)


def _message(text: str) -> str:
    """The server's words: `{"error": {"message": ...}}`, `{"error": ...}`, `{"detail": ...}`, or the body."""
    try:
        parsed = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text.strip()
    found = parsed.get("error", parsed.get("detail")) if isinstance(parsed, dict) else None
    if isinstance(found, dict):
        found = found.get("message")
    return found if isinstance(found, str) else text.strip()
