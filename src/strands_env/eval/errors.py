"""Errors of `strands_env.eval`.

- `EvalError`
    - `NoResultsError`: also a `FileNotFoundError`; there are no results at a path
    - `ConfigMismatchError`: results of another configuration are in the file
    - `StoreError`
        - `StoreCorruptError`: a file was changed by something else
        - `StoreLockedError`: another run writes the file
    - `TooManyFailuresError`: the run was given up; everything finished is saved
        - `SameFailureError`: its first samples all failed alike
    - `UnknownBenchmarkError`: also a `KeyError`
    - `DatasetError`: a data set cannot be read, or a row of it lacks something
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from errno import ENOENT
from pathlib import Path
from typing import Self

from strands_sglang.hints import did_you_mean


class EvalError(Exception):
    """Base of all errors of evaluation."""


class NoResultsError(EvalError, FileNotFoundError):
    """There are no results at a path: that of the file which was looked for, `filename`."""

    def __str__(self) -> str:
        folder = Path(str(self.filename)).parent
        if folder.is_file():
            return f"{str(folder)!r} is not a run: give its folder, or its file that ends in .jsonl"
        return f"there are no results at {self.filename!r}"

    @classmethod
    def at(cls, path: Path) -> Self:
        """The error for a file that is missing."""
        return cls(ENOENT, os.strerror(ENOENT), str(path))


@dataclass(eq=False, repr=False)
class ConfigMismatchError(EvalError):
    """The results in the file were made with another configuration; `differences` has a line for each difference."""

    path: str
    differences: tuple[str, ...]

    def __str__(self) -> str:
        lines = "\n".join(f"  {line}" for line in self.differences)
        return (
            f"{self.path!r} holds results of another configuration, which would be mixed with these:\n{lines}\n"
            "Give another output path, or the earlier configuration."
        )


class StoreError(EvalError):
    """The results cannot be read or written."""


class StoreCorruptError(StoreError):
    """A results file is damaged in a way that an interrupted run cannot leave behind."""


class StoreLockedError(StoreError):
    """Another process is writing to the same results file."""


@contextmanager
def naming_errors(doing: str, path: Path) -> Iterator[None]:
    """Turn system errors into `StoreError`s that name the file; a missing file to read stays a `FileNotFoundError`."""
    try:
        yield
    except OSError as error:
        if doing == "read" and isinstance(error, FileNotFoundError | NotADirectoryError):
            raise NoResultsError.at(path) from error
        raise StoreError(f"cannot {doing} {str(path)!r}: {error.strerror or error}") from error


@dataclass(eq=False, repr=False)
class TooManyFailuresError(EvalError):
    """More samples failed for good than `max_failures` allows; everything finished is saved."""

    failures: int
    limit: int
    last: str

    def __str__(self) -> str:
        return (
            f"{self.failures} samples failed for good, {self.limit} are allowed (max_failures); the last one: "
            f"{self.last}. Everything finished is saved; fix the cause and resume."
        )


class SameFailureError(TooManyFailuresError):
    """The first samples all failed in the same way, so the rest would too; everything finished is saved."""

    def __init__(self, failures: int, last: str) -> None:
        super().__init__(failures, failures, last)

    def __str__(self) -> str:
        return f"the first {self.failures} samples all failed alike, so the run was stopped: {self.last}"


@dataclass(eq=False, repr=False)
class UnknownBenchmarkError(EvalError, KeyError):
    """No benchmark is registered under a name."""

    name: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        family = [name for name in self.known if name.startswith(f"{self.name}-")]
        hint = f" (did you mean {' or '.join(family)}?)" if family else did_you_mean(self.name, self.known)
        return f"unknown benchmark {self.name!r}{hint}; known are {', '.join(self.known)}"


class DatasetError(EvalError):
    """A data set cannot be read, or a row of it lacks something."""
