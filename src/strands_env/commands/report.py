"""`strands-env report`: one HTML file to look at a run, or at a training."""

from __future__ import annotations

import argparse
import json
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from strands_env.commands.terminal import announce, complain, complain_of, say
from strands_sglang.command_line import Exit

if TYPE_CHECKING:
    from strands_env.report import ReportResult


def run(args: argparse.Namespace) -> int:
    """Write it."""
    try:
        with announce(f"reading {args.run}", quiet=args.json):
            from strands_env.eval.store import StorePaths  # after the first line, for this takes time
            from strands_env.report.training import is_slime_log, runs_in

            is_folder = Path(args.run).is_dir() and not StorePaths.of(args.run).results.exists()
            if is_slime_log(args.run) or (is_folder and runs_in(args.run)):
                written, note = _write_training(args), None
            else:
                written, note = _write_run(args)
    except Exception as error:
        return complain_of("report", error)
    if args.json:
        shown = {"path": str(written.path), "samples": written.samples, "bytes": written.size, "note": note}
        say(json.dumps(shown))
    else:
        say(f"{written.path}  {written.samples} samples, {written.size / 1e6:.1f} MB")
        if note:
            say(note)
    if args.open and not webbrowser.open(address := written.path.resolve().as_uri()):
        complain("report", f"no browser could be started here: open {address} in one")
    return Exit.OK


def _write_run(args: argparse.Namespace) -> tuple[ReportResult, str | None]:
    from strands_env.eval.saved import SavedRun
    from strands_env.report import write_report

    saved = SavedRun.of(args.run)
    output = Path(args.output) if args.output else saved.paths.results.with_name("report.html")
    found = saved.tokenizer(args.tokenizer)
    written = write_report(
        saved.paths.results,
        output,
        tokenizer=found.tokenizer,
        tokenizer_note=found.note,
        reward_threshold=saved.threshold(args.reward_threshold),
    )
    return written, found.note


def _write_training(args: argparse.Namespace) -> ReportResult:
    from strands_env.eval.saved import SavedRun
    from strands_env.report import write_training

    source = Path(args.run)
    output = Path(args.output) if args.output else (source if source.is_dir() else source.parent) / "training.html"
    return write_training(
        source,
        output,
        tokenizer_of=lambda path: SavedRun.of(path).tokenizer(args.tokenizer).tokenizer,
    )
