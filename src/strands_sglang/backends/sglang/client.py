"""Asynchronous HTTP client of SGLang's native API: one prompt of ids in, one checked answer out.

What happens for any status, body and exception is written down in `docs/errors-and-retries.md`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from ...exceptions import BackendConnectionError, BackendHTTPError
from ..contract import Backend, BackendInfo, Capabilities, GenerateAnswer, GenerateRequest
from ..http.attempts import FAILURES, Attempt, Failure, Failures, client_closed
from ..http.connections import Target
from ..http.options import (
    Secrets,
    affinity_header,
    bearer,
    checked_count,
    checked_headers,
    checked_seconds,
    checked_url,
)
from ..http.retry import RetryBudget, RetryPolicy, parse_retry_after
from ..http.transport import LoopTransport, LoopTransports
from ..http.user_transport import Transport
from ..prompt import PromptIds, check_vocabulary
from . import server_info
from .answer import check_belongs, parse_answer, read_answer
from .errors import classify, http_error
from .request import CAPABILITIES, WireRequest, check_request_fields, check_sampling_params
from .routers import ROUTING_KEY_HEADER, dropped_fields

logger = logging.getLogger(__name__)

NON_RETRYABLE_STATUS_CODES = frozenset({401, 403, 404, 405, 409, 410, 411, 413, 414, 415, 422, 501, 505})
"""Statuses that are never retried, whatever the body says. 400 is one too, but for a duplicate request id."""

_READ_IN_THREAD = 1 << 21
"""Bytes from which an answer is read on a thread: its checks take milliseconds, in which other calls get on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """What all attempts of a call share: the request, its fields as JSON, its headers."""

    request: WireRequest
    fields: bytes
    headers: bytes


def _new_rid() -> str:
    return os.urandom(16).hex()  # which no seed and no fork repeats


