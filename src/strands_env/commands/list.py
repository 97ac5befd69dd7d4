"""`strands-env list`: what can be run, and what was run."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from strands_env.commands.terminal import complain, format_number, say
from strands_env.eval import EvalError, describe_benchmarks, summarize
from strands_env.eval.run.groups import read_scores
from strands_env.report.training import runs_in
from strands_sglang.command_line import Exit


def run(args: argparse.Namespace) -> int:
    """List."""
    if args.folder is None:
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
    root = Path(args.folder)
    if not root.is_dir():
        is_file = f"{args.folder!r} is a file: give the folder the runs are in"
        return complain("list", is_file if root.exists() else f"the folder {args.folder!r} does not exist", Exit.USAGE)
    runs = runs_in(root)
    if not runs:
        complain("list", f"there are no runs in {args.folder!r}")
    listed: list[dict[str, Any]] = []
    for path in runs:
        try:
            summary = summarize(read_scores(path), k_values=[1])
        except EvalError as error:
            listed.append({"run": str(path), "error": str(error)})
            line = str(error)
        else:
            mean = summary.mean_reward.value
            listed.append(
                {
                    "run": str(path),
                    "samples": summary.samples,
                    "prompts": summary.prompts,
                    "mean_reward": None if math.isnan(mean) else mean,
                }
            )
            line = f"{summary.samples} samples of {summary.prompts} prompts, reward {format_number(mean)}"
        if not args.json:
            say(f"{path}  {line}")
    if args.json:
        say(json.dumps(listed))
    return Exit.OK
