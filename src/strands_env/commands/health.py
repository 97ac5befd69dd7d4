"""`strands-env health`: problems in rollouts, with advice."""

from __future__ import annotations

import argparse

from strands_env.commands.terminal import announce, one_line, show
from strands_sglang.command_line import CommandError, Exit

SHOWN = 5
"""Rollouts of a finding that are named."""


def run(args: argparse.Namespace) -> int:
    """Look."""
    with announce(f"reading {args.rows}", quiet=args.json):
        from strands_env.eval.report.health import CHECKS, find_problems, read_rows  # after the first line: takes time

        rows = read_rows(args.rows, args.tokenizer)
    if not rows:
        raise CommandError(f"there are no rollouts in {args.rows!r}", Exit.USAGE)
    findings, checked = find_problems(rows)
    lines = []
    for finding in findings:
        names = [one_line(name) for name in finding.samples]
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        lines.append(f"{finding.check:<14} {finding}")
        lines += [f"{'':<14} {text}" for text in (", ".join(names[:SHOWN]) + more, CHECKS[finding.check].advice)]
    lines.append(
        f"{'problems' if findings else 'healthy':<14} {len(findings)} of {len(checked)} checks found something"
    )
    if unchecked := [name for name in CHECKS if name not in checked]:
        lines.append(f"{'not checked':<14} {', '.join(unchecked)}: these rows hold no data for that")
    document = {"checked": checked, "findings": [finding.to_dict() for finding in findings]}
    show(document, lines, as_json=args.json)
    return Exit.INCOMPLETE if findings else Exit.OK
