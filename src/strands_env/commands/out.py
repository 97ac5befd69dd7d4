"""Where commands write: results to standard output, complaints to standard error."""

from __future__ import annotations

import sys


def say(text: str = "") -> None:
    """A line of the result."""
    sys.stdout.write(f"{text}\n")


def complain(command: str, message: object) -> None:
    """A line about what is wrong."""
    sys.stderr.write(f"strands-env {command}: {message}\n")
