"""One attempt of a generate call: read its answer, or make its failure a typed error of a retry class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...exceptions import BackendAnswerError, BackendConnectionError, BackendError
from .closing import closed_error
from .connections import Attempt, CannotConnectError, ConnectionLostError, NotHTTPError
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAttempt:
    """A failed attempt: the error to raise, its class, and what the server asked for (seconds, or None)."""

    error: BackendError
    kind: RetryClass
    retry_after: float | None = None

    @property
    def maybe_running(self) -> bool:
        """The server may still be working on the request, which then must be aborted."""
        return self.kind in _MAYBE_RUNNING

    @property
    def wants_new_connection(self) -> bool:
        """Other kept connections may be as bad: closed by the peer as well, or out of step with it."""
        return self.kind in (RetryClass.STALE, RetryClass.DECODING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Makes typed failures of what attempts raise; `secrets` are the keys sent, which the server may repeat."""

    classify: Callable[[BaseException], RetryClass]
    secrets: Secrets

    def of(
        self, error: BaseException, attempt: Attempt, base_url: str, *, age: float = 0.0, timeout: float | None = None
    ) -> FailedAttempt:
        """The failure of an attempt that raised one of `FAILURES`, `age` of its `timeout` seconds after it was sent."""
        typed: BackendError
        if isinstance(error, BackendError):
            self.secrets.hide_in(error)
            return FailedAttempt(error=error, kind=self.classify(error), retry_after=attempt.retry_after)
        if isinstance(error, CannotConnectError):
            kind = RetryClass.NEVER if error.is_final else RetryClass.UNREACHABLE
            typed = BackendConnectionError(f"cannot connect to {base_url}: {_words(error)}")
        elif isinstance(error, TimeoutError):
            kind = RetryClass.TIMEOUT
            limit = "in time" if timeout is None else f"within {timeout:g} s"
            typed = BackendConnectionError(f"no answer from {base_url} {limit} (request {attempt.rid})")
        elif isinstance(error, NotHTTPError):
            kind = RetryClass.DECODING
            received, error.received = self.secrets.hide(error.received.decode("utf-8", "backslashreplace")), b""
            typed = BackendAnswerError(
                f"{base_url} does not speak HTTP: {_words(error)}: {received!r:.200} (request {attempt.rid})"
            )
        elif isinstance(error, ConnectionLostError) and error.has_begun:
            kind = RetryClass.DECODING
            typed = BackendAnswerError(f"the answer broke off: {_words(error)} (request {attempt.rid})")
        else:
            kind = RetryClass.STALE if attempt.reused and age < _STALE_WITHIN_S else RetryClass.RESET
            typed = BackendConnectionError(f"connection to {base_url} broke: {_words(error)} (request {attempt.rid})")
        typed.__cause__ = error.with_traceback(None)  # its frames hold the request, and the error
        self.secrets.hide_in(typed)
        return FailedAttempt(error=typed, kind=kind)


def client_closed(rid: str) -> FailedAttempt:
    """The failure of an attempt whose client was closed."""
    return FailedAttempt(error=closed_error(f"request {rid}"), kind=RetryClass.NEVER)


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
