"""`strands-env rescore`: score saved rollouts with another reward. Nothing is sampled again."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from strands_env.commands.display import make_display, nothing_scored, summary_lines
from strands_env.commands.terminal import explained, format_number, note, run_user_code, show
from strands_env.core import Environment
from strands_env.core.rollout import EnvFactory
from strands_env.eval import EvalError, read_scores, summarize
from strands_env.eval.rescore import Rescored, rescore
from strands_env.eval.saved import SavedRun
from strands_env.eval.store import StorePaths
from strands_env.recipe.evaluation import check_writable
from strands_env.recipe.factories import DeferredModels, make_env_factory, make_model_factory
from strands_env.recipe.objects import load_reward
from strands_sglang.command_line import CommandError, Exit


def run(args: argparse.Namespace) -> int:
    """Score again."""
    run_user_code(verbose=args.verbose)
    try:
        with explained(ValueError, TypeError):
            saved = SavedRun.of(args.run, must_exist=True)
            results, factory = saved.paths.results, _scorer(saved, args)
            folder = results.parent if results.stem == "results" else results.with_suffix("")
            target = StorePaths.of(args.output or folder.with_name(f"{folder.resolve().name}-rescored"))
            check_writable(target.results)
            if target.results.exists() and target.results.stat().st_size:
                raise EvalError(f"{str(target.results)!r} holds results already: give another --output")
            place = next(folder for folder in target.results.parents if folder.exists())
            # A whole run or none: it is made beside its place, where a rename is atomic.
            with TemporaryDirectory(dir=place, prefix=".rescore-") as beside:
                new = StorePaths.of(Path(beside) / target.results.name)
                return _rescore(saved, new, target, factory, args)
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise CommandError("interrupted: nothing was written", Exit.INTERRUPTED) from None


def _rescore(
    saved: SavedRun, new: StorePaths, target: StorePaths, factory: EnvFactory, args: argparse.Namespace
) -> Exit:
    display = make_display(quiet=args.quiet or args.json)
    options = {"reward": args.reward, "max_concurrency": args.max_concurrency, "progress": display}
    changes = asyncio.run(_cancelled_by_sigterm(rescore(saved, new, factory, **options)))
    threshold, complaint = saved.threshold(args.reward_threshold), None
    before, after = (summarize(read_scores(each), reward_threshold=threshold) for each in (args.run, new.results))
    if 0 < changes.samples == changes.failed:
        complaint = "the reward failed for every sample, with the error above: nothing was written; fix it"
    elif changes.samples and not after.scored:
        complaint = f"{nothing_scored(new.results, changes.samples)[1]}; nothing was written"
    else:
        target.results.parent.mkdir(parents=True, exist_ok=True)
        os.replace(new.run, target.run)
        os.replace(new.results, target.results)  # the last: with it the run is there
    written = str(target.results) if complaint is None else None
    counts = {"results": written, "changed": changes.changed, "failed": changes.failed}
    lines = summary_lines(after, title=f"{saved.name}, scored again")
    old, now = format_number(before.mean_reward.value), format_number(after.mean_reward.value)
    lines.append(f"changed     {changes.changed} of {changes.samples} rewards; mean reward {old} before, {now} now")
    if complaint is None:
        lines.append(f"results     {target.results}  (the old scores stay in {saved.paths.results})")
    show({**counts, "before": before.to_dict(), **after.to_dict()}, lines, as_json=args.json)
    if (error := changes.error) is not None and args.verbose:
        note("rescore", f"the reward raised:\n{error.traceback.rstrip()}")
    elif error is not None and error.raised_at is not None:
        note("rescore", f"the reward raised {error.type} at {error.raised_at} (-v shows the traceback)")
    if complaint is not None:
        raise CommandError(complaint, Exit.USAGE)
    return Exit.OK


async def _cancelled_by_sigterm(work: Coroutine[Any, Any, Rescored]) -> Rescored:
    """SIGTERM cancels as Ctrl-C does. An exception that it raised could land in a reward, and count as its failure."""
    task = asyncio.current_task()
    assert task is not None
    with suppress(NotImplementedError, RuntimeError, ValueError):  # Windows; another thread than the main one
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await work


def _scorer(saved: SavedRun, args: argparse.Namespace) -> EnvFactory:
    """A factory of environments that score; the model is only made where a reward asks for it."""
    if args.reward is not None:
        if args.env is not None or args.env_config is not None:
            raise EvalError("give --reward, or --env with --env-config, not both: each names what scores")
        reward = load_reward(args.reward)

        def make_model() -> Any:
            raise RuntimeError("scoring again calls no model")

        return lambda: Environment(model_factory=make_model, reward_fn=reward)
    options = saved.options
    if args.env is None and options.benchmark is None:
        raise EvalError(f"{args.run!r} was not saved by 'strands-env eval': name what scores with --reward or --env")
    if args.env is not None:
        options = replace(options, env=args.env, reward=None)
    if args.env_config is not None:
        options = replace(options, env_config=args.env_config)
    return make_env_factory(options, DeferredModels(lambda: make_model_factory(options)))  # most rewards need no model
