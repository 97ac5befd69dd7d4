"""An attempt at a request, and its failure: its class in the retry table, and the typed error that is raised for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from ...exceptions import BackendAnswerError, BackendConnectionError, BackendError
from .options import Secrets
from .retry import RetryClass

FAILURES = (BackendError, OSError)
"""Errors of an attempt that are failures, not programming errors; time-outs are `OSError`s."""

# A reset this soon after sending on a reused connection is the server's idle timer, not its death.
_STALE_WITHIN_S = 2.0
# Of a refusal the server knows; of these it may not: it, or a worker behind a router, may still be sampling.
_MAYBE_RUNNING = frozenset(
    {
        RetryClass.STALE,
        RetryClass.RESET,
        RetryClass.TIMEOUT,
        RetryClass.GATEWAY,
        RetryClass.WORKER_LOST,
        RetryClass.DECODING,
    }
)


class CannotConnectError(ConnectionError):
    """No connection was made; `is_final` where trying again cannot help: the certificate or the protocol is wrong."""

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


class ConnectionLostError(ConnectionError):
    """The connection broke before the answer was whole; `has_begun` if its status and headers had arrived."""

    def __init__(self, message: str, *, has_begun: bool = False) -> None:
        super().__init__(message)
        self.has_begun = has_begun


class NotHTTPError(ConnectionError):
    """The answer is not HTTP. The message quotes it, keys included: show it through `Secrets.hide` only."""


@dataclass(slots=True, kw_only=True)
class Attempt:
    """Facts about an attempt, filled in as they become known.

    Attributes:
        fresh: It must have a new connection.
        started: Loop time when it was sent, in seconds.
        connected: It had a connection, so that the server may know of it.
        reused: That connection had served an earlier request.
        opened: When that connection was opened (`time.monotonic`), or 0 if it is not known.
        kind: The class of its failure.
        retry_after: Seconds the server asked to wait, or None.
    """

    rid: str = ""
    fresh: bool = False
    started: float = 0.0
    connected: bool = False
    reused: bool = False
    opened: float = 0.0
    kind: RetryClass = RetryClass.NEVER
    retry_after: float | None = None

    @property
    def age(self) -> float:
        """Seconds since it was sent."""
        return asyncio.get_running_loop().time() - self.started

    @property
    def maybe_running(self) -> bool:
        """The server may still be working on the request, which then must be aborted."""
        return self.connected and self.kind in _MAYBE_RUNNING

    @property
    def wants_new_connection(self) -> bool:
        """Other kept connections may be as bad: closed by the peer as well, or out of step with it."""
        return self.kind in (RetryClass.STALE, RetryClass.DECODING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Classes and typed errors of what attempts raise; `secrets` are the keys sent, which the server may repeat."""

    classify: Callable[[BaseException], RetryClass]
    secrets: Secrets

    def kind(self, error: BaseException, attempt: Attempt | None = None) -> RetryClass:
        """The class of one of `FAILURES`, which an attempt raised at this moment."""
        if isinstance(error, BackendError):
            return self.classify(error)
        if isinstance(error, CannotConnectError):
            return RetryClass.NEVER if error.is_final else RetryClass.UNREACHABLE
        if isinstance(error, TimeoutError):
            return RetryClass.TIMEOUT
        if isinstance(error, NotHTTPError) or (isinstance(error, ConnectionLostError) and error.has_begun):
            return RetryClass.DECODING
        is_stale = attempt is not None and attempt.reused and attempt.age < _STALE_WITHIN_S
        return RetryClass.STALE if is_stale else RetryClass.RESET

    def make_error(
        self, error: BaseException, base_url: str, rid: str, *, timeout: float | None = None
    ) -> BackendError:
        """The error to raise for one of `FAILURES`; `timeout` is that of the attempt.

        Raise it from a call of this method, without a variable: an error that a frame of its traceback holds is garbage
        that only a collection frees.
        """
        typed: BackendError
        if isinstance(error, BackendError):
            self.secrets.hide_in(error)
            return error
        words = str(error) or type(error).__name__
        if isinstance(error, CannotConnectError):
            typed = BackendConnectionError(f"cannot connect to {base_url}: {words}")
        elif isinstance(error, TimeoutError):
            limit = "in time" if timeout is None else f"within {timeout:g} s"
            typed = BackendConnectionError(f"no answer from {base_url} {limit} (request {rid})")
        elif isinstance(error, NotHTTPError):
            typed = BackendAnswerError(
                f"{base_url} does not speak HTTP: {self.secrets.hide(words):.200} (request {rid})"
            )
        elif isinstance(error, ConnectionLostError) and error.has_begun:
            typed = BackendAnswerError(f"the answer broke off: {words} (request {rid})")
        else:
            typed = BackendConnectionError(f"connection to {base_url} broke: {words} (request {rid})")
        # Its frames hold the request, and aiohttp's error, from which it was made, holds the headers with their keys.
        error.__context__ = None
        typed.__cause__ = error.with_traceback(None)
        self.secrets.hide_in(typed)
        return typed
