"""The command `strands-env`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from strands_env.commands.arguments import COMMANDS
from strands_sglang.command_line import run_command_line

_SHOWING = ("report", "view", "list", "watch", "drift")
"""Commands whose reader may go away when it has seen enough."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, by default the process's own; returns an `Exit` status."""
    return run_command_line(
        "strands-env",
        {name: (f"strands_env.commands.{name}", text) for name, (_, text) in COMMANDS.items()},
        argv,
        description="Evaluate Strands agents in environments, and look at the results.",
        epilog="exit: 0 done, 1 failed, incomplete or worse, 2 wrong usage, 3 results refused, 4 gave up, 70 "
        "unexpected error, 130 interrupted, 141 output not read to its end",
        arguments={name: add for name, (add, _) in COMMANDS.items()},
        showing=_SHOWING,
    )


if __name__ == "__main__":
    sys.exit(main())
