"""Exit statuses of `strands-env`."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """How a command ended."""

    OK = 0
    """Done. Also a run without a reward function, which says that nothing was scored."""
    INCOMPLETE = 1
    """`eval`: finished, but samples were lost to infrastructure, and `--resume` tries them again. `compare
    --fail-if-worse`: the second run is significantly worse."""
    USAGE = 2
    """Wrong arguments, data that cannot be read or has no tasks, a reward that scored none of the samples, or a package
    is not installed."""
    REFUSED = 3
    """The results belong to another configuration, are damaged, are being written by another run, or cannot be read or
    written."""
    GAVE_UP = 4
    """`eval`: more samples were lost than `--max-failures`; everything finished is saved."""
    UNEXPECTED = 70
    """An error nobody expected, with its traceback; everything finished is saved. Also one in a user's own metric."""
    INTERRUPTED = 130
    """`eval`: stopped with Ctrl-C or SIGTERM; everything finished is saved."""
    PIPE = 141
    """Whoever read the output went away before its end (`view`, `list` and `report` take that for done)."""
