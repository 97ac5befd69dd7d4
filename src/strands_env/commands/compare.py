"""`strands-env compare`: is the second run better than the first?"""

from __future__ import annotations

import argparse
import shlex
from dataclasses import asdict
from typing import Any

from strands_env.commands.display import interval
from strands_env.commands.terminal import explain_errors, format_number, note, one_line, say, show
from strands_env.core.jsonable import differences
from strands_env.eval import compare, read_scores
from strands_env.eval.metrics import Comparison
from strands_env.eval.metrics.summary import without_nan
from strands_env.eval.report.health import CHECKS
from strands_env.eval.saved import SavedRun
from strands_env.eval.store import StorePaths
from strands_sglang.command_line import CommandError, Exit

SHOWN = 3
"""Prompts with the largest differences that are shown, with the commands that show their rollouts."""
MAX_LOST = CHECKS["lost"].allowed
"""Share of a run's samples that may be lost before `--fail-if-worse` refuses to answer."""


def run(args: argparse.Namespace) -> int:
    """Compare."""
    with explain_errors(ValueError):
        tables = [read_scores(path) for path in (args.first, *args.others)]
        results = [
            compare(tables[0], table, reward_threshold=args.reward_threshold, level=args.level) for table in tables[1:]
        ]
        configurations = [_read_configuration(path) for path in (args.first, *args.others)]
    verdicts = [_pairs(result) > 0 and result.p_value < 1 - args.level for result in results]
    if args.json:
        documents = [
            {**without_nan(asdict(result)), "significant": significant}
            for result, significant in zip(results, verdicts, strict=True)
        ]
        show(documents[0] if len(documents) == 1 else documents, (), as_json=True)
    statuses = []
    for path, result, significant, other in zip(args.others, results, verdicts, configurations[1:], strict=True):
        try:
            if not args.json and _pairs(result):
                _show(args, path, result, significant=significant)
                if changed := differences(configurations[0], other):
                    say(f"differ in   {', '.join(f'{name} ({one}, {another})' for name, one, another in changed)}")
            statuses.append(_judge(args, path, result, significant=significant))
        except CommandError as error:  # the others are compared all the same
            note("compare", error)
            statuses.append(error.status)
    return max(statuses)


def _read_configuration(path: str) -> dict[str, Any]:
    """Configuration of a run, as far as it decides results; empty if it was not saved."""
    saved = SavedRun.of(path)
    config = dict(saved.config)
    # The reward of a run that was scored again is the new one, not its environment's.
    rescored = config.pop("rescored", None) or {}
    reward = rescored.get("reward") or saved.environment.get("reward_fn")
    return config if reward is None else {**config, "reward": reward}


def _show(args: argparse.Namespace, second: str, result: Comparison, *, significant: bool) -> None:
    what = "mean reward" if args.reward_threshold is None else f"pass rate at {args.reward_threshold:g}"
    say(f"{what} over {_pairs(result)} prompts scored in both runs")
    say(f"first       {format_number(result.first)}  {args.first}")
    say(f"second      {format_number(result.second)}  {second}")
    if StorePaths.of(second).results.resolve() == StorePaths.of(args.first).results.resolve():
        say("note        both are the same run")
    say(f"difference  {interval(result.difference)}  ({args.level:.0%} interval over prompts)")
    say(f"prompts     {result.wins} better, {result.losses} worse, {result.ties} equal")
    kind = "exact" if result.is_exact else "sampled sign flips"
    verdict = "significant" if significant else "not significant"
    say(f"p-value     {format_number(result.p_value, 4)}  ({kind}; {verdict} at {1 - args.level:.2g})")
    if significant == (result.difference.low <= 0 <= result.difference.high):
        say("note        interval and test (sign flips) are two methods, and differ here: the test decides")
    if result.only_first or result.only_second:
        say(f"left out    {result.only_first} prompts only in the first, {result.only_second} only in the second")
    if result.lost_first or result.lost_second:
        lost = f"{result.lost_first:.1%} of the samples of the first, {result.lost_second:.1%} of the second"
        say(f"lost        {lost}")
    for name, difference in list(result.changed.items())[:SHOWN]:
        say(f"look at     {one_line(name)}  {difference:+.3f}")
        for run in (args.first, second):
            say(f"            strands-env report {shlex.quote(run)} {shlex.quote(name)}")


def _judge(args: argparse.Namespace, second: str, result: Comparison, *, significant: bool) -> Exit:
    paired = _pairs(result)
    if not paired:
        raise CommandError(
            f"the runs share no scored prompt ({result.only_first} only in {args.first!r}, {result.only_second} "
            f"only in {second!r}), so there is nothing to compare: give runs on the same data",
            Exit.USAGE,
        )
    if not args.fail_if_worse:
        return Exit.OK
    runs = (
        (args.first, second, result.lost_first, result.only_first),
        (second, args.first, result.lost_second, result.only_second),
    )
    for path, _, share, _ in runs:
        if share > MAX_LOST:
            raise CommandError(
                f"--fail-if-worse: {share:.1%} of the samples of {path!r} were lost (infrastructure, a reward "
                f"function that failed, an unfinished run), and with more than {MAX_LOST:.0%} neither is better "
                "or worse: complete it with eval --resume, or rescore it",
                Exit.REFUSED,
            )
    for path, other, _, missing in runs:
        if (absent := missing / (paired + missing)) > MAX_LOST:
            raise CommandError(
                f"--fail-if-worse: {absent:.1%} of the scored prompts of {path!r} are not in {other!r}, and with "
                f"more than {MAX_LOST:.0%} neither is better or worse: run both on the same prompts",
                Exit.REFUSED,
            )
    return Exit.INCOMPLETE if significant and result.difference.value < 0 else Exit.OK


def _pairs(result: Comparison) -> int:
    return result.wins + result.losses + result.ties
