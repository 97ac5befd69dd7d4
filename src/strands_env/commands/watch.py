"""`strands-env watch`: a run while it goes on, from its files alone, so also one on another machine's file system."""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import datetime

from strands_env.commands.progress import describe
from strands_env.commands.terminal import columns, one_line, say
from strands_env.eval.follow import Follower
from strands_env.report.details import answer_of
from strands_sglang.command_line import Exit, safe

SECONDS = 2.0
"""Seconds between looks."""


def run(args: argparse.Namespace) -> int:
    """Watch."""
    try:
        follower = Follower(args.run)
        follower.read()
        if args.json:
            say(json.dumps(follower.to_dict()))
            return Exit.OK
        return Exit.OK if sys.stdout is None else _follow(follower)
    except KeyboardInterrupt:
        return Exit.OK


def _follow(follower: Follower) -> Exit:
    """Draw again in place on a terminal, append to a log elsewhere; until the run has all its samples."""
    is_terminal = sys.stdout.isatty()
    height = 0
    while True:
        lines = lines_of(follower)
        if is_terminal:
            width = columns(sys.stdout) - 1
            # Up as many lines as were drawn, then clear to the end of the screen.
            erase = f"\x1b[{height}F\x1b[J" if height else ""
            sys.stdout.write(erase + "".join(f"{safe(line)[:width]}\n" for line in lines))
            height = len(lines)
        else:
            say(lines[1])
        sys.stdout.flush()
        if follower.is_finished:
            return Exit.OK
        time.sleep(SECONDS)
        follower.read()


def lines_of(follower: Follower) -> list[str]:
    """The display, line by line."""
    file = follower.saved.paths.results
    changed = datetime.fromtimestamp(file.stat().st_mtime).astimezone().isoformat(" ", "seconds")
    lines = [f"{follower.saved.name}  {file}", describe(follower.state), f"last change {changed}"]
    for sample in reversed(follower.recent):
        name, result = one_line(f"{sample.prompt_id}/{sample.index}"), sample.step_result
        reward = "-" if sample.reward is None else f"{sample.reward:g}"
        lines.append(f"  {name}  {reward}  {result.termination_reason.value}  {one_line(answer_of(result))[:80]}")
    return lines
