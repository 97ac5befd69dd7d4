"""Ends a run in which every rollout fails in the same way."""

from __future__ import annotations

from strands_env.core.termination import ErrorRecord


class TooManyFailuresError(RuntimeError):
    """So many rollouts in a row failed with one type of error that the run ends, instead of sampling for ever.

    Attributes:
        count: How many.
        error: The last error.
    """

    def __init__(self, count: int, error: ErrorRecord) -> None:
        super().__init__(count, error)
        self.count = count
        self.error = error

    def __str__(self) -> str:
        return (
            f"{self.count} rollouts in a row failed with {self.error.type} in {self.error.where.value}, the last with "
            f"{self.error.message!r}: mend the cause, or raise strands_env_max_failures (0 for no limit)"
        )


class FailureStreak:
    """Counts failures of one type without a good rollout or another type between them."""

    def __init__(self) -> None:
        self._type: str | None = None
        self._count = 0

    def reset(self) -> None:
        """A rollout went well."""
        self._type, self._count = None, 0

    def add(self, error: ErrorRecord, limit: int) -> None:
        """Count a failure.

        Args:
            error: Its error.
            limit: Number of failures in a row that end the run; 0 for none.

        Raises:
            TooManyFailuresError: It is the last that is allowed.
        """
        self._count = self._count + 1 if error.type == self._type else 1
        self._type = error.type
        if limit and self._count >= limit:
            raise TooManyFailuresError(self._count, error)


STREAK = FailureStreak()
"""Of this process."""
