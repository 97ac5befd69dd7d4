"""The failure of an attempt: its class in the retry table, and the typed error that is raised for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...exceptions import BackendAnswerError, BackendConnectionError, BackendError
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


@dataclass(slots=True, kw_only=True)
class CountedAttempt(Attempt):
    """An attempt that the retry table counts; `kind` is the class of its failure."""

    kind: RetryClass = RetryClass.NEVER

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
    """Classes and typed errors of what attempts raise; `secrets` are the keys sent, which the server may repeat."""

    classify: Callable[[BaseException], RetryClass]
    secrets: Secrets

    def kind(self, error: BaseException, attempt: Attempt | None = None, *, age: float = 0.0) -> RetryClass:
        """The class of one of `FAILURES`, which an attempt raised `age` seconds after it was sent."""
        if isinstance(error, BackendError):
            return self.classify(error)
        if isinstance(error, CannotConnectError):
            return RetryClass.NEVER if error.is_final else RetryClass.UNREACHABLE
        if isinstance(error, TimeoutError):
            return RetryClass.TIMEOUT
        if isinstance(error, NotHTTPError) or (isinstance(error, ConnectionLostError) and error.has_begun):
            return RetryClass.DECODING
        is_stale = attempt is not None and attempt.reused and age < _STALE_WITHIN_S
        return RetryClass.STALE if is_stale else RetryClass.RESET

    def typed(self, error: BaseException, base_url: str, rid: str, *, timeout: float | None = None) -> BackendError:
        """The error to raise for one of `FAILURES`; `timeout` is that of the attempt.

        Raise it from a call of this method, without a variable: an error that a frame of its traceback holds is garbage
        that only a collection frees.
        """
        typed: BackendError
        if isinstance(error, BackendError):
            self.secrets.hide_in(error)
            return error
        if isinstance(error, CannotConnectError):
            typed = BackendConnectionError(f"cannot connect to {base_url}: {_words(error)}")
        elif isinstance(error, TimeoutError):
            limit = "in time" if timeout is None else f"within {timeout:g} s"
            typed = BackendConnectionError(f"no answer from {base_url} {limit} (request {rid})")
        elif isinstance(error, NotHTTPError):
            received, error.received = self.secrets.hide(error.received.decode("utf-8", "backslashreplace")), b""
            typed = BackendAnswerError(
                f"{base_url} does not speak HTTP: {_words(error)}: {received!r:.200} (request {rid})"
            )
        elif isinstance(error, ConnectionLostError) and error.has_begun:
            typed = BackendAnswerError(f"the answer broke off: {_words(error)} (request {rid})")
        else:
            typed = BackendConnectionError(f"connection to {base_url} broke: {_words(error)} (request {rid})")
        typed.__cause__ = error.with_traceback(None)  # its frames hold the request, and the error
        self.secrets.hide_in(typed)
        return typed


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
