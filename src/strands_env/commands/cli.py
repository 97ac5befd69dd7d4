"""The command `strands-env`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from strands_env.commands.arguments import ARGUMENTS
from strands_sglang.command_line import run_command_line

_COMMANDS = {
    "eval": ("strands_env.commands.eval", "run a benchmark"),
    "replay": ("strands_env.commands.replay", "run a recorded evaluation again, without its server"),
    "compare": ("strands_env.commands.compare", "compare two runs prompt by prompt, with a test of significance"),
    "report": ("strands_env.commands.report", "write one HTML file to look at a run"),
    "view": ("strands_env.commands.view", "show a run, or one sample of it, in the terminal"),
    "rescore": ("strands_env.commands.rescore", "score saved rollouts with another reward; nothing is sampled again"),
    "export": ("strands_env.commands.export", "write a run as training data: Parquet or JSON Lines"),
    "verify": ("strands_env.commands.verify", "check a run's files, and its log-probabilities against a server"),
    "drift": ("strands_env.commands.drift", "count what re-tokenising a run's texts would have changed"),
    "watch": ("strands_env.commands.watch", "watch a run in progress"),
    "check": ("strands_env.commands.check", "try an environment: its tools, its first prompt, its reward"),
    "init": ("strands_env.commands.init", "make a folder with an environment, a reward, tasks, a test and a training"),
    "demo": ("strands_env.commands.demo", "sample rollouts of a small model, and see what re-tokenising would change"),
    "doctor": ("strands_env.commands.doctor", "report what works on this machine, and how to fix what does not"),
    "images": ("strands_env.commands.images", "the container images of sandboxes without a daemon"),
    "validate": ("strands_env.commands.validate", "try container tasks: solution 1, nothing 0, cheats 0"),
    "list": ("strands_env.commands.list", "list benchmarks"),
}
_SHOWING = ("report", "view", "list", "watch", "drift")
"""Commands whose reader may go away when it has seen enough."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, by default the process's own; returns an `Exit` status."""
    return run_command_line(
        "strands-env",
        _COMMANDS,
        argv,
        description="Evaluate Strands agents in environments, and look at the results.",
        epilog="exit: 0 done, 1 failed, incomplete or worse, 2 wrong usage, 3 results refused, 4 gave up, 70 "
        "unexpected error, 130 interrupted, 141 output not read to its end",
        arguments=ARGUMENTS,
        showing=_SHOWING,
    )


if __name__ == "__main__":
    sys.exit(main())
