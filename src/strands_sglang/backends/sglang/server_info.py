"""A server's reports about itself: model information, context length, vocabulary."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...exceptions import BackendAnswerError, BackendError
from ..http.attempts import FAILURES, Failures
from ..http.retry import RequestRetryPolicy, RetryBudget
from ..http.served import vocab_size_of, vocab_size_of_folder
from ..http.session import closed_error
from ..http.transport import LoopTransport
from .errors import http_error, parse_answer
from .routers import NOT_ROUTED

logger = logging.getLogger(__name__)

MODEL_INFO = ("/model_info", "/get_model_info")
SERVER_INFO = ("/server_info", "/get_server_info")

_RETRIES = 3
_PAUSE_S = 10.0
_VOCAB_PAUSE_S = 600.0  # most servers do not tell; asking is not free


class Probes:
    """Answers about one server or router, remembered.

    All methods raise `BackendConnectionError` when the client is closed meanwhile. `vocab_size` and `max_model_len`
    are None until they are known.
    """

    def __init__(
        self,
        *,
        base_url: str,
        vocab_size: int | None,
        policy: RequestRetryPolicy,
        failures: Failures,
        transport: Callable[[], LoopTransport],
    ) -> None:
        self._base_url = base_url
        self._policy = policy
        self._failures = failures
        self._transport = transport
        self.vocab_size = vocab_size
        self.max_model_len: int | None = None
        self._probe_again_at = 0.0
        self._vocab_again_at = 0.0
        self._warned = False

    async def read(
        self,
        *paths: str,
        base_url: str | None = None,
        retries: int = _RETRIES,
        transport: LoopTransport | None = None,
    ) -> dict[str, Any]:
        """The JSON object at the first of several paths that the server knows.

        A probe of several requests gives its transport: after a close the client would make a new one.
        """
        budget = RetryBudget(replace(self._policy, max_retries=min(retries, self._policy.max_retries)))
        transport, where = transport or self._transport(), base_url or self._base_url
        remaining = list(paths)
        while True:
            try:
                status, body = await transport.http.call("GET", where + remaining[0])
                # Routers and servers before 0.5.6 know the second name only.
                if status in NOT_ROUTED and len(remaining) > 1:
                    remaining.pop(0)
                    continue
                if status != 200:
                    raise http_error(status, body)
                parsed = parse_answer(body)
                if not isinstance(parsed, dict):
                    raise BackendAnswerError(f"{remaining[0]} answered a JSON {type(parsed).__name__}, not an object")
                return parsed
            except FAILURES as error:
                if transport.http.closed.is_set():
                    raise
                delay = budget.next_delay(self._failures.kind(error))
                if delay is None:
                    raise self._failures.make_error(error, where, remaining[0])  # noqa: B904 - it names its cause
            await transport.http.wait(delay)
            if transport.http.closed.is_set():
                raise closed_error(f"GET {where}{remaining[0]}")

    async def ask_max_model_len(self) -> int | None:
        """Context length in tokens; of the shortest worker behind a router; None where no server says it."""
        if self.max_model_len is not None or time.monotonic() < self._probe_again_at:
            return self.max_model_len
        transport = self._transport()
        async with transport.probing:  # a thousand rollouts that start together ask once
            if self.max_model_len is None and time.monotonic() >= self._probe_again_at:
                lengths = [await self._model_len_at(transport, self._base_url)]
                if lengths == [None]:  # a router does not say it, its workers do
                    workers = await transport.aborts.list_workers()
                    lengths = await asyncio.gather(*(self._model_len_at(transport, url) for url in workers))
                self.max_model_len = min((length for length in lengths if length is not None), default=None)
                self._probe_again_at = time.monotonic() + _PAUSE_S
        return self.max_model_len

    async def _model_len_at(self, transport: LoopTransport, base_url: str) -> int | None:
        try:
            listing = await self.read("/v1/models", base_url=base_url, retries=0, transport=transport)
        except BackendError as error:
            if transport.http.closed.is_set():
                raise
            logger.debug("base_url=<%s>, error=<%s> | no model list", base_url, error)
            return None
        models = listing.get("data")
        entries = models if isinstance(models, list) else []
        lengths = [model.get("max_model_len") for model in entries if isinstance(model, dict)]
        return next((length for length in lengths if type(length) is int and length > 0), None)

    async def ask_vocab_size(self) -> int | None:
        """Rows of the embedding, from the server or from its model folder if that is here, else None."""
        if self.vocab_size is not None or time.monotonic() < self._vocab_again_at:
            return self.vocab_size
        transport = self._transport()
        async with transport.probing:
            if self.vocab_size is None and time.monotonic() >= self._vocab_again_at:
                pause = _PAUSE_S
                for paths in (MODEL_INFO, SERVER_INFO):
                    with contextlib.suppress(BackendError):
                        info = await self.read(*paths, retries=0, transport=transport)
                        pause = _VOCAB_PAUSE_S
                        folder = info.get("model_path")
                        self.vocab_size = vocab_size_of(info) or await asyncio.to_thread(vocab_size_of_folder, folder)
                    if transport.http.closed.is_set():
                        raise closed_error("the question for the vocabulary")
                    if self.vocab_size is not None:
                        break
                self._vocab_again_at = time.monotonic() + pause
                if self.vocab_size is None and pause is _VOCAB_PAUSE_S and not self._warned:
                    self._warned = True
                    logger.warning(
                        "base_url=<%s> | the server does not tell its vocabulary size, and an id beyond it would kill "
                        "it; give vocab_size",
                        self._base_url,
                    )
        return self.vocab_size
