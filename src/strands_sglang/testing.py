"""Fakes for tests of code that uses this package: no server, no model, no GPU.

- `ScriptedClient` speaks the generate contract from a list of replies, in process.
- `MockTransport` answers the requests of a client by calling a function: `HTTPRequest` in, `HTTPResponse` out.
"""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .backends.contract import check_prompt, token_array
from .backends.http.user_transport import HTTPRequest, HTTPResponse, Transport
from .backends.sglang.request import checked_fields

__all__ = [
    "HTTPRequest",
    "HTTPResponse",
    "MockTransport",
    "Reply",
    "ScriptExhaustedError",
    "ScriptedClient",
    "ScriptedRequest",
    "Transport",
    "build_answer",
]

FinishName = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A reply of a fake model.

    Attributes:
        text: The reply as text; `ids` are made of it by the tokenizer if they are not given.
        ids: Sampled ids, the stop token included.
        logprobs: One per id; by default they follow from the ids (`default_logprob`).
        finish: Type of the finish reason. Text replies that stop get the end-of-sequence token appended.
        matched: The id or text that a stop matched; the last id by default.
        delay: Seconds before the answer. An abort that comes meanwhile ends it at once.
        cached_tokens: Prompt tokens found in the cache.
        weight_version: Version of the weights, or None to leave it out.
        meta: Further keys of `meta_info`, such as `routed_experts`; they replace the defaults.
    """

    text: str | None = None
    ids: Sequence[int] | None = None
    logprobs: Sequence[float | None] | None = None
    finish: FinishName = "stop"
    matched: int | str | None = None
    delay: float = 0.0
    cached_tokens: int = 0
    weight_version: str | None = "default"
    meta: Mapping[str, Any] = field(default_factory=dict)


def default_logprob(token_id: int) -> float:
    """The logprob that fakes give to an id: made up, negative, and exact in float32."""
    return -(token_id % 63 + 1) / 64


def build_answer(
    reply: Reply,
    input_ids: Sequence[int],
    fields: Mapping[str, Any],
    *,
    rid: str,
    tokenizer: Any = None,
) -> dict[str, Any]:
    """The answer of `/generate` for a reply, as SGLang 0.5.23 gives it.

    A reply longer than `max_new_tokens` is cut there and finishes by length. Logprobs are there when they were asked
    for.

    Args:
        fields: Top-level fields of the request.
        tokenizer: Encodes text replies, decodes the ids of others (Hugging Face style `encode` and `decode`).

    Raises:
        ValueError: A text reply without a tokenizer and without ids, or logprobs of another length than the ids.
    """
    params = fields.get("sampling_params") or {}
    eos = getattr(tokenizer, "eos_token_id", None)
    ids = _ids(reply, tokenizer, eos)
    logprobs = list(reply.logprobs) if reply.logprobs is not None else [default_logprob(token) for token in ids]
    if len(logprobs) != len(ids):
        raise ValueError(f"Reply has {len(logprobs)} logprobs for {len(ids)} ids")
    finish: dict[str, Any] = {"type": reply.finish}
    limit = params.get("max_new_tokens", 128)
    if limit is not None and len(ids) > limit:
        ids, logprobs = ids[:limit], logprobs[:limit]
        finish = {"type": "length"}
    if finish["type"] == "stop":
        finish["matched"] = reply.matched if reply.matched is not None else (ids[-1] if ids else None)
    elif finish["type"] == "length":
        finish["length"] = len(ids)
    else:
        finish |= {"message": "Aborted", "status_code": None, "err_type": None}
    meta: dict[str, Any] = {
        "id": rid,
        "finish_reason": finish,
        "prompt_tokens": len(input_ids),
        "completion_tokens": len(ids),
        "cached_tokens": reply.cached_tokens,
        "e2e_latency": reply.delay,
    }
    if reply.weight_version is not None:
        meta["weight_version"] = reply.weight_version
        meta["weight_versions"] = [{"version": reply.weight_version, "start": 0, "end": len(ids)}]
    if fields.get("return_logprob"):
        start = fields.get("logprob_start_len", -1)
        scored = input_ids[start:] if start >= 0 else ()  # none for -1, as since SGLang 0.5.10
        meta["input_token_logprobs"] = [
            [default_logprob(token) if place else None, token, None] for place, token in enumerate(scored)
        ]
        meta["output_token_logprobs"] = [[lp, token, None] for lp, token in zip(logprobs, ids, strict=True)]
        meta["output_token_logprobs_length"] = len(ids)
    return {"text": _text(reply, ids, params, tokenizer, eos), "output_ids": ids, "meta_info": {**meta, **reply.meta}}


def _ids(reply: Reply, tokenizer: Any, eos: int | None) -> list[int]:
    if reply.ids is not None:
        return list(reply.ids)
    if not reply.text:
        return [eos] if reply.finish == "stop" and eos is not None else []
    if tokenizer is None:
        raise ValueError(f"Reply(text={reply.text!r}) has no ids: give ids=, or a tokenizer to the fake")
    ids = list(tokenizer.encode(reply.text, add_special_tokens=False))
    return [*ids, eos] if reply.finish == "stop" and eos is not None else ids


def _text(reply: Reply, ids: list[int], params: Mapping[str, Any], tokenizer: Any, eos: int | None) -> str:
    if tokenizer is None:
        return reply.text or ""
    visible_ids = ids
    if ids and ids[-1] == eos and not params.get("no_stop_trim"):
        visible_ids = ids[:-1]
    return str(tokenizer.decode(visible_ids, skip_special_tokens=params.get("skip_special_tokens", True)))


ScriptEntry = Reply | str | Sequence[int] | Mapping[str, Any] | BaseException | Callable[..., Any]
"""A reply; its text; its ids; a whole answer; an exception to raise; or a function of `(input_ids, fields)`
that returns one of these."""


class ScriptExhaustedError(RuntimeError):
    """A `ScriptedClient` was asked for more replies than its script has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedRequest:
    """A call of `generate`; `fields` has everything but the prompt, `sampling_params` and `routing_key` among it."""

    input_ids: list[int]
    fields: dict[str, Any]
    rid: str


