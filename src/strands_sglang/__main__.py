"""The command `strands-sglang`, also as `python -m strands_sglang`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import metadata

from strands_sglang.command_line import run_command_line

_COMMANDS = {
    "doctor": (
        "strands_sglang.commands.doctor.command",
        "prove that a chat template, or a model's images, stay exact turn by turn",
    ),
    "gateway": ("strands_sglang.commands.gateway", "serve the APIs of OpenAI, Anthropic and Google with exact tokens"),
}

COMMANDS_OF_OTHERS = "strands_sglang.commands"
"""Entry points by which packages above this one add subcommands: the name, and the module."""
_HELP = {"drift": "what re-tokenising a saved run's texts would have changed"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line on `argv` (by default the process's); returns an exit status of `command_line.Exit`."""
    others = {
        point.name: (point.value, _HELP.get(point.name, f"from {point.value}"))
        for point in metadata.entry_points(group=COMMANDS_OF_OTHERS)
    }
    return run_command_line(
        "strands-sglang",
        {**others, **_COMMANDS},
        argv,
        description="Exact token trajectories for Strands agents over SGLang.",
        epilog="exit: 0 done, 1 failed, 2 wrong usage, 70 unexpected error, 130 interrupted",
        showing=("drift",),
    )


if __name__ == "__main__":
    sys.exit(main())
