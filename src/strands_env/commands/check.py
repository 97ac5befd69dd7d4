"""`strands-env check`: try an environment before a run, its tools and its first prompt, and prove its reward."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strands_env.commands.terminal import announce, explained, format_number, one_line, run_user_code, show
from strands_sglang.command_line import CommandError, Exit

if TYPE_CHECKING:
    from strands_env.recipe.dry_run import DryRun

SHOWN = 4000
"""Characters of the first prompt that are shown."""
CALLED = 200
"""Characters of a tool's result that are shown."""


def run(args: argparse.Namespace) -> int:
    """Check."""
    run_user_code(verbose=args.verbose, level=logging.CRITICAL)  # the findings say what is wrong
    if args.env is None and args.benchmark is None and args.data_path is None:
        raise CommandError("nothing to check: give --env module:function, a benchmark, or --data PATH", Exit.USAGE)
    if args.env is None and args.benchmark is None and Path(args.data_path).is_dir():
        from strands_env.commands.validate import validate

        return validate(args)
    with explained(ValueError, TypeError, OSError), announce("trying the environment", quiet=args.json):
        # After the first line, for this takes time.
        from strands_env.core.threads import LoopBlockedError, run_watched
        from strands_env.options import EvalOptions
        from strands_env.recipe import dry_run
        from strands_env.recipe.dry_run import DryModels, DryRun, prove, tasks_to_try, try_environment
        from strands_env.recipe.environments import make_env_factory
        from strands_env.recipe.objects import HOOK, benchmark_of_data, load_evaluator, load_object, load_reward

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
        models = DryModels(args.tokenizer)
        factory = make_env_factory(options, models)
        trial = DryRun()
        try:
            run_watched(try_environment(factory, tasks[0], models, trial), dry_run.BLOCKED_SECONDS)
            if options.benchmark and args.proof_seconds and not trial.errors:
                settings = {"is_asked": args.reward is not None, "ask_models": args.ask_judge}
                proving = prove(factory, tasks, trial, seconds=args.proof_seconds, **settings)
                run_watched(proving, dry_run.BLOCKED_SECONDS)
        except LoopBlockedError as error:
            trial.errors.append(str(error))
    show(_to_dict(trial), _lines(trial), as_json=args.json)
    return Exit.INCOMPLETE if trial.errors else Exit.OK


def _lines(trial: DryRun) -> Iterator[str]:
    from strands_env.core.limits import shorten
    from strands_env.recipe.dry_run import ANSWER

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


def _to_dict(trial: DryRun) -> dict[str, Any]:
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
