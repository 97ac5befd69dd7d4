"""`strands-env list`: the benchmarks that can be run."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from strands_env.commands.terminal import say
from strands_env.eval import describe_benchmarks
from strands_sglang.command_line import Exit


def run(args: argparse.Namespace) -> int:
    """List."""
    infos = describe_benchmarks()
    if args.json:
        say(json.dumps([asdict(info) for info in infos]))
        return Exit.OK
    width = max(len(info.name) for info in infos)
    for info in infos:
        text = info.description if info.is_available else f"cannot be loaded: {info.description}"
        origin = "" if info.origin == "built-in" else f" ({info.origin})"
        say(f"{info.name:{width}}  {text}{origin}")
    return Exit.OK
