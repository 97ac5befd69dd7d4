"""Lines on the terminal: results, complaints, numbers and times."""

from __future__ import annotations

import logging
import math
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from strands_sglang.command_line import Exit

_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that move the cursor, change colours or text direction, or cannot be encoded."""


def columns(stream: TextIO) -> int:
    """Columns of the terminal that a stream writes to; `$COLUMNS` where it is set, 80 where there is no terminal."""
    with suppress(OSError, ValueError):
        return max(20, int(os.environ.get("COLUMNS") or os.get_terminal_size(stream.fileno()).columns))
    return 80


def safe(text: str) -> str:
    """Text of a sample or an error that cannot drive the terminal."""
    return _UNSAFE.sub("\ufffd", text)


def one_line(text: str) -> str:
    """The text in one line."""
    return " ".join(text.split())


def say(text: str = "") -> None:
    """A line of the result."""
    if sys.stdout is not None:  # None after `>&-`
        sys.stdout.write(f"{safe(text)}\n")


def complain(command: str, message: object, status: Exit = Exit.FAILED) -> Exit:
    """Write a complaint to standard error, if there is one; gives back the status, for the command to end with."""
    if sys.stderr is not None:  # None after `2>&-`
        with suppress(OSError, ValueError):
            program = command if command.startswith("strands-") else f"strands-env {command}"
            sys.stderr.write(f"{program}: {safe(str(message))}\n")
            sys.stderr.flush()
    return status


@contextmanager
def announce(text: str | None, *, quiet: bool = False) -> Iterator[None]:
    """Print on standard error what is being done, and afterwards how long it took; nothing if `text` is None."""
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


def run_user_code(*, verbose: bool) -> None:
    """Make what the user wrote in this folder importable, and log where it raised, if `verbose`."""
    logging.basicConfig(level=logging.WARNING if verbose else logging.ERROR, format="%(name)s: %(message)s")
    sys.path.insert(0, "")


def complain_of(command: str, error: Exception, *mistakes: type[Exception]) -> Exit:
    """Complain of an error, and give its exit status; one that is neither ours nor among the `mistakes` is raised."""
    from strands_env.eval import ConfigMismatchError, EvalError, StoreError  # loads the SDK
    from strands_sglang.exceptions import BackendError

    if isinstance(error, StoreError | ConfigMismatchError):
        return complain(command, error, Exit.REFUSED)
    if isinstance(error, BackendError):
        return complain(command, error, Exit.FAILED)
    if isinstance(error, (EvalError, *mistakes)):
        return complain(command, error, Exit.USAGE)
    if not isinstance(error, FileNotFoundError):
        raise error
    path = Path(str(error.filename)).parent
    if path.is_file():
        text = f"{str(path)!r} is not a run: give its folder, or its file that ends in .jsonl"
        return complain(command, text, Exit.USAGE)
    return complain(command, f"there are no results at {error.filename!r}", Exit.USAGE)


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
