"""`strands-env export`: a run as training data, one row a rollout."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

from strands_env.commands.terminal import complain, complain_of, say
from strands_env.eval import EvalError
from strands_env.eval.saved import SavedRun
from strands_env.eval.store import ResultReader, StorePaths
from strands_env.recipe.evaluation import check_writable
from strands_env.training import save_samples
from strands_env.training.formats import draw_rows, prompt_records, prompt_rows, select_rollouts, sft_row, write_rows
from strands_sglang.command_line import Exit
from strands_sglang.exceptions import MessageConversionError


def run(args: argparse.Namespace) -> int:
    """Write it."""
    target = Path(args.output)
    try:
        if args.format != "prompts" and (args.between is not None or args.draw is not None):
            raise EvalError(f"--between and --draw go with --format prompts, got --format {args.format}")
        suffix = ".parquet" if args.format == "samples" else ".jsonl"
        if target.suffix != suffix:
            raise EvalError(
                f"--output: the format {args.format!r} is written to a file that ends in {suffix}, got {args.output!r}"
            )
        run = StorePaths.of(args.run)
        if target.resolve() in (path.resolve() for path in (run.results, run.run)):
            raise EvalError(f"--output: {args.output!r} belongs to the run: give another file")
        if target.exists() and not args.overwrite:
            raise EvalError(f"--output: {args.output!r} exists: give another file, or --overwrite")
        if args.format == "prompts":
            return _write_prompts(args, target)
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
    except FileNotFoundError as error:
        return complain_of("export", error)
    except OSError as error:
        return complain(
            "export", f"cannot write {args.output!r}: {error.strerror or error}; no file was left behind", Exit.REFUSED
        )
    except EvalError as error:
        # An error that names an option is wrong usage, any other is about the run.
        return complain("export", error, Exit.USAGE if "--" in str(error) else Exit.REFUSED)
    if args.json:
        say(json.dumps({"path": str(target), "rows": rows, "left_out": dict(left)}))
    else:
        say(f"{target}  {rows} rows, format {args.format}")
        if left:
            say("left out    " + ", ".join(f"{count} {reason}" for reason, count in left.most_common()))
    if not rows:
        return complain("export", "nothing was written: every rollout was left out, see above", Exit.USAGE)
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
    except MessageConversionError as error:
        raise EvalError(f"--format prompts: a prompt is not text: {error}") from error
    rows = draw_rows(rows, args.draw, seed=args.seed) if args.draw and rows else rows
    count = write_rows(rows, target)
    left = len(records) - len(selected)
    if args.json:
        say(json.dumps({"path": str(target), "rows": count, "prompts": len(records), "left_out": left}))
    else:
        unmeasured = sum(not each.measured for each in records)
        say(f"{target}  {count} rows of {len(selected)} prompts")
        say(f"left out    {left} of {len(records)} prompts; {unmeasured} have no measured rollout")
    if not rows:
        return complain("export", "nothing was written: no prompt of the run has such a pass rate", Exit.USAGE)
    return Exit.OK
