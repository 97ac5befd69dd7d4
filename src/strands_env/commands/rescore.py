"""`strands-env rescore`: score saved rollouts with another reward. Nothing is sampled again."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import re
import signal
import sys
import sysconfig
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strands_env.commands.progress import make_display
from strands_env.commands.runs import SavedRun
from strands_env.commands.summary import nothing_scored, summary_lines
from strands_env.commands.terminal import cannot_read, complain, format_number, say
from strands_env.core import Environment, ErrorRecord, Phase, RewardResult, TerminationReason
from strands_env.core.jsonable import name_of
from strands_env.core.rollout import EnvFactory, make_environment, takes_action
from strands_env.eval import EvalError, EvalSample, ScoreTable, StoreError, summarize
from strands_env.eval.run.groups import read_scores
from strands_env.eval.run.progress import GuardedProgress, ProgressState
from strands_env.eval.store import ResultLog, ResultReader, ResultWriter, RunConfig, StorePaths
from strands_env.recipe.environments import make_env_factory
from strands_env.recipe.evaluation import check_writable
from strands_env.recipe.models import DeferredModels, make_model_factory
from strands_env.recipe.objects import load_reward
from strands_sglang.command_line import Exit
from strands_sglang.exceptions import SGLangClientError

_FRAME = re.compile(r'^ +File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
PREVIOUS = "previous_reward"
"""Where the info of a new reward holds the old one."""


def run(args: argparse.Namespace) -> int:
    """Score again."""
    logging.basicConfig(level=logging.WARNING if args.verbose else logging.ERROR, format="%(name)s: %(message)s")
    sys.path.insert(0, "")  # hooks in the folder one is in
    try:
        saved = SavedRun.of(args.run)
        if not saved.paths.results.exists():
            raise FileNotFoundError(None, None, str(saved.paths.results))
        factory = _scorer(saved, args)
        target = _target(saved, args.output)
        with _whole_or_nothing(target) as partial:
            rescoring = _Rescoring(
                saved=saved,
                target=target,
                partial=partial,
                factory=factory,
                max_concurrency=args.max_concurrency,
                reward=args.reward,
            )
            changes = asyncio.run(rescoring.run(make_display(quiet=args.quiet or args.json)))
            after = read_scores(partial.results)
            if changes.samples and not changes.all_failed and not summarize(after).scored:
                _, changes.complaint = nothing_scored(partial.results, changes.samples)
            if changes.is_useful:
                _move(partial, target)
        return _show(saved, target, changes, after, args)
    except KeyboardInterrupt:
        complain("rescore", "interrupted: nothing was written")
        return Exit.INTERRUPTED
    except (FileNotFoundError, StoreError) as error:
        return cannot_read("rescore", error)
    except SGLangClientError as error:
        complain("rescore", error)
        return Exit.FAILED
    except (EvalError, ValueError, TypeError) as error:
        complain("rescore", error)
        return Exit.USAGE


@dataclass(slots=True, kw_only=True)
class Changes:
    """What scoring again has changed.

    Attributes:
        samples: All samples.
        changed: Those with another reward, or with one where there was none, or the other way round.
        failed: Those that the new reward could not score.
        error: What the new reward raised first.
        complaint: Why nothing was scored, if nothing was.
    """

    samples: int = 0
    changed: int = 0
    failed: int = 0
    error: ErrorRecord | None = None
    complaint: str | None = None

    @property
    def all_failed(self) -> bool:
        """Whether the new reward could score none of them."""
        return 0 < self.samples == self.failed

    @property
    def is_useful(self) -> bool:
        """Whether there are new scores to keep."""
        return not self.all_failed and self.complaint is None


def unscored(sample: EvalSample) -> EvalSample:
    """A copy of a sample as it was before it was scored."""
    result = sample.step_result.model_copy(update={"reward": None})
    result.observation = result.observation.model_copy(update={"metrics": dict(result.observation.metrics)})
    ended = result.observation.metrics.pop("loop_termination_reason", None)
    if result.error is not None and result.error.where is Phase.REWARD:
        result.error = None
        result.termination_reason = TerminationReason(ended or TerminationReason.TASK_COMPLETE)
    return sample.model_copy(update={"step_result": result})


class _Rescoring:
    def __init__(
        self,
        *,
        saved: SavedRun,
        target: StorePaths,
        partial: StorePaths,
        factory: EnvFactory,
        max_concurrency: int,
        reward: str | None,
    ) -> None:
        self._saved = saved
        self._target = target
        self._partial = partial
        self._factory = factory
        self._takes_action = takes_action(factory)
        self._max_concurrency = max_concurrency
        self._reward = reward
        self._changes = Changes()
        self._state = ProgressState(name=f"rescore {saved.name}")

    async def run(self, display: Any) -> Changes:
        progress = GuardedProgress(display)
        with ResultReader(self._saved.paths.results) as reader:
            self._state.total = len(reader.entries)
            config = self._config()
            writer = ResultWriter(ResultLog(self._partial))
            progress.start(self._state)
            try:
                await writer.run(lambda: config.check(has_results=False))
                samples = (reader.read(entry, with_tokens=True) for entry in reader.entries)
                async with asyncio.TaskGroup() as group:
                    for _ in range(self._max_concurrency):
                        group.create_task(self._work(samples, writer, progress))
            finally:
                await writer.close()
                progress.finish(self._state)
        return self._changes

    async def _work(self, samples: Iterator[EvalSample], writer: ResultWriter, progress: GuardedProgress) -> None:
        for sample in samples:
            scored = sample if sample.aborted else await self._scored(sample)
            self._note(sample, scored)
            await writer.append(scored)
            progress.update(self._state)

    async def _scored(self, sample: EvalSample) -> EvalSample:
        scored = unscored(sample)
        action = scored.action.model_copy(deep=True)
        env: Environment = await make_environment(self._factory, action, self._takes_action)
        await env.score(action, scored.step_result)
        reward = scored.step_result.reward
        if isinstance(reward, RewardResult):
            scored.step_result.reward = reward.model_copy(update={"info": {**reward.info, PREVIOUS: sample.reward}})
        return scored

    def _note(self, before: EvalSample, after: EvalSample) -> None:
        self._changes.samples += 1
        self._changes.changed += before.reward != after.reward
        error = after.step_result.error
        if error is not None and error.where is Phase.REWARD and not after.aborted:
            self._changes.failed += 1
            self._changes.error = self._changes.error or error
        self._state.done += 1
        self._state.count(after)

    def _config(self) -> RunConfig:
        document = self._saved.document
        reward = self._reward or name_of(getattr(self._factory, "reward_fn", None) or self._factory)
        config = {**(document.get("config") or {}), "rescored": {"of": document.get("digest"), "reward": reward}}
        about = {
            **(document.get("about") or {}),
            "options": {**self._saved.options, "output": str(self._target.results.parent)},
            "rescored": {"from": str(self._saved.paths.results), "reward": reward},
        }
        made = RunConfig(self._partial.run, config, about)
        environment = document.get("environment")
        made.environment = None if environment is None else {**environment, "reward_fn": reward}
        return made


def _target(saved: SavedRun, output: str | None) -> StorePaths:
    folder = (
        saved.paths.results.parent if saved.paths.results.stem == "results" else saved.paths.results.with_suffix("")
    )
    target = StorePaths.of(output or folder.with_name(f"{folder.resolve().name}-rescored"))
    check_writable(target.results, option="--output")
    if target.results.exists() and target.results.stat().st_size:
        raise EvalError(f"{str(target.results)!r} holds results already: give another --output")
    return target


@contextmanager
def _whole_or_nothing(target: StorePaths) -> Iterator[StorePaths]:
    """Temporary files beside the new run's while it is scored; those not moved are removed, on SIGTERM too."""
    folder = target.results.parent
    is_new = not folder.exists()
    partial = StorePaths.of(folder / f".{target.results.stem}.{uuid.uuid4().hex}.jsonl")
    in_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, signal.default_int_handler) if in_main else None
    try:
        yield partial
    finally:
        if in_main:
            signal.signal(signal.SIGTERM, before)
        for path in (partial.results, partial.tokens, partial.run):
            path.unlink(missing_ok=True)
        if is_new:
            with suppress(OSError):  # it holds the new run
                folder.rmdir()


