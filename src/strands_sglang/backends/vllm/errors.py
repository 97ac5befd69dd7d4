"""Error answers of vLLM and of its router as typed errors."""

from __future__ import annotations

import re
from typing import Final

from ...exceptions import BackendHTTPError
from .. import answer

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
    words = answer.parse_error_body(text).message
    hint = _HINTS.get(status) if status != 404 or '"NotFoundError"' not in text else None  # else: an unknown model
    if hint is not None and "--enable-scale-out" in words:
        hint = None  # newer servers name the flag themselves
    if _OTHER_VOCABULARY.search(words):
        hint = "the tokenizer is not that of the served model"
    overflows = status == 400 and _OVERFLOW.search(words) is not None
    return answer.http_error(status, text, words, overflows=overflows, hint=hint)
