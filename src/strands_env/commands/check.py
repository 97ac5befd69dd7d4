"""`strands-env check`: try an environment before a run, its tools and its first prompt, and prove its reward.

`check --data FOLDER` runs the solutions of container tasks against their tests instead.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strands_env.commands.terminal import announce, explain_errors, format_number, one_line, run_user_code, say, show
from strands_env.core.garbage import rare_collections
from strands_sglang.command_line import CommandError, Exit

if TYPE_CHECKING:
    from strands_env.commands.recipe.trial import Trial
    from strands_env.environments.harbor.validation import TaskReport

SHOWN = 4000
"""Characters of the first prompt that are shown."""
CALLED = 200
"""Characters of a tool's result that are shown."""


def run(args: argparse.Namespace) -> int:
    """Check."""
    run_user_code(verbose=args.verbose, level=logging.CRITICAL)  # the findings explain it
    if args.env is None and args.benchmark is None and args.data_path is None:
        raise CommandError("nothing to check: give --env module:function, a benchmark, or --data PATH", Exit.USAGE)
    if args.env is None and args.benchmark is None and os.path.isdir(args.data_path):
        return _validate(args)
    work = announce("trying the environment", quiet=args.json)
    with explain_errors(ValueError, TypeError, OSError), work, rare_collections():  # imports make no garbage
        # After the first line, for this takes time.
        from strands_env.commands.recipe.names import HOOK, check_names, load_object

        check_names(vars(args))
        from strands_env.commands.recipe import trial as trial_module
        from strands_env.commands.recipe.factories import (
            benchmark_of_data,
            load_evaluator,
            load_reward,
            make_env_factory,
        )
        from strands_env.commands.recipe.trial import Trial, TrialModels, prove, tasks_to_try, try_environment
        from strands_env.core.threads import LoopBlockedError, run_watched
        from strands_env.eval.options import EvalOptions

        options = EvalOptions(
            benchmark=args.benchmark or (None if args.data_path is None else benchmark_of_data(args.data_path)),
            **{name: getattr(args, name) for name in ("env", "env_config", "reward", "data_path", "columns")},
        )
        # What the user named, before a tokenizer and data are loaded.
        for name, load in (
            (options.benchmark, load_evaluator),
            (args.env, partial(load_object, default=HOOK)),
            (args.reward, load_reward),
        ):
            if name:
                load(name)
        tasks = tasks_to_try(options)
        models = TrialModels(args.tokenizer)
        factory = make_env_factory(options, models)
        trial = Trial()
        try:
            run_watched(try_environment(factory, tasks[0], models, trial), trial_module.BLOCKED_SECONDS)
            if options.benchmark and args.proof_seconds and not trial.errors:
                settings = {"is_asked": args.reward is not None, "ask_models": args.ask_judge}
                proving = prove(factory, tasks, trial, seconds=args.proof_seconds, **settings)
                run_watched(proving, trial_module.BLOCKED_SECONDS)
        except LoopBlockedError as error:
            trial.errors.append(str(error))
    show(_to_dict(trial), _lines(trial), as_json=args.json)
    return Exit.INCOMPLETE if trial.errors else Exit.OK


def _lines(trial: Trial) -> Iterator[str]:
    from strands_env.commands.recipe.trial import ANSWER
    from strands_env.core.limits import shorten

    for spec in trial.tools:
        yield f"tool        {signature(spec)}"
        yield f"            {one_line(str(spec.get('description') or ''))[:160]}"
    if not trial.tools:
        yield "tools       none"
    if trial.prompt is not None:
        yield f"prompt      {trial.prompt_tokens} tokens, as the model reads it:"
        yield from (f"  | {line}" for line in shorten(trial.prompt, SHOWN).splitlines())
    if trial.result is not None and trial.result.reward is not None:
        value = trial.result.reward.reward
        yield f"reward      {'none' if value is None else format_number(value)} for the answer {ANSWER!r}"
    for one in trial.calls:
        yield f"call        {one['name']}() gave {one_line(one['text'])[:CALLED]!r}"
    if trial.proof is not None:
        yield f"proof       {trial.proof.table()}"
    for error in trial.errors:
        yield f"error       {one_line(error)}"
    for warning in trial.warnings:
        yield f"warning     {one_line(warning)}"
    errors, warnings = len(trial.errors), len(trial.warnings)
    verdict = f"errors: {errors}, warnings: {warnings}" if errors or warnings else "nothing to change"
    yield f"checked     {verdict}"


def signature(spec: Mapping[str, Any]) -> str:
    """A tool as the model sees it: `name(argument: type, optional: type = ...)`."""
    schema = spec.get("inputSchema") or {}
    schema = schema.get("json", schema)
    required = set(schema.get("required") or ())
    parts = []
    for name, about in (schema.get("properties") or {}).items():
        kind = about.get("type", "any") if isinstance(about, dict) else "any"
        parts.append(f"{name}: {kind}{'' if name in required else ' = ...'}")
    return f"{spec.get('name')}({', '.join(parts)})"


def _to_dict(trial: Trial) -> dict[str, Any]:
    result = trial.result
    return {
        "ok": not trial.errors,
        "findings": [{"level": "error", "what": error} for error in trial.errors]
        + [{"level": "warning", "what": warning} for warning in trial.warnings],
        "tools": trial.tools,
        "calls": trial.calls,
        "prompt": trial.prompt,
        "prompt_tokens": trial.prompt_tokens,
        "reward": None if result is None or result.reward is None else result.reward.reward,
        "proof": None if trial.proof is None else trial.proof.to_json(),
        "termination_reason": None if result is None else result.termination_reason.value,
    }


def _validate(args: argparse.Namespace) -> Exit:
    """Try container tasks, before anything is trained on them."""
    from strands_env.environments.harbor import check_harbor
    from strands_env.environments.harbor.outcome import REPORT
    from strands_env.eval.benchmarks.harbor import task_folders

    with explain_errors(ImportError):
        check_harbor()
        folders = task_folders(Path(args.data_path))[: args.limit]
    from strands_env.environments.harbor.validation import CHEATS, validate_tasks
    from strands_env.rewards.proof import TaskVerdict, tally
    from strands_env.sandbox.images.work import DEFAULT_WORK

    width = max(len(folder.name) for folder in folders)

    def show_task(report: TaskReport) -> None:
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
            done=show_task,
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
        show(document, (), as_json=True)
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
