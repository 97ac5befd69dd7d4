"""`strands-env check --data FOLDER`: container tasks tried before anything is trained on them."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

from strands_env.commands.terminal import explained, format_number, say
from strands_env.environments.harbor import check_harbor
from strands_env.environments.harbor.results import REPORT
from strands_env.eval.benchmarks.harbor import task_folders
from strands_sglang.command_line import Exit

if TYPE_CHECKING:
    from strands_env.environments.harbor.validation import TaskReport


def validate(args: argparse.Namespace) -> Exit:
    """Try the tasks."""
    with explained(ImportError):
        check_harbor()
        folders = task_folders(Path(args.data_path))[: args.limit]
    from strands_env.environments.harbor.validation import CHEATS, validate_tasks
    from strands_env.rewards.proof import TaskVerdict, tally
    from strands_env.sandbox.images.work import DEFAULT_WORK

    width = max(len(folder.name) for folder in folders)

    def show(report: TaskReport) -> None:
        if args.json:
            return
        numbers = {
            kind: " ".join("-" if reward is None else format_number(reward) for reward in report.rewards.get(kind, []))
            for kind in ("oracle", "nop")
        }
        rewards = "  ".join(f"{kind} {text or '-'}" for kind, text in numbers.items())
        cheats = f" ({', '.join(report.cheats)})" if report.cheats else ""
        tried = len(report.rewards) - 2
        say(f"{report.task:{width}}  {rewards}  cheats {len(report.cheats)}/{tried}  {report.verdict}{cheats}")
        learned = [path for path in report.work or () if path not in DEFAULT_WORK]
        if learned:
            more = f" and {len(learned) - 5} more" if len(learned) > 5 else ""
            say(f"{'':{width}}  work: {' '.join(learned[:5])}{more}")
        for error in report.errors[:3]:
            say(f"{'':{width}}    {error}")

    reports = asyncio.run(
        validate_tasks(
            folders,
            repeats=args.repeats,
            cheats=args.cheats,
            concurrency=args.concurrency,
            done=show,
            backend=args.backend,
            backend_options=args.backend_options,
            verifier=args.verifier,
            keep_processes=args.keep_processes,
            work=args.work,
        )
    )
    sound = [
        str(folder) for folder, report in zip(folders, reports, strict=True) if report.verdict is TaskVerdict.SOUND
    ]
    document = {"folder": args.data_path, "sound": sound, "tasks": [report.to_json() for report in reports]}
    if args.json:
        say(json.dumps(document, indent=1))
    else:
        for cheat in sorted({cheat for report in reports for cheat in report.cheats} & CHEATS.keys()):
            say(f"{cheat}: {CHEATS[cheat].splitlines()[0].removeprefix('# ')}")
        say(tally(report.verdict for report in reports))
    if args.output is not None:
        folder = Path(args.output)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / REPORT).write_text(json.dumps(document, indent=1), encoding="utf-8")
        lines = "".join(f"{Path(task).resolve()}\n" for task in sound)
        (folder / "tasks.txt").write_text(lines, encoding="utf-8")
    return Exit.OK if len(sound) == len(folders) else Exit.INCOMPLETE
