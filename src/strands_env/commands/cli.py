"""The command `strands-env`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from strands_env.commands.arguments import COMMANDS, FORMER_COMMANDS
from strands_env.commands.terminal import explain
from strands_sglang.command_line import Exit, run_command_line


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, by default the process's own; returns an `Exit` status."""
    given = sys.argv[1:] if argv is None else argv
    if given and given[0] in FORMER_COMMANDS:
        sys.stderr.write(f"strands-env {given[0]} is now: {FORMER_COMMANDS[given[0]]}\n")
        return Exit.USAGE
    return run_command_line(
        "strands-env",
        {name: (f"strands_env.commands.{name}", text) for name, (_, text) in COMMANDS.items()},
        given,
        description="Evaluate Strands agents in environments, and look at the results.",
        epilog="exit: 0 done, 1 failed, incomplete or worse, 2 wrong usage, 3 results refused, 4 gave up, 70 "
        "unexpected error, 130 interrupted, 141 output not read to its end",
        arguments={name: add for name, (add, _) in COMMANDS.items()},
        showing=("report", "watch"),  # whose reader may go away when it has seen enough
        explain=explain,
    )


if __name__ == "__main__":
    sys.exit(main())