def _move(partial: StorePaths, target: StorePaths) -> None:
    """Give the files of a finished run their names, the results last: with them it is there."""
    for source, place in (
        (partial.tokens, target.tokens),
        (partial.run, target.run),
        (partial.results, target.results),
    ):
        if source.exists():
            os.replace(source, place)


def _scorer(saved: SavedRun, args: argparse.Namespace) -> EnvFactory:
    """A factory of environments that score; the model is only made where a reward asks for it."""
    if args.reward is not None:
        if args.env is not None or args.env_config is not None:
            raise EvalError("give --reward, or --env with --env-config, not both: each names what scores")
        reward = load_reward(args.reward)
        return _Rewarding(reward)
    options = saved.options
    if args.env is None and not options:
        raise EvalError(f"{args.run!r} was not saved by 'strands-env eval': name what scores with --reward or --env")
    model: dict[str, Any] = {name: options.get(name) for name in ("model_id", "base_url", "tokenizer", "tool_parser")}
    model |= {"backend": options.get("backend", "local"), "sampling_params": saved.model.get("sampling_params")}
    if model["backend"] == "scripted":
        model["script"] = options.get("script") or ""
    return make_env_factory(
        benchmark=options.get("benchmark") or saved.name,
        env=args.env or options.get("env"),
        env_config=args.env_config if args.env_config is not None else options.get("env_config"),
        reward=None if args.env else options.get("reward"),
        model=model,
        models=DeferredModels(lambda: make_model_factory(**model)),  # most rewards need none
    )


