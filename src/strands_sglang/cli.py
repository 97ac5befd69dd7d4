"""The command `strands-sglang`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from strands_sglang.command_line import run_command_line

_COMMANDS = {
    "doctor": (
        "strands_sglang.doctor.command",
        "prove that a chat template, or a model's images, stay exact turn by turn",
    ),
    # By name: this package imports nothing of the other one.
    "drift": ("strands_env.commands.drift", "what re-tokenising a saved run's texts would have changed"),
    "gateway": ("strands_sglang.gateway.command", "serve OpenAI and Anthropic dialects with exact token trajectories"),
    "serve": ("strands_sglang.backends.engine.server", "serve the embedded engine over HTTP with SGLang's routes"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Arguments without the program's name; those of the process by default.

    Returns:
        The exit status, see `strands_sglang.command_line.Exit`.
    """
    return run_command_line(
        "strands-sglang",
        _COMMANDS,
        argv,
        description="Exact token trajectories for Strands agents over SGLang.",
        epilog="exit: 0 done, 1 failed, 2 wrong usage, 70 unexpected error, 130 interrupted",
        showing=("drift",),
    )


if __name__ == "__main__":
    sys.exit(main())
