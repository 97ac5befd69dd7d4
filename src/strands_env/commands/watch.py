"""`strands-env watch`: a run or a training while it goes on, from its files alone, in the terminal or a browser."""

from __future__ import annotations

import argparse
import asyncio
import errno
import sys
import time
import webbrowser

from strands_env.commands.display import describe
from strands_env.commands.terminal import columns, format_number, note, one_line, say, show
from strands_env.eval.report.details import answer_of
from strands_env.eval.report.live import Follower, LiveRun, LiveTraining, open_live
from strands_sglang.command_line import CommandError, Exit, safe

SECONDS = 2.0
"""Seconds between looks."""
STEPS = 10
"""Steps of a training that are shown."""


def run(args: argparse.Namespace) -> int:
    """Watch."""
    try:
        is_served = args.open or args.port is not None
        source = open_live(args.run, tokenizer=args.tokenizer if is_served else "none")  # a terminal shows no tokens
        if is_served:
            asyncio.run(_serve(source, args.port or 0, is_opened=args.open))
        shown: Follower | LiveTraining
        shown = Follower(args.run) if isinstance(source, LiveRun) else source
        shown.read()
        if args.json:
            show(shown.to_dict(), (), as_json=True)
            return Exit.OK
        return Exit.OK if sys.stdout is None else _follow(shown)
    except KeyboardInterrupt:
        return Exit.OK
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise CommandError(f"port {args.port} is in use: give another --port, or none for a free one") from error


async def _serve(source: LiveRun | LiveTraining, port: int, *, is_opened: bool) -> None:
    from strands_env.eval.report.server import LiveServer

    async with LiveServer(source, port=port) as server:
        say(f"{server.address}  (Ctrl-C ends it)")
        if is_opened and not webbrowser.open(server.address):
            note("watch", "no browser could be started here: open this address in one")
        await server.follow()


def _follow(source: Follower | LiveTraining) -> Exit:
    """Draw again in place on a terminal, append to a log elsewhere; until a run has all its samples."""
    is_terminal = sys.stdout.isatty()
    height, said = 0, ""
    while True:
        lines = lines_of(source) if isinstance(source, Follower) else lines_of_training(source)
        if is_terminal:
            width = columns(sys.stdout) - 1
            # Up as many lines as were drawn, then clear to the end of the screen.
            erase = f"\x1b[{height}F\x1b[J" if height else ""
            sys.stdout.write(erase + "".join(f"{safe(line)[:width]}\n" for line in lines))
            height = len(lines)
        elif lines[1] != said:
            say(said := lines[1])
        sys.stdout.flush()
        if isinstance(source, Follower) and source.is_finished:
            return Exit.OK
        time.sleep(SECONDS)
        source.read()


def lines_of_training(training: LiveTraining) -> list[str]:
    """The display of a training, line by line: its newest steps."""
    steps = training.steps
    if not steps:
        return [training.title, "no step has been written yet"]
    rewards = [step["reward"] for step in steps if step["reward"] is not None]
    known = f", reward {format_number(rewards[0])} at first, {format_number(rewards[-1])} now" if rewards else ""
    lines = [training.title, f"{len(steps)} steps{known}", "  step  reward  rollouts  tokens  cut   failed"]
    for step in steps[-STEPS:]:
        reward, length = ("-" if step[name] is None else f"{step[name]:.{digits}f}" for name, digits in _SHOWN)
        shares = f"{step['truncated']:>5.0%} {step['failed']:>6.0%}"
        lines.append(f"  {step['step']!s:>4}  {reward:>6}  {step['samples']:>8}  {length:>6} {shares}")
    return lines


_SHOWN = (("reward", 3), ("length", 0))


def lines_of(follower: Follower) -> list[str]:
    """The display, line by line."""
    changed = follower.changed
    lines = [f"{follower.saved.name}  {follower.saved.paths.results}", describe(follower.state)]
    lines.append("no sample yet" if changed is None else f"last change {changed.isoformat(' ', 'seconds')}")
    for sample in reversed(follower.recent):
        name, result = one_line(f"{sample.prompt_id}/{sample.index}"), sample.step_result
        reward = "-" if sample.reward is None else f"{sample.reward:g}"
        lines.append(f"  {name}  {reward}  {result.termination_reason.value}  {one_line(answer_of(result))[:80]}")
    return lines
