"""Lines on the terminal: results, complaints, numbers and times."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from strands_sglang.command_line import CommandError, Exit, complain, safe


def columns(stream: TextIO) -> int:
    """Columns of the terminal that a stream writes to; `$COLUMNS` where it is set, 80 where there is no terminal."""
    with suppress(OSError, ValueError):
        return max(20, int(os.environ.get("COLUMNS") or os.get_terminal_size(stream.fileno()).columns))
    return 80


def one_line(text: str) -> str:
    """The text in one line."""
    return " ".join(text.split())


def say(text: str = "") -> None:
    """A line of the result."""
    if sys.stdout is not None:  # None after `>&-`
        sys.stdout.write(f"{safe(text)}\n")


def show(document: Any, lines: Iterable[str], *, as_json: bool) -> None:
    """The result of a command: as JSON, or in lines."""
    for line in [json.dumps(document, default=str)] if as_json else lines:
        say(line)


def note(command: str, text: object) -> None:
    """A line on standard error that does not end the command."""
    complain(f"strands-env {command}", text)


@contextmanager
def announce(text: str | None, *, quiet: bool = False) -> Iterator[None]:
    """Print the current work on standard error, and afterwards its time; nothing if `text` is None."""
    out: TextIO | None = sys.stderr
    if text is None or quiet or out is None:
        yield
        return
    started = time.monotonic()
    write_to(out, f"{text} ...")
    try:
        yield
    except BaseException:
        write_to(out, "\n")
        raise
    write_to(out, f" {time.monotonic() - started:.1f} s\n")


def write_to(stream: TextIO, text: str) -> None:
    """Write and flush, if anybody still reads."""
    with suppress(OSError, ValueError):
        stream.write(text)
        stream.flush()


def run_user_code(*, verbose: bool, level: int = logging.ERROR) -> None:
    """Make the user's modules in this folder importable, and log from `level`, or where it raised, if `verbose`."""
    logging.basicConfig(level=logging.WARNING if verbose else level, format="%(name)s: %(message)s")
    sys.path.insert(0, "")


def explain(error: BaseException, *expected: type[Exception], status: Exit = Exit.USAGE) -> CommandError | None:
    """The sentence and exit status of an error of ours; those `expected` beside them get `status`, others None."""
    from strands_env.core.trackers import TrackerError
    from strands_env.eval.errors import ConfigMismatchError, EvalError, StoreError, TooManyFailuresError

    if isinstance(error, CommandError):
        return error
    for kinds, its_status in (
        ((StoreError, ConfigMismatchError), Exit.REFUSED),
        ((TooManyFailuresError,), Exit.GAVE_UP),
        ((EvalError, TrackerError), Exit.USAGE),
    ):
        if isinstance(error, kinds):
            return CommandError(error, its_status)
    from strands_env.sandbox.contract import SandboxError  # loads the SDK
    from strands_sglang.exceptions import BackendError

    if isinstance(error, (BackendError, SandboxError)):
        return CommandError(error, Exit.FAILED)
    is_known = isinstance(error, expected) or getattr(error, "is_fatal", False)
    return CommandError(error, status if isinstance(error, expected) else Exit.USAGE) if is_known else None


@contextmanager
def explain_errors(*expected: type[Exception], status: Exit = Exit.USAGE) -> Iterator[None]:
    """Surrounds work on a user's input: errors of the `expected` types have a sentence and this status, too."""
    try:
        yield
    except Exception as error:
        if (known := explain(error, *expected, status=status)) is None:
            raise
        raise known from error


def format_seconds(seconds: float | None) -> str:
    """`1:02:03`, or `-` where it is not known."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_number(value: float, digits: int = 3) -> str:
    """A number, `-` for NaN."""
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
