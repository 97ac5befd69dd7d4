"""`strands-env list`: what can be run, and what was run."""

from __future__ import annotations

import argparse
from pathlib import Path

from strands_env.commands.terminal import complain, format_number, say
from strands_env.eval import EvalError, describe_benchmarks, summarize
from strands_env.eval.run.groups import read_scores
from strands_sglang.commands.command_line import Exit


def run(args: argparse.Namespace) -> int:
    """List."""
    if args.folder is None:
        infos = describe_benchmarks()
        width = max(len(info.name) for info in infos)
        for info in infos:
            text = info.description if info.is_available else f"cannot be loaded: {info.description}"
            origin = "" if info.origin == "built-in" else f" ({info.origin})"
            say(f"{info.name:{width}}  {text}{origin}")
        return Exit.OK
    root = Path(args.folder)
    if not root.is_dir():
        is_file = f"{args.folder!r} is a file: give the folder the runs are in"
        complain("list", is_file if root.exists() else f"the folder {args.folder!r} does not exist")
        return Exit.USAGE
    found = sorted(path.with_name(path.name.replace(".run.json", ".jsonl")) for path in root.rglob("*.run.json"))
    runs = [path for path in found if path.exists()]
    if not runs:
        complain("list", f"there are no runs in {args.folder!r}")
    for path in runs:
        try:
            table = read_scores(path)
        except EvalError as error:
            say(f"{path}  {error}")
            continue
        summary = summarize(table, k_values=[1])
        reward = format_number(summary.mean_reward.value)
        say(f"{path}  {summary.samples} samples of {summary.prompts} prompts, reward {reward}")
    return Exit.OK
