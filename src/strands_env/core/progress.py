"""Where a running episode is, for whoever holds its deadline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from .termination import Phase


@dataclass(slots=True)
class EpisodeProgress:
    """The part of the episode that runs now, told by the environment.

    Attributes:
        phase: That part; `LOOP` as long as nobody says more.
    """

    phase: Phase = Phase.LOOP

    @staticmethod
    def current() -> EpisodeProgress:
        """The progress of the episode that the calling code runs in; one that nobody reads outside of any."""
        return _current.get() or EpisodeProgress()

    @contextmanager
    def active(self) -> Iterator[EpisodeProgress]:
        """Make this the current one."""
        token = _current.set(self)
        try:
            yield self
        finally:
            _current.reset(token)


_current: ContextVar[EpisodeProgress | None] = ContextVar("strands_env_episode", default=None)