class ScriptedClient:
    """Speaks the generate contract from a script. Requests are checked as the HTTP client checks them.

    Args:
        script: Replies in the order of the calls; see `ScriptEntry`. A function instead of a list answers every call.
        tokenizer: Encodes text replies (Hugging Face style).
        vocab_size: Prompt ids of this or above are refused.
        max_model_len: Context length that `max_model_len()` gives.

    Attributes:
        requests: Every call, in order.
        aborted: Request ids that were aborted, in order.
        cancelled: Request ids whose task was cancelled while they were in flight.
        max_in_flight: Most calls that were in flight at a time.
    """

    def __init__(
        self,
        script: Iterable[ScriptEntry] | Callable[..., Any],
        *,
        tokenizer: Any = None,
        vocab_size: int | None = None,
        max_model_len: int | None = None,
    ) -> None:
        self._function = script if callable(script) else None
        self._script = [] if callable(script) else list(script)
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._in_flight: dict[str, asyncio.Event] = {}
        self.requests: list[ScriptedRequest] = []
        self.aborted: list[str] = []
        self.cancelled: list[str] = []
        self.max_in_flight = 0

    async def generate(self, input_ids: Sequence[int], **fields: Any) -> dict[str, Any]:
        """The next reply of the script as a server's answer, or its exception."""
        ids = token_array(input_ids)
        check_prompt(ids, self._vocab_size)
        checked, prompt = checked_fields(fields, vocab_size=self._vocab_size), ids.tolist()
        rid = checked.get("rid") or uuid.uuid4().hex
        self.requests.append(ScriptedRequest(input_ids=prompt, fields=checked, rid=rid))
        if self._function is None and not self._script:
            raise ScriptExhaustedError(f"the script has no reply for call {len(self.requests)}")
        entry = self._function or self._script.pop(0)
        if callable(entry) and not isinstance(entry, BaseException):
            entry = entry(prompt, checked)
            if asyncio.iscoroutine(entry):
                entry = await entry
        if isinstance(entry, BaseException):
            raise entry
        if isinstance(entry, Mapping):
            return dict(entry)
        if isinstance(entry, Reply):
            reply = entry
        else:
            reply = Reply(text=entry) if isinstance(entry, str) else Reply(ids=list(entry))
        aborted = self._in_flight[rid] = asyncio.Event()
        self.max_in_flight = max(self.max_in_flight, len(self._in_flight))
        try:
            if reply.delay and not aborted.is_set():
                await asyncio.wait_for(aborted.wait(), reply.delay)
                reply = Reply(ids=[], text="", finish="abort", weight_version=reply.weight_version)
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            self.cancelled.append(rid)
            raise
        finally:
            del self._in_flight[rid]
        return build_answer(reply, prompt, checked, rid=rid, tokenizer=self._tokenizer)

    @property
    def remaining(self) -> int:
        """Replies of the script that were not asked for yet."""
        return len(self._script)

    async def abort(self, rid: str) -> bool:
        """End a delayed reply: it answers with an abort."""
        self.aborted.append(rid)
        if (event := self._in_flight.get(rid)) is not None:
            event.set()
        return True

    async def max_model_len(self) -> int | None:
        """The context length it was given."""
        return self._max_model_len

    async def vocab_size(self) -> int | None:
        """The vocabulary size it was given."""
        return self._vocab_size

    async def health(self) -> bool:
        """Always True."""
        return True

    async def close(self) -> None:
        """Nothing to close."""

    async def __aenter__(self) -> ScriptedClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class MockTransport:
    """Answers every request of a client by calling a function, without a network.

    ```python
    def handler(request: HTTPRequest) -> HTTPResponse:
        assert request.json()["input_ids"] == [1, 2, 3]
        return HTTPResponse.from_json({"output_ids": [4], "meta_info": {"finish_reason": {"type": "stop"}}})


    client = SGLangClient("http://server", transport=MockTransport(handler))
    ```

    Args:
        handler: Takes a request and returns its answer, or raises an `OSError`; may be asynchronous.
    """

    def __init__(self, handler: Callable[[HTTPRequest], Any]) -> None:
        self._handler = handler
        self.requests: list[HTTPRequest] = []

    async def send(self, request: HTTPRequest) -> HTTPResponse:
        """Answer a request."""
        self.requests.append(request)
        response = self._handler(request)
        if inspect.isawaitable(response):
            response = await response
        if not isinstance(response, HTTPResponse):
            raise TypeError(f"the handler returned {response!r:.100}: expected an HTTPResponse")
        return response
