"""`strands-env report`: look at a run, as one HTML file or in the terminal, or verify its files."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path

from strands_env.commands.terminal import announce, note, show
from strands_sglang.command_line import Exit, server_of


def run(args: argparse.Namespace) -> int:
    """Show the run."""
    args.server = server_of(args)
    is_verified = args.verify or any(value is not None for value in (args.server, args.model, args.max_kl))
    with announce(f"reading {args.run}", quiet=args.json or args.text or is_verified or args.sample is not None):
        # After the first line, for this takes time.
        if is_verified or args.text or args.sample is not None:
            from strands_env.commands.report_text import show_run, show_samples, verify

            show_text = verify if is_verified else show_run if args.sample is None else show_samples
            return show_text(args)
        from strands_env.eval.report import write_report
        from strands_env.eval.report.training_page import is_slime_log, runs_in, write_training
        from strands_env.eval.saved import SavedRun

        source, saved, reason = Path(args.run), None, None
        is_training = is_slime_log(source)
        if not is_training:
            saved = SavedRun.of(source)
            is_training = source.is_dir() and not saved.paths.results.exists() and bool(runs_in(source))
        if saved is None or is_training:
            output = Path(args.output or (source if source.is_dir() else source.parent) / "training.html")
            written = write_training(
                source, output, tokenizer_of=lambda path: SavedRun.of(path).tokenizer(args.tokenizer).tokenizer
            )
        else:
            run_tokenizer = saved.tokenizer(args.tokenizer)
            reason = run_tokenizer.note
            written = write_report(
                saved.paths.results,
                args.output or saved.paths.results.with_name("report.html"),
                tokenizer=run_tokenizer.tokenizer,
                tokenizer_note=reason,
                reward_threshold=args.reward_threshold,
            )
    lines = [f"{written.path}  {written.samples} samples, {written.size / 1e6:.1f} MB", *([reason] if reason else [])]
    document = {"path": str(written.path), "samples": written.samples, "bytes": written.size, "note": reason}
    show(document, lines, as_json=args.json)
    if args.open and not webbrowser.open(address := written.path.resolve().as_uri()):
        note("report", f"no browser could be started here: open {address} in one")
    return Exit.OK
