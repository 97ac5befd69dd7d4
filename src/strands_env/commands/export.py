"""`strands-env export`: a run as training data, one row a rollout."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from strands_env.commands.recipe.evaluation import check_writable
from strands_env.commands.terminal import show
from strands_env.eval import EvalError
from strands_env.eval.errors import NoResultsError
from strands_env.eval.saved import SavedRun
from strands_env.eval.store import ResultReader, StorePaths
from strands_env.training import save_samples
from strands_env.training.formats import (
    draw_rows,
    prompt_records,
    prompt_rows,
    select_rollouts,
    sft_row,
    write_prompts,
    write_rows,
)
from strands_sglang.command_line import CommandError, Exit
from strands_sglang.exceptions import MessageConversionError


def run(args: argparse.Namespace) -> int:
    """Write it."""
    target = Path(args.output)
    _check(args, target)
    try:
        return _write_prompts(args, target) if args.format == "prompts" else _write_rollouts(args, target)
    except NoResultsError:
        raise
    except OSError as error:
        raise CommandError(
            f"cannot write {args.output!r}: {error.strerror or error}; no file was left behind", Exit.REFUSED
        ) from error
    except EvalError as error:  # about the run, not its options
        raise CommandError(error, Exit.REFUSED) from error


def _check(args: argparse.Namespace, target: Path) -> None:
    """Refuse options that contradict each other, and files that must not be written."""
    run = StorePaths.of(args.run)
    suffixes = {"samples": (".parquet",), "prompts": (".jsonl", ".parquet")}.get(args.format, (".jsonl",))
    wrong = None
    if args.format != "prompts" and (args.between is not None or args.draw is not None):
        wrong = f"--between and --draw go with --format prompts, got --format {args.format}"
    elif target.suffix not in suffixes:
        ends = " or ".join(suffixes)
        wrong = f"--output: the format {args.format!r} is written to a file that ends in {ends}, got {args.output!r}"
    elif target.resolve() in (path.resolve() for path in (run.results, run.run)):
        wrong = f"--output: {args.output!r} belongs to the run: give another file"
    elif target.exists() and not args.overwrite:
        wrong = f"--output: {args.output!r} exists: give another file, or --overwrite"
    if wrong is not None:
        raise CommandError(wrong, Exit.USAGE)


def _write_rollouts(args: argparse.Namespace, target: Path) -> int:
    """Write the rollouts that are selected."""
    saved = SavedRun.of(args.run)
    left: Counter[str] = Counter()
    with ResultReader(saved.paths.results) as reader:
        check_writable(target)
        entries = {(entry.prompt_id, entry.index): entry for entry in reader.entries}
        # Advantages are of whole groups, so all rewards are known before the first sample is read.
        rewards = {key: entry.reward for key, entry in entries.items()}
        rollouts = select_rollouts(
            rewards,
            lambda key: reader.read(entries[key], with_tokens=True),
            left,
            min_reward=args.min_reward,
            max_reward=args.max_reward,
            mixed=args.mixed,
            whole=args.format == "sft",
        )
        if args.format == "sft":
            rows = write_rows((sft_row(*each, saved.system_prompt) for each in rollouts), target)
        else:
            samples = [path for _, paths in rollouts for path in paths]
            rows = save_samples(samples, target) if samples else 0
    lines = [f"{target}  {rows} rows, format {args.format}"]
    if left:
        lines.append("left out    " + ", ".join(f"{count} {reason}" for reason, count in left.most_common()))
    show({"path": str(target), "rows": rows, "left_out": dict(left)}, lines, as_json=args.json)
    if not rows:
        raise CommandError("nothing was written: every rollout was left out, see above", Exit.USAGE)
    return Exit.OK


def _write_prompts(args: argparse.Namespace, target: Path) -> int:
    """Write the prompts with their pass rates."""
    saved = SavedRun.of(args.run)
    threshold = saved.threshold(args.reward_threshold)
    with ResultReader(saved.paths.results) as reader:
        check_writable(target)
        records = prompt_records((reader.read(entry) for entry in reader.entries), threshold)
    selected = records
    if args.between is not None:
        low, high = args.between
        selected = [each for each in selected if each.pass_rate is not None and low <= each.pass_rate <= high]
    try:
        rows = prompt_rows(selected)
        rows = draw_rows(rows, args.draw, seed=args.seed) if args.draw and rows else rows
        count = write_prompts(rows, target) if target.suffix == ".parquet" else write_rows(rows, target)
    except MessageConversionError as error:
        raise CommandError(f"--format prompts: a prompt is not text: {error}", Exit.USAGE) from error
    left = len(records) - len(selected)
    unmeasured = sum(not each.measured for each in records)
    lines = [
        f"{target}  {count} rows of {len(selected)} prompts",
        f"left out    {left} of {len(records)} prompts; {unmeasured} without a scored rollout",
    ]
    document = {"path": str(target), "rows": count, "prompts": len(records), "left_out": left}
    show(document, lines, as_json=args.json)
    if not rows:
        raise CommandError("nothing was written: no prompt of the run has such a pass rate", Exit.USAGE)
    return Exit.OK
