"""The retry table: classes of failures, how often and after how long each is repeated. Pure functions.

`docs/errors-and-retries.md` prints the table for readers. A backend gives each failure exactly one `RetryClass`; the
policy gives each class a number of retries and all of them together `max_retries` and a deadline. Programming errors
(`TypeError` and the like) and cancellation belong to no class: they propagate at once.
"""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any, Final

from ...exceptions import BackendAnswerError, BackendAnswerLimitError, BackendConnectionError, check_positive


class RetryClass(StrEnum):
    """Reason of a failure, as far as repeating the request is concerned."""

    NEVER = "never"
    """Permanent: the request is wrong, or not allowed."""
    STALE = "stale"
    """A kept-alive connection was closed by the server as the request left. Repeated at once, free of charge, on a
    new connection; beyond its limit it is a `RESET`."""
    UNREACHABLE = "unreachable"
    """No connection: refused, unknown host, connect timeout. The server may be starting."""
    RESET = "reset"
    """The connection broke before an answer began. The server may have died."""
    TIMEOUT = "timeout"
    """No answer in time (own time-out, 408, 504). Each repetition may cost as long again."""
    BUSY = "busy"
    """429, 503: the server is full, paused, draining, or the router has no worker."""
    GATEWAY = "gateway"
    """502: the router could not reach a worker."""
    WORKER_LOST = "worker_lost"
    """500 of a router whose worker died during the request."""
    SERVER_ERROR = "server_error"
    """Any other 5xx: an unhandled exception of the server, likely to repeat."""
    DECODING = "decoding"
    """A 200 whose body is half-written or not what it should be."""
    DUPLICATE_ID = "duplicate_id"
    """400 because the request id is in flight (a router re-executed the request). A fresh id heals it."""


STATUS_CLASSES: Final[Mapping[int, RetryClass]] = {
    408: RetryClass.TIMEOUT,
    425: RetryClass.BUSY,
    429: RetryClass.BUSY,
    500: RetryClass.SERVER_ERROR,
    501: RetryClass.NEVER,  # not implemented: waiting changes nothing
    502: RetryClass.GATEWAY,
    503: RetryClass.BUSY,
    504: RetryClass.TIMEOUT,
    505: RetryClass.NEVER,
}
"""Class of a status whose body says nothing more special. Other 5xx: `SERVER_ERROR`; everything else: `NEVER`."""

DEFAULT_LIMITS: Final[Mapping[RetryClass, int | None]] = {
    RetryClass.NEVER: 0,
    RetryClass.STALE: 1,
    RetryClass.UNREACHABLE: None,
    RetryClass.RESET: 5,
    RetryClass.TIMEOUT: 2,
    RetryClass.BUSY: None,
    RetryClass.GATEWAY: None,
    RetryClass.WORKER_LOST: 10,
    RetryClass.SERVER_ERROR: 3,
    RetryClass.DECODING: 3,
    RetryClass.DUPLICATE_ID: 3,
}
"""Retries per class within one call; None means that only `max_retries` bounds them."""


def classify_status(status: int) -> RetryClass:
    """The class of an error answer whose body says nothing more special."""
    # 200 is an error object inside a successful answer that names no status of its own.
    general = RetryClass.SERVER_ERROR if status >= 500 or status == 200 else RetryClass.NEVER
    return STATUS_CLASSES.get(status, general)


