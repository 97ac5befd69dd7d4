"""Asynchronous HTTP client of SGLang's native API: one prompt of ids in, one checked answer out.

What happens for any status, body and exception is written down in `docs/errors-and-retries.md`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
import uuid
import weakref
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

import aiohttp
import numpy as np
import orjson
from yarl import URL

from ._answers import parse_answer, vocab_size_of, vocab_size_of_folder
from ._attempts import FAILURES, Attempt, Failure, client_closed, read_answer, translate
from ._http_errors import http_error
from ._transport import LoopTransport, open_transport
from .exceptions import SGLangClientError, SGLangDecodingError, SGLangHTTPError, SGLangRequestError
from .retry import RetryBudget, RetryPolicy, classify
from .routers import NOT_ROUTED, ROUTING_KEY_HEADER, dropped_fields
from .sampling import validate_fields, validate_input_ids, validate_sampling_params

logger = logging.getLogger(__name__)

NON_RETRYABLE_STATUS_CODES = frozenset({401, 403, 404, 405, 409, 410, 411, 413, 414, 415, 422, 501, 505})
"""Statuses that are never retried, whatever the body says. 400 is one too, but for a duplicate request id."""

_PROBE_RETRIES = 3
_PROBE_PAUSE_S = 10.0
_PROBE_VOCAB_PAUSE_S = 600.0  # most servers do not tell; asking is not free


class SGLangClient:
    """Client of an SGLang server or router; safe to share between tasks, threads and event loops.

    Every call is checked before it is sent, repeated by a table (`RetryPolicy`) where repeating can help, and aborted
    on the server when its task is cancelled, its time is up, or the client closes. Use it as an async context
    manager, or call `close`; an `asyncio.run` that ends closes the connections it opened by itself.

    Args:
        base_url: Server or router, such as `http://localhost:30000`.
        max_connections: Requests at a time, per event loop; further calls wait their turn.
        timeout: Seconds for one attempt, from its turn to the last byte; None means no limit. Paused servers make
            requests wait, so this is also how long a pause is waited for.
        connect_timeout: Seconds to establish a connection, or None.
        max_retries: Retries of one call, all classes of failure together.
        retry_delay: First back-off in seconds; it doubles with every retry, with jitter.
        max_retry_delay: Largest back-off in seconds.
        retry_deadline: Seconds after the start of a call when no further attempt begins; None means no deadline.
        retry_policy: The whole table, instead of the four options above.
        headers: Further headers of every request.
        api_key: Sent as `Authorization: Bearer`.
        admin_api_key: Sent instead of `api_key` with control calls (abort).
        session_affinity_header: Header that carries `routing_key`.
        worker_urls: Workers behind a router, for aborts; by default they are read from `GET /workers`.
        vocab_size: Ids of this or above are refused. None: the lower bound only, until `vocab_size()` was asked.
        extra_sampling_keys: Sampling parameters to let through unchecked, for servers newer than this package.

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
    ) -> None:
        self.base_url = _checked_url(base_url)
        self.timeout = _checked_seconds("timeout", timeout)
        self.connect_timeout = _checked_seconds("connect_timeout", connect_timeout)
        if isinstance(max_connections, bool) or not isinstance(max_connections, int) or max_connections < 1:
            raise ValueError(f"max_connections={max_connections!r}: expected an integer of at least 1")
        if vocab_size is not None and (isinstance(vocab_size, bool) or vocab_size < 1):
            raise ValueError(f"vocab_size={vocab_size!r}: expected an integer of at least 1, or None")
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
        self._vocab_size = vocab_size
        self._extra_sampling_keys = frozenset(extra_sampling_keys)
        self._worker_urls = tuple(_checked_url(url) for url in worker_urls or ())
        self._headers = {"Content-Type": "application/json", **(headers or {}), **_bearer(api_key)}
        self._control_headers = {**self._headers, **_bearer(admin_api_key)}
        self._generate_url = URL(f"{self.base_url}/generate")
        self._client_timeout = aiohttp.ClientTimeout(total=self.timeout, sock_connect=self.connect_timeout)
        self._rng = random.Random()
        self._lock = threading.Lock()
        # A session holds its loop, so weak keys would never be collected: loops that are over are swept instead.
        self._transports: dict[asyncio.AbstractEventLoop, LoopTransport] = {}
        weakref.finalize(self, _release, self._transports).atexit = False
        self._max_model_len: int | None = None
        self._probe_again_at = 0.0
        self._vocab_again_at = 0.0
        self._reported: set[str] = set()

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
                None are left out. `rid` names the first attempt; a retry gets a fresh id. Ids should be random and
                of one length: a server aborts every request whose id starts with the one it is told to abort.

        Returns:
            The server's answer, with `output_ids` (completed from the logprobs where an old server left them out)
            and `meta_info`. A request aborted on the server is an answer too: `finish_reason.type` is `"abort"`.

        Raises:
            SGLangRequestError: The request is wrong; nothing was sent.
            SGLangContextLengthError: The prompt, or prompt plus `max_new_tokens`, exceeds the context.
            SGLangHTTPError: The server answered with an error (`SGLangThrottledError` for 429 and 503).
            SGLangConnectionError: No answer: refused, reset, timed out, or the client was closed.
            SGLangDecodingError: The answer is not what it should be.
        """
        fields, body = self._encode(input_ids, fields)
        rid = fields.pop("rid", None) or uuid.uuid4().hex
        headers = {} if routing_key is None else {self._affinity_header: routing_key}
        transport = self._transport()
        budget = RetryBudget(self.retry_policy, rng=self._rng)
        attempt = 1
        while True:
            payload = b'{"rid":' + orjson.dumps(rid) + b"," + body
            result = await self._attempt(transport, rid, payload, headers, fields)
            if not isinstance(result, Failure):
                return result
            delay = None if transport.closed.is_set() else budget.next_delay(result.kind, result.retry_after)
            if delay is None:
                if attempt > 1:
                    result.error.add_note(f"{attempt} attempts in {budget.elapsed:.1f} s, the last one failed so")
                raise result.error
            logger.info(
                "kind=<%s>, attempt=<%d>, delay=<%.2f>, error=<%s> | retrying request",
                result.kind, attempt, delay, result.error,
            )  # fmt: skip
            if delay:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(transport.closed.wait(), delay)
            attempt += 1
            rid = uuid.uuid4().hex

    def _encode(self, input_ids: Any, fields: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Check a request; returns its fields and its JSON without the opening brace and the request id."""
        validate_input_ids(input_ids, self._vocab_size)
        fields = validate_fields(fields, len(input_ids))
        if "sampling_params" in fields:
            params = validate_sampling_params(fields["sampling_params"], extra_keys=self._extra_sampling_keys)
            if params.get("n", 1) != 1:
                raise SGLangRequestError(f"sampling_params['n']={params['n']}: this client takes one answer per call")
            fields["sampling_params"] = params
        ids = np.asarray(input_ids) if isinstance(input_ids, array) else input_ids
        sent = {**fields, "input_ids": ids, "stream": False}
        sent.pop("rid", None)
        try:
            return fields, orjson.dumps(sent, option=orjson.OPT_SERIALIZE_NUMPY)[1:]
        except orjson.JSONEncodeError as error:
            raise SGLangRequestError(f"the request cannot be written as JSON: {error}") from error

    async def _attempt(
        self, transport: LoopTransport, rid: str, payload: bytes, headers: Mapping[str, str], fields: Mapping[str, Any]
    ) -> dict[str, Any] | Failure:
        attempt = Attempt(rid=rid)
        async with transport.slots:
            if transport.closed.is_set():
                return client_closed(rid)
            attempt.started = transport.in_flight[rid] = transport.loop.time()
            try:
                answer, answer_headers = await self._post(payload, headers, attempt)
            except asyncio.CancelledError:
                if attempt.connected:
                    transport.abort_later(rid)
                raise
            except FAILURES as error:
                if transport.closed.is_set():
                    return client_closed(rid)
                age = transport.loop.time() - attempt.started
                failure = translate(error, attempt, self.base_url, age=age, timeout=self.timeout)
                if attempt.connected and failure.maybe_running:
                    transport.abort_later(rid)
                return failure
            finally:
                transport.in_flight.pop(rid, None)
        for name, reason in dropped_fields(fields, rid, answer, answer_headers):
            if name not in self._reported:
                self._reported.add(name)
                logger.warning("field=<%s>, base_url=<%s> | %s", name, self.base_url, reason)
        return answer

    async def _post(
        self, payload: bytes, headers: Mapping[str, str], attempt: Attempt
    ) -> tuple[dict[str, Any], Mapping[str, str]]:
        async with self._get_session().post(
            self._generate_url,
            data=payload,
            headers=headers,
            timeout=self._client_timeout,
            allow_redirects=False,
            trace_request_ctx=attempt,
        ) as response:
            return await read_answer(response, attempt)

    @staticmethod
    def _classify_http_error(status: int, body: str) -> SGLangHTTPError:
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
        return await self._transport().abort(rid)

    async def abort_everywhere(self, rid: str) -> int:
        """Ask `base_url` and every worker behind it to stop a request; returns how many took the call."""
        return await self._transport().abort_everywhere(rid)

    async def health(self, timeout: float = 25.0) -> bool:
        """Whether the server answers `GET /health` with 200. It generates one token for that (about a second).

        False for a paused server, too (after 20 s); requests are waiting there, and do not fail.

        Args:
            timeout: Seconds to wait.
        """
        try:
            status, _ = await self._transport().request("GET", f"{self.base_url}/health", timeout=timeout)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False
        return status == 200

    async def get_model_info(self) -> dict[str, Any]:
        """`GET /model_info` (at routers and servers before 0.5.6 `/get_model_info`)."""
        return await self._get_json("/model_info", "/get_model_info")

    async def get_server_info(self) -> dict[str, Any]:
        """`GET /server_info` (at routers and servers before 0.5.6 `/get_server_info`)."""
        return await self._get_json("/server_info", "/get_server_info")

    async def max_model_len(self) -> int | None:
        """Context length of the served model in tokens, from `/v1/models`; of the shortest worker behind a router.

        None where no server says it. A success is remembered for good, a failure for a few seconds only.
        """
        transport = self._transport()
        async with transport.probing:
            if self._max_model_len is None and time.monotonic() >= self._probe_again_at:
                lengths = [await self._model_len_at(self.base_url)]
                if lengths == [None]:
                    workers = await transport.list_workers()
                    lengths = await asyncio.gather(*(self._model_len_at(url) for url in workers))
                self._max_model_len = min((length for length in lengths if length is not None), default=None)
                self._probe_again_at = time.monotonic() + _PROBE_PAUSE_S
        return self._max_model_len

    async def _model_len_at(self, base_url: str) -> int | None:
        try:
            listing = await self._get_json("/v1/models", base_url=base_url, retries=0)
        except SGLangClientError as error:
            logger.debug("base_url=<%s>, error=<%s> | no model list", base_url, error)
            return None
        models = listing.get("data")
        lengths = [model.get("max_model_len") for model in models if isinstance(model, dict)] if models else []
        return next((length for length in lengths if isinstance(length, int) and length > 0), None)

    async def vocab_size(self) -> int | None:
        """Rows of the model's embedding, from the server or from its model folder if that is here, else None.

        Once known, `generate` refuses ids beyond it. The length of the tokenizer is no substitute: embeddings are
        often padded beyond it.
        """
        async with self._transport().probing:
            if self._vocab_size is None and time.monotonic() >= self._vocab_again_at:
                pause = _PROBE_PAUSE_S
                for path in (("/model_info", "/get_model_info"), ("/server_info", "/get_server_info")):
                    with contextlib.suppress(SGLangClientError):
                        info = await self._get_json(*path, retries=0)
                        pause = _PROBE_VOCAB_PAUSE_S
                        folder = info.get("model_path")
                        self._vocab_size = vocab_size_of(info) or await asyncio.to_thread(vocab_size_of_folder, folder)
                    if self._vocab_size is not None:
                        break
                self._vocab_again_at = time.monotonic() + pause
                if self._vocab_size is None and pause is _PROBE_VOCAB_PAUSE_S and "vocab_size" not in self._reported:
                    self._reported.add("vocab_size")
                    logger.warning(
                        "base_url=<%s> | the server does not tell its vocabulary size, and an id beyond it would kill "
                        "it; give vocab_size",
                        self.base_url,
                    )
        return self._vocab_size

    async def is_multimodal(self) -> bool:
        """Whether the served model takes images or audio."""
        info = await self.get_model_info()
        return bool(info.get("has_image_understanding") or info.get("has_audio_understanding"))

    async def _get_json(
        self, *paths: str, base_url: str | None = None, retries: int = _PROBE_RETRIES
    ) -> dict[str, Any]:
        """The JSON object at the first of several paths that the server knows."""
        policy = replace(self.retry_policy, max_retries=min(retries, self.max_retries))
        budget = RetryBudget(policy, rng=self._rng)
        where = base_url or self.base_url
        remaining = list(paths)
        while True:
            try:
                status, body = await self._transport().request("GET", where + remaining[0])
                if status in NOT_ROUTED and len(remaining) > 1:
                    remaining.pop(0)
                    continue
                if status != 200:
                    raise http_error(status, body)
                parsed = parse_answer(body)
                if not isinstance(parsed, dict):
                    raise SGLangDecodingError(f"{remaining[0]} answered a JSON {type(parsed).__name__}, not an object")
                return parsed
            except FAILURES as error:
                failure = translate(error, Attempt(rid=remaining[0]), where, age=0.0, timeout=None)
            delay = budget.next_delay(failure.kind, failure.retry_after)
            if delay is None:
                raise failure.error
            await asyncio.sleep(delay)

    # --------------------------------------------------------------- lifecycle

    def _get_session(self) -> aiohttp.ClientSession:
        """The session of the running event loop."""
        return self._transport().session

    def _transport(self) -> LoopTransport:
        loop = asyncio.get_running_loop()
        held = self._transports.get(loop)
        if held is not None and not held.closed.is_set():
            return held
        transport = open_transport(
            base_url=self.base_url,
            max_connections=self._max_connections,
            headers=self._headers,
            control_headers=self._control_headers,
            connect_timeout=self.connect_timeout,
            worker_urls=self._worker_urls,
        )
        with self._lock:
            for over in [other for other in self._transports if other.is_closed()]:
                del self._transports[over]
            self._transports[loop] = transport
        return transport

    async def close(self) -> None:
        """Abort what is in flight, send outstanding aborts, close all connections of all event loops.

        Calls in flight raise `SGLangConnectionError`. A later call opens new connections.
        """
        with self._lock:
            held = dict(self._transports)
            self._transports.clear()
        here = asyncio.get_running_loop()
        for loop, transport in held.items():
            if loop is here:
                await transport.close()
            elif loop.is_running():
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(transport.close(), loop))
            else:
                transport.drop()

    async def __aenter__(self) -> SGLangClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def _release(transports: dict[asyncio.AbstractEventLoop, LoopTransport]) -> None:
    for transport in list(transports.values()):
        transport.close_soon()


def _bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def _checked_url(url: Any) -> str:
    parsed = URL(url) if isinstance(url, str) else None
    if parsed is None or parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError(f"base_url={url!r}: expected an address such as 'http://localhost:30000'")
    return str(url).rstrip("/")


def _checked_seconds(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ValueError(f"{name}={value!r}: expected seconds above 0, or None for no limit")
    return float(value)