class _Rewarding:
    """Makes environments that only score."""

    def __init__(self, reward_fn: Any) -> None:
        self.reward_fn = reward_fn

    def __call__(self) -> Environment:
        return Environment(model_factory=_no_model, reward_fn=self.reward_fn)


def _no_model() -> Any:
    raise RuntimeError("scoring again calls no model")


def _show(saved: SavedRun, target: StorePaths, changes: Changes, scores: ScoreTable, args: argparse.Namespace) -> int:
    options: dict[str, Any] = {
        "reward_threshold": saved.threshold(args.reward_threshold),
        "prices": saved.prices(vars(args)),
    }
    before = summarize(read_scores(saved.paths.results), **options)
    after = summarize(scores, **options)
    if args.json:
        shown: Mapping[str, Any] = {
            "results": str(target.results) if changes.is_useful else None,
            "changed": changes.changed,
            "failed": changes.failed,
            "before": before.to_dict(),
            **after.to_dict(),
        }
        say(json.dumps(shown, default=str))
    else:
        say("\n".join(summary_lines(after, title=f"{saved.name}, scored again")))
        old, new = format_number(before.mean_reward.value), format_number(after.mean_reward.value)
        say(f"changed     {changes.changed} of {changes.samples} rewards; mean reward {old} before, {new} now")
        if changes.is_useful:
            say(f"results     {target.results}  (the old scores stay in {saved.paths.results})")
    if changes.error is not None:
        _say_where(changes.error, verbose=args.verbose)
    if changes.all_failed:
        complain("rescore", "the reward failed for every sample, with the error above: nothing was written; fix it")
    elif changes.complaint is not None:
        complain("rescore", f"{changes.complaint}; nothing was written")
    return Exit.OK if changes.is_useful else Exit.USAGE


def _say_where(error: ErrorRecord, *, verbose: bool) -> None:
    """The line of the user's reward that raised; with `verbose` the traceback."""
    if verbose:
        complain("rescore", f"the reward raised:\n{error.traceback.rstrip()}")
    elif frames := [found for found in _FRAME.findall(error.traceback) if not _is_foreign(found[0])]:
        path, line, name = frames[-1]
        complain("rescore", f"the reward raised {error.type} at {path}:{line}, in {name} (-v shows the traceback)")


def _is_foreign(path: str) -> bool:
    """Whether a file belongs to this package, to another installed one, or to Python."""
    parts = Path(path).parts
    is_installed = "site-packages" in parts or path.startswith(("<", sysconfig.get_path("stdlib")))
    return is_installed or Path(path).is_relative_to(Path(__file__).parents[1])
