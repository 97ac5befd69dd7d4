"""The command `strands-sglang`, also as `python -m strands_sglang`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import metadata

from strands_sglang.command_line import add_former, add_server, json_object, run_command_line

_COMMANDS = {
    "doctor": (
        "strands_sglang.commands.doctor",
        "prove that a chat template stays exact turn by turn",
    ),
    "gateway": ("strands_sglang.commands.gateway", "serve the APIs of OpenAI, Anthropic and Google with exact tokens"),
}

COMMANDS_OF_OTHERS = "strands_sglang.commands"
"""Entry points by which packages above this one add subcommands: the name, and the module."""
_HELP = {"drift": "what re-tokenising a saved run's texts would have changed"}


def add_doctor_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `doctor`, whose module brings the SDK."""
    parser.add_argument("source", help="tokenizer or model folder, jinja file, or model id")
    parser.add_argument("--stop", action="append", default=[], metavar="TOKEN", help="stop token (repeatable)")
    parser.add_argument("--eos", metavar="TOKEN", help="end-of-sequence token, for a jinja file that prints it")
    parser.add_argument("--bos", metavar="TOKEN", help="beginning-of-sequence token, for a jinja file that prints it")
    parser.add_argument(
        "--kwargs", type=json_object, default={}, metavar="JSON", help="variables of the template, or a file"
    )
    parser.add_argument("--no-tools", action="store_true", help="check for use without tools")
    parser.add_argument("--tool-parser", metavar="NAME", help="parser of the calls, as a model's tool_parser=")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    add_server(parser, "server that runs the model: its tokenizer must be this one, and says whether it takes images")
    add_former(parser, "--vision", "the first request with an image proves how the server expands it")


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
        arguments={"doctor": add_doctor_arguments},
        description="Exact token trajectories for Strands agents over SGLang.",
        epilog="exit: 0 done, 1 failed, 2 wrong usage, 70 unexpected error, 130 interrupted",
        showing=("drift",),
    )


if __name__ == "__main__":
    sys.exit(main())
