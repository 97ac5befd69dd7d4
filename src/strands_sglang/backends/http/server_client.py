"""The client of a model server over HTTP: what the clients of SGLang and of vLLM have in common.

Slots, retries by a table, deadlines, aborts of what nobody waits for any more, one set of connections for every event
loop. A subclass says where requests go, how they are written, and how answers are read.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, ClassVar, Self

from ...exceptions import BackendError, BackendHTTPError, check_positive, explain_arguments
from ..answer import parse_answer
from ..contract import Backend, GenerateAnswer, GenerateRequest
from . import served
from .call import GenerateCall, write_prompt
from .client_options import (
    Secrets,
    affinity_header,
    bearer,
    check_rid,
    checked_headers,
    checked_seconds,
    checked_url,
)
from .connections import Attempt, HTTPSession, closed_error
from .retry import RequestRetryPolicy, RetryBudget, RetryClass, classify_failure, classify_status, parse_retry_after
from .served import ServerKind
from .transport import LoopTransport, Outcome, close_all
from .user_transport import HTTPRequest, HTTPResponse, Transport

logger = logging.getLogger(__name__)

NOT_ROUTED = frozenset({404, 405, 501})
"""Statuses by which a router says that it does not forward a control call."""
WARN_EVERY_S = 30.0  # between two warnings of a server that does not answer
_REMEMBERED_IDS = 4096
# Bytes from which an answer is read on a thread.
_READ_IN_THREAD = 1 << 21


def _new_rid() -> str:
    return os.urandom(16).hex()  # which no seed and no fork repeats


class ServerClient(Backend):
    """Client of a model server or a router; safe to share between tasks, threads and event loops.

    Every call is checked before it is sent, repeated by a table (`RequestRetryPolicy`) where repeating can help, and
    aborted on the server when its task is cancelled, its time is up, or the client closes. Use it as an async context
    manager, or call `close`. Otherwise the connections of an event loop that ended are closed at the next use of the
    client, when it is garbage, or at exit.

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
        api_key: Sent as `Authorization: Bearer`. None: that of the environment variable in
            `ServerKind.key_variable`, if it is set.
        admin_api_key: Sent instead of `api_key` with abort calls, the only ones that a server with both keys takes
            with this one alone.
        session_affinity_header: Header that carries `routing_key`; None for the one that the server's routers read.
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
        timeout, connect_timeout, max_connections, extra_sampling_keys: As given.
        retry_policy: The table in force.

    Raises:
        TypeError: An unknown option, named with the nearest one.
        ValueError: An option out of range.
    """

    extra_sampling_keys: frozenset[str] = frozenset()
    server: ClassVar[ServerKind]

    @explain_arguments
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
        retry_policy: RequestRetryPolicy | None = None,
        headers: Mapping[str, str] | None = None,
        api_key: str | None = None,
        admin_api_key: str | None = None,
        session_affinity_header: str | None = None,
        worker_urls: Sequence[str] | None = None,
        vocab_size: int | None = None,
        extra_sampling_keys: Collection[str] = (),
        max_answer_bytes: int = 1 << 28,
        transport: Transport | None = None,
    ) -> None:
        self.base_url = checked_url("base_url", base_url)
        if self.base_url.endswith("/v1"):
            raise ValueError(
                f"base_url must leave out /v1, under which the server answers OpenAI's clients, got {base_url!r}"
            )
        self.timeout = checked_seconds("timeout", timeout)
        self.connect_timeout = checked_seconds("connect_timeout", connect_timeout)
        self.retry_policy = retry_policy or RequestRetryPolicy(
            max_retries=max_retries,
            retry_delay=retry_delay,
            max_retry_delay=max(max_retry_delay, retry_delay),
            retry_deadline=retry_deadline,
        )
        check_positive(whole=True, max_connections=max_connections, max_answer_bytes=max_answer_bytes)
        check_positive(whole=True, optional=True, vocab_size=vocab_size)
        self.max_connections = max_connections
        self._affinity_header = session_affinity_header or self.server.affinity_header
        self.extra_sampling_keys = frozenset(extra_sampling_keys)
        if api_key is None and "authorization" not in map(str.lower, headers or ()):
            api_key = os.environ.get(self.server.key_variable) or None
        checked_headers({self._affinity_header: ""})
        self._headers = checked_headers({"Content-Type": "application/json", **(headers or {}), **bearer(api_key)})
        self._secrets = Secrets(self._headers, bearer(admin_api_key))
        self._max_answer_bytes = max_answer_bytes
        self._generate_url = f"{self.base_url}{self.server.generate_route}"
        self._rng = random.Random()
        self._vocab_size = vocab_size
        self._user_transport = transport
        self._abort_headers = checked_headers(bearer(admin_api_key))
        self._worker_urls = tuple(checked_url("worker_urls", url) for url in worker_urls or ())
        self._transports: dict[asyncio.AbstractEventLoop, LoopTransport] = {}
        self._sent_ids: deque[str] = deque(maxlen=_REMEMBERED_IDS)
        self._closings = 0
        self._warned_at = -math.inf

    @property
    def max_retries(self) -> int:
        """Retries of one call."""
        return self.retry_policy.max_retries

    @property
    def retry_delay(self) -> float:
        """First back-off, in seconds."""
        return self.retry_policy.retry_delay

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_url!r}, max_connections={self.max_connections})"

    def served_tokenizer(self, *, is_optional: bool = False) -> str | None:
        """The folder or hub id that the server names as its tokenizer. Blocks.

        Args:
            is_optional: None if the server does not say: a proxy may serve nothing but the calls.

        Raises:
            BackendConnectionError: Nothing answers, the key is refused, it is another kind of server, or it names none.
        """
        return served.read_tokenizer_name(self.server, self.base_url, self._headers, is_optional=is_optional)

    def served_model(self) -> str | None:
        """The name under which the server serves its model, or None if it states none. Blocks.

        An update of the weights does not change it, whatever folder they come from.

        Raises:
            BackendConnectionError: Nothing answers.
        """
        return served.read_model_name(self.server, self.base_url, self._headers)

    def check_tokenizer(self, tokenizer: Any, name: str) -> None:
        """`ValueError` if a tokenizer is not the server's, as far as the server shows its own. Blocks."""
        served.check_tokenizer(self.base_url, self._headers, tokenizer, name)

    # ------------------------------------------------------------ of the server

    @abstractmethod
    def _wire_fields(self, request: GenerateRequest) -> dict[str, Any]:
        """The request under the server's names, without prompt and id; `BackendRequestError` if a field is wrong."""

    def _write(self, request: GenerateRequest) -> GenerateCall:
        """The call to make for the request of a conversation."""
        return GenerateCall(request, self._wire_fields(request), self.server.wire_names)

    @abstractmethod
    def _read(self, call: GenerateCall, response: HTTPResponse, rid: str) -> GenerateAnswer:
        """The checked answer of an attempt, from one of status 200; runs on a thread where the body is long.

        Raises:
            BackendError: It is not the answer to this call, or contradicts itself.
        """

    def _parse(self, body: bytes) -> Any:
        """The JSON of an answer of status 200; `BackendAnswerError` if it has none, `BackendHTTPError` of an error."""
        return parse_answer(body, self.server.answer_key, self._http_error)

    @staticmethod
    @abstractmethod
    def _abort_body(rid: str) -> dict[str, Any]:
        """The JSON of an abort of one request."""

    @abstractmethod
    def _http_error(self, status: int, body: bytes) -> BackendHTTPError:
        """The typed error of an error answer."""

    def _classify(self, error: BackendError) -> RetryClass:
        """The row of the retry table that a typed error of this server belongs to."""
        return classify_status(error.status) if isinstance(error, BackendHTTPError) else classify_failure(error)

    # ---------------------------------------------------------------- generate

    async def ask(self, request: GenerateRequest, *, call: GenerateCall | None = None) -> GenerateAnswer:
        """The answer to a request, repeated and aborted as the class says.

        Args:
            call: What is sent for the request, where it is not what a conversation sends.

        Raises:
            BackendRequestError: The request is wrong; nothing was sent.
            BackendError: As of any backend.
        """
        prompt = write_prompt(request, request.vocab_size or self._vocab_size)
        if call is None:
            call = self._write(request)
        headers = {**self._headers, **affinity_header(self._affinity_header, request.routing_key)}
        transport = self._transport()
        attempt, number = Attempt(rid=request.rid or _new_rid()), 1
        await transport.slots.acquire()  # for one attempt; a call that waits to be repeated holds none
        budget = RetryBudget(self.retry_policy, self._rng)
        while True:
            try:
                return await self._attempt(transport, call, prompt, headers, attempt)
            except asyncio.CancelledError:
                if attempt.connected:
                    await transport.tell_abort(attempt.rid, attempt.age)
                raise
            except BackendError as error:
                closed = transport.http.closed.is_set()
                delay = budget.next_delay(attempt.kind, attempt.retry_after) if attempt.kind and not closed else None
                if delay is not None:
                    logger.info(
                        "kind=<%s>, attempt=<%d>, delay=<%.2f>, error=<%s> | retrying request",
                        attempt.kind, number, delay, self._show(error),
                    )  # fmt: skip
                    now = time.monotonic()
                    # A wrong address is retried for minutes: who reads no info logs hears of it now and then.
                    if attempt.kind is RetryClass.UNREACHABLE and now - self._warned_at >= WARN_EVERY_S:
                        self._warned_at = now
                        logger.warning(
                            "error=<%s> | no server answers, asking for up to %d s more: start one (%s), or correct it",
                            self._show(error), budget.seconds_left, self.server.start_command,
                        )  # fmt: skip
                    await transport.http.wait(delay)
                    await transport.slots.acquire()
                    if not budget.is_over:
                        # Other kept connections may be as bad: closed by the peer as well, or out of step with it.
                        fresh = attempt.fresh or attempt.kind in (RetryClass.STALE, RetryClass.DECODING)
                        attempt, number = Attempt(rid=_new_rid(), fresh=fresh), number + 1
                        continue
                    transport.slots.release()
                if attempt.maybe_running or (closed and attempt.connected):
                    await transport.tell_abort(attempt.rid, attempt.age)  # the loop may end with this task
                if closed:
                    raise closed_error(f"request {attempt.rid}") from None
                if number > 1:
                    error.add_note(f"{number} attempts in {budget.age:.1f} s, the last one failed so")
                self._show(error)
                raise

    async def _attempt(
        self,
        transport: LoopTransport,
        call: GenerateCall,
        prompt: Sequence[bytes],
        headers: Mapping[str, str],
        attempt: Attempt,
    ) -> GenerateAnswer:
        """An attempt in the slot that its caller has taken, and that is given back."""
        rid = attempt.rid
        try:
            if transport.http.closed.is_set():
                raise closed_error(f"request {rid}")
            if call.request.before_attempt is not None:
                call.request.before_attempt()
            attempt.started = transport.loop.time()
            transport.in_flight[rid] = attempt
            self._sent_ids.append(rid)
            try:
                request = HTTPRequest("POST", self._generate_url, headers, call.body(rid, prompt))
                response = await transport.http.request(
                    request, timeout=self.timeout, limit=self._max_answer_bytes, attempt=attempt
                )
                if response.status != 200:
                    attempt.retry_after = parse_retry_after(response.headers.get("retry-after"))
                    raise self._http_error(response.status, response.body)
                if len(response.body) > _READ_IN_THREAD:  # its checks take milliseconds, in which other calls get on
                    answer = await asyncio.to_thread(self._read, call, response, rid)
                else:
                    answer = self._read(call, response, rid)
            except BackendError as error:
                self._note_failure(transport, attempt, error)
                raise
            call.opened = attempt.opened
            if answer.latency is None:  # a server that does not say it
                answer = replace(answer, latency=transport.loop.time() - attempt.started)
            return answer
        finally:
            transport.in_flight.pop(rid, None)
            transport.slots.release()

    def _note_failure(self, transport: LoopTransport, attempt: Attempt, error: BackendError) -> None:
        """Classify the failure of an attempt, and abort what the server may still be working on."""
        if not transport.http.closed.is_set():
            attempt.kind = attempt.kind or self._classify(error)
            if attempt.maybe_running:
                transport.begin_abort(attempt.rid, attempt.age)

    def _show(self, error: BackendError) -> BackendError:
        """The error without keys: a server may repeat them, and aiohttp's error, its context, holds the request."""
        error.__context__ = None
        self._secrets.hide_in(error)
        return error

    # ----------------------------------------------------------- control calls

    async def _get(
        self,
        *paths: str,
        base_url: str | None = None,
        retries: int = 0,
        transport: LoopTransport | None = None,
    ) -> Any:
        """The JSON at the first of several paths that the server knows.

        A question of several requests gives its transport: after a close the client would make a new one.
        """
        policy = self.retry_policy
        budget = RetryBudget(replace(policy, max_retries=min(retries, policy.max_retries)), self._rng)
        transport, remaining = transport or self._transport(), list(paths)
        while True:
            url, attempt = f"{base_url or self.base_url}{remaining[0]}", Attempt()
            try:
                status, body = await transport.http.call("GET", url, attempt=attempt)
                # Routers and servers before 0.5.6 know the second name only.
                if status in NOT_ROUTED and len(remaining) > 1:
                    remaining.pop(0)
                    continue
                if status != 200:
                    raise self._http_error(status, body)
                return self._parse(body)
            except BackendError as error:
                closed = transport.http.closed.is_set()
                delay = None if closed else budget.next_delay(attempt.kind or self._classify(error))
                if delay is None:
                    self._show(error)
                    raise
            await transport.http.wait(delay)
            if transport.http.closed.is_set():
                raise closed_error(f"GET {url}")

    async def health(self, timeout: float = 25.0) -> bool:
        """True if the server answers `GET /health` with 200. SGLang generates one token for that (about a second).

        False for a paused server, too (after 20 s); requests are waiting there, and do not fail.
        """
        try:
            status, _ = await self._transport().http.call("GET", f"{self.base_url}/health", timeout=timeout)
        except BackendError:
            return False
        return status == 200

    async def abort(self, rid: str) -> bool:
        """Ask the server to stop the request with this id; through routers, every worker is asked.

        Returns True if a server took the call, which does not say that there was such a request.

        Raises:
            BackendRequestError: The id cannot be one; servers that abort by prefix would end every request for "".
        """
        check_rid(rid)
        return Outcome.TOOK in await self._transport().abort(rid)

    # --------------------------------------------------------------- lifecycle

    @property
    def closings(self) -> int:
        """Number of times the client was closed. Work of several calls ends with the client by comparing it."""
        return self._closings

    def _transport(self) -> LoopTransport:
        """The transport of the running loop; those of loops that are over are dropped, and so closed."""
        loop = asyncio.get_running_loop()
        current = self._transports.get(loop)
        if current is None or current.http.closed.is_set() or current.is_over:
            for other, transport in list(self._transports.items()):
                if transport.is_over:
                    self._transports.pop(other, None)
            http = HTTPSession(
                headers=self._headers,
                secrets=self._secrets,
                connect_timeout=self.connect_timeout,
                user_transport=self._user_transport,
            )
            current = self._transports[loop] = LoopTransport(
                max_connections=self.max_connections,
                http=http,
                base_url=self.base_url,
                workers=self._worker_urls,
                abort_route=self.server.abort_route,
                abort_headers=self._abort_headers,
                abort_body=self._abort_body,
            )
        return current

    async def close(self) -> None:
        """Abort what is in flight, send outstanding aborts, close all connections of all event loops.

        Calls in flight raise `BackendConnectionError`. A later call opens new connections. Connections of a process
        of which this one is a fork stay open there.
        """
        self._closings += 1
        transports = dict(self._transports)
        try:
            await close_all(transports.values())
        finally:
            for loop, transport in transports.items():
                if self._transports.get(loop) is transport:
                    del self._transports[loop]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
