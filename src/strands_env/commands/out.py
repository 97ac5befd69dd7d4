"""Where commands write: results to standard output, complaints to standard error."""

from __future__ import annotations

import re
import sys
from contextlib import suppress

_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What moves the cursor, changes colours, turns the direction of text, or cannot be encoded."""


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


def complain(command: str, message: object) -> None:
    """A line about what is wrong; where nobody reads it, nothing."""
    if sys.stderr is None:  # after `2>&-`
        return
    with suppress(OSError, ValueError):
        sys.stderr.write(f"strands-env {command}: {safe(str(message))}\n")
        sys.stderr.flush()
