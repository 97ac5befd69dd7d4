"""Exit statuses of `strands-env`."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """How a command ended."""

    OK = 0
    """Done."""
    INCOMPLETE = 1
    """`eval`: finished, but samples were lost to infrastructure, and `--resume` tries them again. `compare
    --fail-if-worse`: the second run is significantly worse."""
    USAGE = 2
    """Wrong arguments, or a package is not installed."""
    REFUSED = 3
    """The results belong to another configuration, are damaged, or are being written by another run."""
    GAVE_UP = 4
    """`eval`: more samples were lost than `--max-failures`; everything finished is saved."""
    INTERRUPTED = 130
    """`eval`: stopped with Ctrl-C or SIGTERM; everything finished is saved."""