class SGLangClient(Backend):
    """Client of an SGLang server or router; safe to share between tasks, threads and event loops.

    Every call is checked before it is sent, repeated by a table (`RetryPolicy`) where repeating can help, and aborted
    on the server when its task is cancelled, its time is up, or the client closes. Use it as an async context
    manager, or call `close`; an `asyncio.run` that ends closes the connections it opened by itself.

    Args:
        base_url: Server or router, such as `http://localhost:30000`, without query, user name or password.
        max_connections: Requests at a time, per event loop; further calls wait their turn.
        timeout: Seconds for one attempt, from its turn to the last byte; None means no limit. Paused servers make
            requests wait, so this is also how long a pause is waited for.
        connect_timeout: Seconds to establish a connection, or None.
        max_retries: Retries of one call, all classes of failure together.
        retry_delay: First back-off in seconds; it doubles with every retry, with jitter.
        max_retry_delay: Largest back-off in seconds.
        retry_deadline: Seconds after a call's first attempt when no further one begins; None means no deadline.
        retry_policy: The whole table, instead of the four options above.
        headers: Further headers of every request.
        api_key: Sent as `Authorization: Bearer`.
        admin_api_key: Sent instead of `api_key` with abort calls, the only ones that a server with both keys takes
            with this one alone.
        session_affinity_header: Header that carries `routing_key`.
        worker_urls: Workers behind a router, for aborts; by default they are read from `GET /workers`.
        vocab_size: Ids of this or above are refused, in requests and in answers. None: the lower bound only, until
            `vocab_size()` was asked.
        extra_sampling_keys: Sampling parameters to let through unchecked, for servers newer than this package.
        max_answer_bytes: Longest answer that is read. Routed experts take 4 bytes a token, layer and expert, and a
            third more as base64.
        transport: Sends the requests, in place of the client's own connections (`testing.MockTransport`). Checks,
            retries, limits and aborts stay.

    Attributes:
        base_url: Address without trailing slash.
        timeout, connect_timeout: As given.
        retry_policy: The table in force.

    Raises:
        ValueError: An option out of range.
    """

    def __init__(
        self,
        base_url: str,
        *,
        max_connections: int = 1000,
        timeout: float | None = 900.0,
        connect_timeout: float | None = 5.0,
        max_retries: int = 60,
        retry_delay: float = 1.0,
        max_retry_delay: float = 20.0,
        retry_deadline: float | None = 1800.0,
        retry_policy: RetryPolicy | None = None,
        headers: Mapping[str, str] | None = None,
        api_key: str | None = None,
        admin_api_key: str | None = None,
        session_affinity_header: str = ROUTING_KEY_HEADER,
        worker_urls: Sequence[str] | None = None,
        vocab_size: int | None = None,
        extra_sampling_keys: Collection[str] = (),
        max_answer_bytes: int = 1 << 28,
        transport: Transport | None = None,
    ) -> None:
        self.base_url = checked_url("base_url", base_url)
        self.timeout = checked_seconds("timeout", timeout)
        self.connect_timeout = checked_seconds("connect_timeout", connect_timeout)
        if isinstance(worker_urls, str):
            raise ValueError(f"worker_urls={worker_urls!r}: expected a list of addresses")
        self.retry_policy = retry_policy or RetryPolicy(
            max_retries=max_retries,
            retry_delay=retry_delay,
            max_retry_delay=max(max_retry_delay, retry_delay),
            retry_deadline=retry_deadline,
        )
        self._max_connections = max_connections
        self._affinity_header = session_affinity_header
        self._extra_sampling_keys = frozenset(extra_sampling_keys)
        self._headers = {"Content-Type": "application/json", **(headers or {}), **bearer(api_key)}
        checked_headers({session_affinity_header: ""})
        self._failures = Failures(classify=classify, secrets=Secrets(self._headers, bearer(admin_api_key)))
        self._max_answer_bytes = checked_count("max_answer_bytes", max_answer_bytes)
        self._target = Target.of("POST", f"{self.base_url}/generate", checked_headers(self._headers))
        self._rng = random.Random()
        self._probes = server_info.Probes(
            base_url=self.base_url,
            vocab_size=checked_count("vocab_size", vocab_size, optional=True),
            rng=self._rng,
            failures=self._failures,
        )
        self._loops = LoopTransports(
            base_url=self.base_url,
            max_connections=checked_count("max_connections", max_connections),
            headers=checked_headers(self._headers),
            abort_headers=checked_headers(bearer(admin_api_key)),
            connect_timeout=self.connect_timeout,
            worker_urls=tuple(checked_url("worker_urls", url) for url in worker_urls or ()),
            user_transport=transport,
        )
        self._reported: set[str] = set()
        self._info: BackendInfo | None = None

    @property
    def capabilities(self) -> Capabilities:
        """What `/generate` can do."""
        return CAPABILITIES

    @property
    def extra_sampling_keys(self) -> frozenset[str]:
        """Sampling parameters that are let through unchecked."""
        return self._extra_sampling_keys

    @property
    def max_retries(self) -> int:
        """Retries of one call."""
        return self.retry_policy.max_retries

    @property
    def retry_delay(self) -> float:
        """First back-off, in seconds."""
        return self.retry_policy.retry_delay

    def __repr__(self) -> str:
        return f"SGLangClient({self.base_url!r}, max_connections={self._max_connections})"

    # ---------------------------------------------------------------- generate

    async def generate(
        self, input_ids: Sequence[int] | array[int], *, routing_key: str | None = None, **fields: Any
    ) -> dict[str, Any]:
        """Sample a continuation of `input_ids` (`POST /generate`).

        Args:
            input_ids: The prompt: a list of token ids, or an integer array.
            routing_key: Keeps the requests of one episode on one worker behind a router; sent as a header.
            **fields: Top-level fields of the native API (`sampling_params`, `return_logprob`, ...). Fields that are
                None are left out, and nothing is added: without `max_new_tokens` the server samples at most 128.
                `rid` names the first attempt; a retry gets a fresh id. Ids should be random and of one length: a
                server aborts every request whose id starts with the given one.

        Returns:
            The server's answer, with `output_ids` (completed from the logprobs where an old server left them out)
            and `meta_info`. A request aborted on the server is an answer too: `finish_reason.type` is `"abort"`.

        Raises:
            BackendRequestError: The request is wrong; nothing was sent.
            BackendContextLengthError: The prompt, or prompt plus `max_new_tokens`, exceeds the context.
            BackendHTTPError: The server answered with an error (`BackendThrottledError` for 429 and 503).
            BackendConnectionError: No answer: refused, reset, timed out, or the client was closed.
            BackendAnswerError: The answer is not what it should be (`BackendAnswerLimitError`: it is too large, or
                compressed).
        """
        request = WireRequest.checked(
            PromptIds.of(input_ids),
            {**fields, "routing_key": routing_key},
            vocab_size=self._probes.vocab_size,
            extra_sampling_keys=self._extra_sampling_keys,
        )
        return dict((await self._answer_to(request)).payload)

    generate.calls_ask = True  # type: ignore[attr-defined]  # for `as_backend`: nothing but a view of `ask`

    async def ask(self, request: GenerateRequest) -> GenerateAnswer:
        """The answer to a request of a conversation; repeated and aborted as `generate` does, with its errors."""
        check_vocabulary(request.prompt.highest, self._probes.vocab_size)
        return await self._answer_to(WireRequest.of(request))

    async def _answer_to(self, request: WireRequest) -> GenerateAnswer:
        call = _Call(
            request=request,
            fields=request.encode_fields(),
            headers=affinity_header(self._affinity_header, request.routing_key),
        )
        transport = await self._transport()
        budget = RetryBudget(self.retry_policy, rng=self._rng)
        attempt, number = Attempt(rid=request.rid or _new_rid()), 1
        failure: Failure | None = None
        while True:
            result = await self._attempt(transport, call, attempt, budget, failure)
            if not isinstance(result, Failure):
                return result
            final = transport.closed.is_set() or result is failure
            delay = None if final else budget.next_delay(result.kind, result.retry_after)
            if delay is None:
                if number > 1:
                    result.error.add_note(f"{number} attempts in {budget.elapsed:.1f} s, the last one failed so")
                try:
                    raise result.error
                finally:
                    del result, failure  # the error holds this frame
            logger.info(
                "kind=<%s>, attempt=<%d>, delay=<%.2f>, error=<%s> | retrying request",
                result.kind, number, delay, result.error,
            )  # fmt: skip
            if delay:
                await transport.closing.wait(delay)
            failure, number = result, number + 1
            attempt = Attempt(rid=_new_rid(), fresh=attempt.fresh or result.wants_new_connection)

    async def _attempt(
        self, transport: LoopTransport, call: _Call, attempt: Attempt, budget: RetryBudget, last: Failure | None
    ) -> GenerateAnswer | Failure:
        """One attempt in its turn: the answer, or why there is none; the last failure again when it is too late."""
        rid = attempt.rid
        async with transport.slots:
            if transport.closed.is_set():
                return client_closed(rid)
            if call.request.before_attempt is not None:
                call.request.before_attempt()
            if last is None:
                budget.begin()
            elif budget.is_over:
                return last
            attempt.started = transport.begin(rid)
            try:
                with transport.closing.block(f"request {rid}"):
                    answer, answer_headers = await self._post(transport, call, attempt)
                check_belongs(answer, call.request, rid=rid, was_sent=transport.was_sent)
            except asyncio.CancelledError:
                if attempt.connected:
                    transport.abort_later(rid)
                raise
            except FAILURES as error:
                return self._failed(transport, attempt, error)
            finally:
                transport.in_flight.pop(rid, None)
        for name, reason in dropped_fields(call.request.fields, rid, answer.payload, answer_headers):
            if name not in self._reported:
                self._reported.add(name)
                logger.warning("field=<%s>, base_url=<%s> | %s", name, self.base_url, reason)
        return answer

    def _failed(self, transport: LoopTransport, attempt: Attempt, error: BaseException) -> Failure:
        if transport.closed.is_set():
            return client_closed(attempt.rid)
        age = transport.loop.time() - attempt.started
        failure = self._failures.of(error, attempt, self.base_url, age=age, timeout=self.timeout)
        if attempt.connected and failure.maybe_running:
            transport.abort_later(attempt.rid)
        return failure

    async def _post(
        self, transport: LoopTransport, call: _Call, attempt: Attempt
    ) -> tuple[GenerateAnswer, Mapping[str, str]]:
        answer = await transport.http.request(
            self._target,
            call.request.body(attempt.rid, call.fields),
            headers=call.headers,
            timeout=self.timeout,
            limit=self._max_answer_bytes,
            fresh=attempt.fresh,
            noted=attempt,
        )
        payload = answer.body
        if answer.status != 200:
            attempt.retry_after = parse_retry_after(answer.headers.get("retry-after"))
            raise http_error(answer.status, payload)
        request = call.request

        def read() -> GenerateAnswer:
            return read_answer(
                parse_answer(payload),
                vocab_size=request.vocab_size or self._probes.vocab_size,
                max_new_tokens=request.max_new_tokens,
            )

        return (await asyncio.to_thread(read) if len(payload) > _READ_IN_THREAD else read()), answer.headers

    @staticmethod
    def _classify_http_error(status: int, body: str) -> BackendHTTPError:
        """The typed error of an error answer."""
        return http_error(status, body)

    def _is_retryable_error(self, error: BaseException) -> bool:
        """Whether the table repeats a failure at all."""
        return self.retry_policy.limit(classify(error)) > 0

    # ----------------------------------------------------------- control calls

    async def abort(self, rid: str) -> bool:
        """Ask the server to stop the request with this id; through routers, every worker is asked.

        Returns:
            Whether a server took the call. It does not say that there was such a request.
        """
        transport = await self._transport()
        with contextlib.suppress(BackendConnectionError), transport.closing.block(f"abort of {rid}"):
            return await transport.aborts.abort(rid)
        return False

    async def abort_everywhere(self, rid: str) -> int:
        """Ask `base_url` and every worker behind it to stop a request; returns how many took the call."""
        transport = await self._transport()
        with contextlib.suppress(BackendConnectionError), transport.closing.block(f"abort of {rid}"):
            return await transport.aborts.abort_everywhere(rid)
        return 0

    async def health(self, timeout: float = 25.0) -> bool:
        """Whether the server answers `GET /health` with 200. It generates one token for that (about a second).

        False for a paused server, too (after 20 s); requests are waiting there, and do not fail.

        Args:
            timeout: Seconds to wait.
        """
        try:
            status, _ = await (await self._transport()).request("GET", f"{self.base_url}/health", timeout=timeout)
        except FAILURES:
            return False
        return status == 200

    async def get_model_info(self) -> dict[str, Any]:
        """`GET /model_info` (at routers and servers before 0.5.6 `/get_model_info`)."""
        return await self._probes.read(await self._transport(), self.retry_policy, *server_info.MODEL_INFO)

    async def get_server_info(self) -> dict[str, Any]:
        """`GET /server_info` (at routers and servers before 0.5.6 `/get_server_info`)."""
        return await self._probes.read(await self._transport(), self.retry_policy, *server_info.SERVER_INFO)

    async def info(self) -> BackendInfo:
        """Context length and vocabulary, each asked for until it is known."""
        if self._info is None or self._info.context_length is None or self._info.vocab_size is None:
            self._info = BackendInfo(
                context_length=await self.max_model_len(),
                vocab_size=await self.vocab_size(),
            )
        return self._info

    def check_sampling_params(self, params: Mapping[str, Any], *, vocab_size: int | None = None) -> dict[str, Any]:
        """Check as the server would; see `docs/errors-and-retries.md`."""
        return check_sampling_params(params, extra_keys=self._extra_sampling_keys, vocab_size=vocab_size)

    def check_fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Any field of `/generate` but those that a conversation sets."""
        return check_request_fields(fields)

    async def max_model_len(self) -> int | None:
        """Context length of the served model in tokens, from `/v1/models`; of the shortest worker behind a router.

        None where no server says it. A success is remembered for good, a failure for a few seconds only.
        """
        if (known := self._probes.max_model_len) is not None:
            return known
        return await self._probes.ask_max_model_len(await self._transport(), self.retry_policy)

    async def vocab_size(self) -> int | None:
        """Rows of the model's embedding, from the server or from its model folder if that is here, else None.

        Once known, ids beyond it are refused. The length of the tokenizer is no substitute: embeddings are often
        padded beyond it.
        """
        if (known := self._probes.vocab_size) is not None:
            return known
        return await self._probes.ask_vocab_size(await self._transport(), self.retry_policy)

    async def is_multimodal(self) -> bool:
        """Whether the served model takes images or audio."""
        info = await self.get_model_info()
        return bool(info.get("has_image_understanding") or info.get("has_audio_understanding"))

    # --------------------------------------------------------------- lifecycle

    @property
    def closings(self) -> int:
        """How often the client was closed. Work of several calls ends with the client by comparing it."""
        return self._loops.closings

    async def _transport(self) -> LoopTransport:
        return await self._loops.here()

    @property
    def _transports(self) -> dict[asyncio.AbstractEventLoop, LoopTransport]:
        return self._loops.open

    async def close(self) -> None:
        """Abort what is in flight, send outstanding aborts, close all connections of all event loops.

        Calls in flight raise `BackendConnectionError`. A later call opens new connections. Connections of a process
        of which this one is a fork stay open there.
        """
        await self._loops.close()

    async def __aenter__(self) -> SGLangClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
