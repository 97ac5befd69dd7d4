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
        is_taken: Whether a rollout tells it now. One that runs inside that rollout has no say in it.
    """

    phase: Phase = Phase.LOOP
    is_taken: bool = False

    @staticmethod
    @contextmanager
    def taken() -> Iterator[EpisodeProgress]:
        """The progress for a rollout to tell: the current one, or, inside another rollout, one that nobody reads."""
        progress = _current.get()
        if progress is None or progress.is_taken:
            yield EpisodeProgress()
            return
        progress.is_taken = True
        try:
            yield progress
        finally:
            progress.is_taken = False

    @contextmanager
    def active(self) -> Iterator[EpisodeProgress]:
        """Make this the current one."""
        token = _current.set(self)
        try:
            yield self
        finally:
            _current.reset(token)


_current: ContextVar[EpisodeProgress | None] = ContextVar("strands_env_episode", default=None)
