"""`strands-env rescore`: another reward for saved rollouts, as a new run. Nothing is sampled again."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from strands_env.commands.display import make_display, nothing_scored, summary_lines
from strands_env.commands.recipe.evaluation import check_writable
from strands_env.commands.recipe.factories import DeferredModels, load_reward, make_env_factory, make_model_factory
from strands_env.commands.terminal import explain_errors, format_number, note, run_user_code, show
from strands_env.core import End, Environment, ErrorRecord, Outcome, Phase, RewardResult, TerminationReason
from strands_env.core.jsonable import name_of
from strands_env.core.rollout import EnvFactory, make_environment, takes_action
from strands_env.eval import EvalError, EvalSample, read_scores, summarize
from strands_env.eval.run.progress import GuardedProgress, Progress, ProgressState
from strands_env.eval.saved import SavedRun
from strands_env.eval.store import ResultLog, ResultReader, ResultWriter, RunConfig, StorePaths
from strands_sglang.command_line import CommandError, Exit

PREVIOUS = "previous_reward"  # key of the old reward in the info of a new one


def run(args: argparse.Namespace) -> int:
    """Score again."""
    run_user_code(verbose=args.verbose)
    try:
        with explain_errors(ValueError, TypeError):
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
    changes = asyncio.run(rescore(saved, new, factory, **options))
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


def _scorer(saved: SavedRun, args: argparse.Namespace) -> EnvFactory:
    """A factory of environments that score; the model is only made where a reward asks for it."""
    if args.reward is not None:
        if args.env is not None or args.env_config is not None:
            raise EvalError("give --reward, or --env with --env-config, not both: each names a reward")
        reward = load_reward(args.reward)

        def make_model() -> Any:
            raise RuntimeError("scoring again calls no model")

        return lambda: Environment(model_factory=make_model, reward_fn=reward)
    options = saved.options
    if args.env is None and options.benchmark is None:
        raise EvalError(f"{args.run!r} was not saved by 'strands-env eval': name the reward with --reward or --env")
    if args.env is not None:
        options = replace(options, env=args.env, reward=None)
    if args.env_config is not None:
        options = replace(options, env_config=args.env_config)
    return make_env_factory(options, DeferredModels(lambda: make_model_factory(options)))  # most rewards need no model


# ---- the new run -----------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Rescored:
    """The outcome of rescoring.

    Attributes:
        changed: Samples with another reward, or with one where there was none, or the other way round.
        failed: Samples that the new reward could not score; `error` is its first error.
    """

    samples: int = 0
    changed: int = 0
    failed: int = 0
    error: ErrorRecord | None = None

    def add(self, before: EvalSample, after: EvalSample) -> None:
        """Count a sample."""
        self.samples += 1
        self.changed += before.reward != after.reward
        end = after.step_result.end
        if end.outcome is Outcome.GRADER:
            self.failed += 1
            self.error = self.error or end.error


async def rescore(
    source: SavedRun,
    target: StorePaths,
    env_factory: EnvFactory,
    *,
    reward: str | None,
    max_concurrency: int,
    progress: Progress | None,
) -> Rescored:
    """Score every sample of a saved run again; each keeps its old reward as `info["previous_reward"]`.

    Args:
        target: The files of the new run. A run that is given up leaves a part of it there.
        reward: The name of the reward for the configuration; that of the factory's if None.
    """
    display, outcome, task = GuardedProgress(progress), Rescored(), asyncio.current_task()
    assert task is not None
    # SIGTERM cancels as Ctrl-C does. An exception that it raised could land in a reward, and count as its failure.
    with suppress(NotImplementedError, RuntimeError, ValueError):  # Windows; another thread than the main one
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    name = reward or name_of(getattr(env_factory, "reward_fn", None) or env_factory)
    # The old digest is part of the new configuration: a resume of the old run must not take these scores for its own.
    config = {**source.config, "rescored": {"of": source.document.get("digest"), "reward": name}}
    about = {**source.about, "rescored": {"from": str(source.paths.results), "reward": name}}
    run = RunConfig(target.run, config, about)
    if source.environment:
        run.environment = {**source.environment, "reward_fn": name}
        for part in ("reward", "task"):  # of the reward it was sampled with
            run.environment.pop(part, None)
    with_action = takes_action(env_factory)
    with ResultReader(source.paths.results) as reader:
        state = ProgressState(name=f"rescore {source.name}", total=len(reader.entries))
        writer = ResultWriter(ResultLog(target))
        samples = (reader.read(entry, with_tokens=True) for entry in reader.entries)

        async def work() -> None:
            for sample in samples:
                scored = sample if sample.aborted else await _score_again(sample, env_factory, with_action)
                outcome.add(sample, scored)
                state.done += 1
                state.count(scored)
                await writer.append(scored)
                display("update", state)

        display("start", state)
        try:
            await writer.run(lambda: run.check(has_results=False))
            async with asyncio.TaskGroup() as group:
                for _ in range(max_concurrency):
                    group.create_task(work())
        finally:
            await writer.close()
            display("finish", state)
    return outcome


def remove_score(sample: EvalSample) -> EvalSample:
    """A copy of a sample as it was before it was scored."""
    result = sample.step_result.model_copy(update={"reward": None})
    result.observation = result.observation.model_copy(update={"metrics": dict(result.observation.metrics)})
    ended, error = (result.observation.metrics.pop(f"loop_{name}", None) for name in ("termination_reason", "error"))
    if result.error is not None and result.error.where is Phase.REWARD:
        record = None if error is None else ErrorRecord(**{**error, "where": Phase(error["where"])})
        result.end = End(TerminationReason(ended or TerminationReason.TASK_COMPLETE), error=record)
    return sample.model_copy(update={"step_result": result})


async def _score_again(sample: EvalSample, env_factory: EnvFactory, with_action: bool) -> EvalSample:
    scored = remove_score(sample)
    action = scored.action.model_copy(deep=True)
    env: Environment = await make_environment(env_factory, action, with_action)
    await env.score(action, scored.step_result)
    reward = scored.step_result.reward
    if isinstance(reward, RewardResult):
        scored.step_result.reward = reward.model_copy(update={"info": {**reward.info, PREVIOUS: sample.reward}})
    return scored