def classify_failure(error: BaseException) -> RetryClass:
    """The class of a failure without an error status, by its type."""
    if isinstance(error, BackendAnswerError):
        return RetryClass.NEVER if isinstance(error, BackendAnswerLimitError) else RetryClass.DECODING
    return RetryClass.UNREACHABLE if isinstance(error, BackendConnectionError) else RetryClass.NEVER


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRetryPolicy:
    """The table of retries. All times in seconds.

    Attributes:
        max_retries: Retries of one call, all classes together (attempts = retries + 1). Stale connections are free.
        retry_delay: First back-off; it doubles with every retry.
        max_retry_delay: Largest back-off.
        retry_deadline: No further attempt starts later than this after the first one; None means no deadline. An
            attempt that is running is bounded by the client's `timeout`, not by this.
        limits: Retries per class; classes not named keep `DEFAULT_LIMITS`. None: only `max_retries` bounds them.
    """

    max_retries: int = 60
    retry_delay: float = 1.0
    max_retry_delay: float = 20.0
    retry_deadline: float | None = 1800.0
    limits: Mapping[RetryClass, int | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_positive(whole=True, zero=True, max_retries=self.max_retries)
        check_positive("seconds", zero=True, retry_delay=self.retry_delay, max_retry_delay=self.max_retry_delay)
        check_positive("seconds", zero=True, optional=True, retry_deadline=self.retry_deadline)
        limits: dict[str, Any] = {f"limits[{str(RetryClass(kind))!r}]": limit for kind, limit in self.limits.items()}
        check_positive(whole=True, zero=True, optional=True, **limits)

    def limit(self, kind: RetryClass) -> int:
        """Retries allowed for a class within one call."""
        limit = self.limits.get(kind, DEFAULT_LIMITS[kind])
        if limit is None:
            return self.max_retries
        return limit if kind is RetryClass.STALE else min(limit, self.max_retries)

    def backoff(self, retry: int, rng: random.Random | None = None) -> float:
        """Seconds to wait before retry number `retry` (0 is the first): `retry_delay * 2**retry`, capped, jittered.

        The jitter takes away up to half, so that clients that failed together do not return together.
        """
        # Powers of 2.0 overflow beyond 1023.
        ceiling = min(self.max_retry_delay, self.retry_delay * 2.0 ** min(retry, 64))
        return ceiling * (rng or random).uniform(0.5, 1.0)


def pauses(first: float, longest: float) -> Iterator[float]:
    """Seconds to wait between attempts, doubling without end, for waits that a table does not govern."""
    while True:
        yield first
        first = min(2 * first, longest)


class RetryBudget:
    """The retries that one call has left; `rng` makes the jitter."""

    def __init__(self, policy: RequestRetryPolicy, rng: random.Random) -> None:
        self._policy, self._rng = policy, rng
        self._deadline = math.inf if policy.retry_deadline is None else policy.retry_deadline
        self._started = time.monotonic()
        self._used: list[RetryClass] = []

    @property
    def age(self) -> float:
        """Seconds since the first attempt began."""
        return time.monotonic() - self._started

    @property
    def seconds_left(self) -> float:
        """Seconds in which attempts may still begin, at most."""
        longest = (self._policy.max_retries - len(self._used)) * self._policy.max_retry_delay
        return max(0.0, min(longest, self._deadline - self.age))

    @property
    def is_over(self) -> bool:
        """The deadline has passed."""
        return self.age > self._deadline

    def next_delay(self, kind: RetryClass, retry_after: float | None = None) -> float | None:
        """Seconds, at least `retry_after`, before the next attempt, or None if a failure of this class is final."""
        if kind is RetryClass.STALE and self._used.count(kind) >= self._policy.limit(kind):
            kind = RetryClass.RESET  # no idle timer closes new connections as well
        if self._used.count(kind) >= self._policy.limit(kind):
            return None
        delay = 0.0
        if kind is not RetryClass.STALE:
            paid = len(self._used) - self._used.count(RetryClass.STALE)
            if paid >= self._policy.max_retries:
                return None
            delay = max(self._policy.backoff(paid, self._rng), retry_after or 0.0)
        if self.age + delay > self._deadline:
            return None
        self._used.append(kind)
        return delay


_SECONDS = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?")


def parse_retry_after(value: object, now: datetime | None = None) -> float | None:
    """Seconds of a `Retry-After` header (a number, or an HTTP date), or None if there is none that can be read."""
    if not isinstance(value, str):
        return None
    if _SECONDS.fullmatch(value.strip()):  # `float` alone takes "nan", "1e9" and "1_0" as well
        seconds = float(value)
    else:
        try:
            when = parsedate_to_datetime(value)
            if when.tzinfo is None:  # "-0000" is read as a time without a zone; HTTP dates are in GMT
                when = when.replace(tzinfo=UTC)
            seconds = (when - (now or datetime.now(UTC))).total_seconds()
        except (ValueError, TypeError, OverflowError):
            return None
    return max(0.0, seconds) if seconds < float("inf") else None
