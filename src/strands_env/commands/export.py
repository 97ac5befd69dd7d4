"""`strands-env export`: a run as training data, one row a rollout."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from strands_env.commands.runs import SavedRun
from strands_env.commands.terminal import complain, say
from strands_env.eval import EvalError
from strands_env.eval.store import ResultReader
from strands_env.recipe.evaluation import check_writable
from strands_env.report.inspect_log import write_inspect_log
from strands_env.training import TrainingSample, group_advantages, samples_from_step, save_samples
from strands_env.training.formats import FORMATS, Rollout, write_rows
from strands_sglang.commands.command_line import Exit


def run(args: argparse.Namespace) -> int:
    """Write it."""
    target = Path(args.output)
    try:
        if args.format == "inspect":
            return _inspect(args, target)
        if target.suffix not in (".parquet", ".jsonl") or (args.format == "samples" and target.suffix == ".jsonl"):
            wanted = ".parquet" if args.format == "samples" else ".parquet or .jsonl"
            raise EvalError(
                f"--output: the format {args.format!r} is written to a file that ends in {wanted}, got {args.output!r}"
                f"{_other_formats(target)}"
            )
        if target.exists() and not args.overwrite:
            raise EvalError(f"--output: {args.output!r} exists: give another file, or --overwrite")
        saved = SavedRun.of(args.run)
        left: Counter[str] = Counter()
        with ResultReader(saved.paths.results) as reader:
            check_writable(target, option="--output")
            rollouts = _rollouts(saved, reader, args, left)
            if args.format == "samples":
                rows = save_samples((path for rollout in rollouts for path in _neutral(rollout)), target)
            else:
                rows = write_rows((FORMATS[args.format](rollout) for rollout in rollouts), target)
    except FileNotFoundError as error:
        complain("export", f"there are no results at {error.filename!r}")
        return Exit.USAGE
    except ImportError as error:
        complain("export", error)
        return Exit.USAGE
    except OSError as error:
        complain("export", f"cannot write {args.output!r}: {error.strerror or error}; no file was left behind")
        return Exit.REFUSED
    except EvalError as error:
        complain("export", error)
        return Exit.USAGE if "--output" in str(error) else Exit.REFUSED
    if args.json:
        say(json.dumps({"path": str(target), "rows": rows, "left_out": dict(left)}))
    else:
        say(f"{target}  {rows} rows, format {args.format}")
        if left:
            say("left out    " + ", ".join(f"{count} {reason}" for reason, count in left.most_common()))
    if not rows:
        complain("export", "nothing was written: every rollout was left out, see above")
        return Exit.USAGE
    return Exit.OK


def _inspect(args: argparse.Namespace, target: Path) -> int:
    """Write the log of the whole run."""
    if target.suffix != ".json":
        raise EvalError(f"--output: the format 'inspect' is written to a file that ends in .json, got {args.output!r}")
    if args.min_reward is not None or args.max_reward is not None or args.mixed:
        raise EvalError("--output: the format 'inspect' is the log of the whole run: leave out what selects rollouts")
    if target.exists() and not args.overwrite:
        raise EvalError(f"--output: {args.output!r} exists: give another file, or --overwrite")
    check_writable(target, option="--output")
    samples = write_inspect_log(SavedRun.of(args.run).paths.results, target)
    say(json.dumps({"path": str(target), "samples": samples}) if args.json else f"{target}  {samples} samples")
    return Exit.OK


def _other_formats(target: Path) -> str:
    return f" (--format {', '.join(FORMATS)} write .jsonl too)" if target.suffix == ".jsonl" else ""


def _rollouts(saved: SavedRun, reader: ResultReader, args: argparse.Namespace, left: Counter[str]) -> Iterator[Rollout]:
    rewards = {(e.prompt_id, e.index): reader.read(e).reward for e in reader.entries}
    advantages = _advantages(rewards, args.advantages)
    by_prompt: dict[str, set[float]] = {}
    for (prompt, _), reward in rewards.items():
        if reward is not None:
            by_prompt.setdefault(prompt, set()).add(reward)
    groups = {prompt: place for place, prompt in enumerate(dict.fromkeys(entry.prompt_id for entry in reader.entries))}
    count = 0
    for entry in sorted(reader.entries, key=lambda entry: (groups[entry.prompt_id], entry.index)):
        reward = rewards[(entry.prompt_id, entry.index)]
        mixed = len(by_prompt.get(entry.prompt_id, ())) > 1
        if reason := _left_out(reward, mixed, args):
            left[reason] += 1
            continue
        sample = reader.read(entry, with_tokens=True)
        paths = samples_from_step(
            sample.step_result,
            group_id=entry.prompt_id,
            rollout_id=sample.id,
            metadata={"prompt_id": entry.prompt_id, "index": entry.index},
        )
        if not any(path.is_usable for path in paths):
            left["without tokens that could be trained"] += 1
            continue
        if paths[0].status == "truncated" and not args.truncated and args.format == "sft":
            left["cut by a limit (--truncated keeps them)"] += 1
            continue
        advantage = None if advantages is None else advantages[(entry.prompt_id, entry.index)]
        yield Rollout(
            action=sample.action,
            result=sample.step_result,
            paths=paths,
            advantage=advantage,
            group=groups[entry.prompt_id],
            number=count,
            system_prompt=saved.system_prompt,
        )
        count += 1


def _left_out(reward: float | None, mixed: bool, args: argparse.Namespace) -> str | None:
    if reward is None:
        return "without a reward"
    if args.min_reward is not None and reward < args.min_reward:
        return f"with a reward below {args.min_reward:g}"
    if args.max_reward is not None and reward > args.max_reward:
        return f"with a reward above {args.max_reward:g}"
    return "of prompts whose rollouts score alike" if args.mixed and not mixed else None


def _advantages(rewards: Mapping[tuple[str, int], float | None], kind: str) -> dict[tuple[str, int], float] | None:
    """Advantages over the whole groups, whatever is filtered out afterwards."""
    if kind == "none":
        return None
    keys = list(rewards)
    values = group_advantages(
        [rewards[key] for key in keys],
        group_ids=[prompt for prompt, _ in keys],
        rollout_ids=keys,
        scale_by_std=kind == "grpo",
    )
    return dict(zip(keys, values, strict=True))


def _neutral(rollout: Rollout) -> list[TrainingSample]:
    known = {} if rollout.advantage is None else {"advantage": rollout.advantage}
    return [replace(path, metadata={**path.metadata, **known}) for path in rollout.paths]
