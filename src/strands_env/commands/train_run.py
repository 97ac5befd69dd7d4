"""The run of `strands-env train` on the embedded model: TRL's mathematics over the rollouts of saved evaluations.

run.yaml              the options
training.jsonl        a line for each finished step
step-N/               the rollouts of step N, written while they run
checkpoint-N/         the trainer's state after step N
model/                the weights after the last step, for `--model`
"""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from strands_env.commands.recipe.evaluation import Evaluation, build_evaluation, resolve
from strands_env.commands.recipe.launch import launch_text
from strands_env.commands.recipe.plan import plan_lines, plan_of
from strands_env.commands.recipe.run_file import SAVED, parse_run_file, read_run_file, run_file_text
from strands_env.commands.terminal import announce, explain_errors, format_number, note, show
from strands_env.core import Action
from strands_env.core.jsonable import differences
from strands_env.core.seeds import derive_seed
from strands_env.core.trackers import BackgroundTracker, make_tracker, numbers_of
from strands_env.eval import EvalError, Evaluator, StoreError
from strands_env.eval.options import CHANGEABLE, SHARED, TRAIN_OPTIONS, EvalOptions, TrainOptions
from strands_env.eval.run.tasks import catch_exits, stream, with_names
from strands_env.eval.saved import SavedRun
from strands_env.training import TrainingSample, samples_from_step
from strands_env.training.export import TrainerVersionError
from strands_env.training.log import NAME, TrainingLog, TrainingLogError
from strands_env.training.trl import CheckpointError, DisagreementError, grpo_trainer, rollout_output
from strands_sglang.command_line import CommandError, Exit
from strands_sglang.lines import replacing

MODEL = "model"
OUTPUT = "runs/train"
"""Default folder."""
CONCURRENCY = 16
"""Rollouts at a time, as many as the embedded engine computes at once."""
_WITHOUT_TRACE = {"top_p": 1.0, "top_k": -1, "min_p": 0.0}
"""Parameters that leave out tokens without a trace in the log-probabilities, and their neutral values."""
_SHOWN = {"reward_std": "reward_std", "loss": "loss", "grad_norm": "grad_norm", "lr": "learning_rate",
          "entropy": "entropy", "length": "completions/mean_length", "same_reward": "frac_reward_zero_std",
          "logprob_gap": "logprob_gap"}  # fmt: skip
"""Fields of a line of the log, and their names in TRL."""


def train(arguments: Mapping[str, Any]) -> int:
    """Train, or continue a training, or show the plan of it."""
    as_json, plan, launch, steps = arguments["json"], None, None, []
    with explain_errors(ValueError, TypeError, OSError, TrainerVersionError, DisagreementError):
        options, training = resolve_training(arguments)
        folder = Path(str(options.output_path))
        if arguments["dry_run"]:
            plan = plan_of(_evaluation_of(options, arguments, loads=False).evaluator, options, training)
        elif training.trainer != "trl":
            launch = launch_text(options, training)
        else:
            steps = _train(options, training, arguments)
    if plan is not None:
        show(plan, plan_lines(plan), as_json=as_json)
        return Exit.OK
    if launch is not None:
        show({"trainer": training.trainer, "launch": launch}, [launch.rstrip()], as_json=as_json)
        return Exit.OK
    rewards = [format_number(float("nan") if step["reward"] is None else step["reward"]) for step in steps]
    lines = [
        f"reward      {rewards[0]} in step 1, {rewards[-1]} in step {len(steps)}",
        f"model       {folder / MODEL}",
        f"look at it  strands-env report {folder}",
    ]
    show({"output": str(folder), "model": str(folder / MODEL), "steps": steps}, lines, as_json=as_json)
    return Exit.OK


def _train(options: EvalOptions, training: TrainOptions, given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Train to the last step; returns the lines of the log."""
    folder = Path(str(options.output_path))
    with _explained(folder), _opened(folder, resume=given["resume"]) as log:
        if _cut_to_saved(log, folder) < training.steps:
            run = TrainingRun(options, training, log, given)
            with replacing(folder / SAVED) as file:
                file.write_text(run_file_text(options, training), encoding="utf-8")
            run.run()
        _keep_weights(folder / f"checkpoint-{len(log.steps)}", folder / MODEL)
        return list(log.steps)


# ---- options ---------------------------------------------------------------------------------------------------------


def resolve_training(arguments: Mapping[str, Any]) -> tuple[EvalOptions, TrainOptions]:
    """All options of a training: those given, otherwise those of the training to resume, otherwise defaults.

    Raises:
        EvalError: An option is wrong, or would make a resumed training another one.
        ValueError: An option is out of range.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    folder = Path(given.get("output_path") or OUTPUT)
    saved: dict[str, Any] = {}
    if arguments["resume"] and (folder / SAVED).exists():
        saved = read_run_file(folder / SAVED)
    elif arguments["resume"] and _is_begun(folder):
        raise EvalError(f"{str(folder)!r} has lost its {SAVED}, so its options are unknown: bring the file back")
    elif arguments["resume"]:
        note("train", f"there is nothing to resume at {str(folder)!r}: a new training is started")
    values = {"max_concurrency": CONCURRENCY, **saved, **given}
    training = TrainOptions(**{name: values[name] for name in TRAIN_OPTIONS if name in values})
    own = {name: value for name, value in given.items() if name in (*SHARED, "temperature", "max_new_tokens")}
    own["max_concurrency"] = values["max_concurrency"]
    before = {name: value for name, value in saved.items() if name not in TRAIN_OPTIONS}
    fixed = {"output_path": str(folder), "n_samples_per_prompt": training.group}
    options = resolve({**own, **fixed}, from_run=None if saved else arguments["from_run"], saved=before)
    if saved:
        now = parse_run_file(run_file_text(options, training))
        kept = {*SHARED, *TRAIN_OPTIONS, "sampling_seed"} - CHANGEABLE
        before, after = ({name: each[name] for name in each if name in kept} for each in (saved, now))
        for name, old, new in differences(before, after):
            raise EvalError(
                f"{str(folder)!r} is a training with {name} {old}, not {new}: leave that out, or give another --output"
            )
    for problem in _problems(options, training):
        raise EvalError(problem)
    return options, training


def _problems(options: EvalOptions, training: TrainOptions) -> Iterator[str]:
    """The reasons why the trainer here would train another policy than the one that sampled, or none."""
    if training.trainer != "trl":
        return
    sampling = options.sampling or {}
    for name, value in _WITHOUT_TRACE.items():
        if sampling.get(name, value) != value:
            yield f"training samples from the whole distribution, got {name} {sampling[name]!r}: leave it out"
    if sampling.get("temperature", 1.0) <= 0:
        yield "at temperature 0 the rollouts of a prompt are alike, so nothing is learnt: give --temperature 1"
    if options.backend != "local":
        yield f"trl trains the embedded model, got --backend {options.backend} (see --trainer)"


def _evaluation_of(options: EvalOptions, given: Mapping[str, Any], *, loads: bool = True) -> Evaluation:
    """The evaluation of a step's rollouts, which may be there in part."""
    return build_evaluation(
        options,
        given,
        resume=(Path(str(options.output_path)) / "results.jsonl").exists(),
        note=lambda text: note("train", f"note: {text}"),
        announce=partial(announce, quiet=given["quiet"] or given["json"]),
        loads=loads,
    )


# ---- the folder ------------------------------------------------------------------------------------------------------


@contextmanager
def _opened(folder: Path, *, resume: bool) -> Iterator[TrainingLog]:
    """The log of the training in a folder; of a new one that fails before its first rollout nothing stays.

    Raises:
        EvalError: The folder holds something other than a training, or one that must be resumed.
    """
    is_there = _is_begun(folder)
    if folder.exists() and not is_there:  # files of a run killed before its first rollout
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else {folder.name}
        if any(name not in (NAME, SAVED) and not name.startswith(f".{SAVED}") for name in names):
            raise EvalError(f"{str(folder)!r} holds something other than a training: give another --output")
    if is_there and not resume:
        raise EvalError(f"{str(folder)!r} holds a training: continue it with --resume, or give another --output")
    with TrainingLog(folder) as log:
        try:
            yield log
        except Exception:
            if not is_there and not any(folder.glob("step-*/results.jsonl")):
                shutil.rmtree(folder, ignore_errors=True)
            raise


def _is_begun(folder: Path) -> bool:
    """True for the folder of a training with a finished step, or rollouts of its first one."""
    log = folder / NAME
    return log.is_file() and (log.stat().st_size > 0 or any(folder.glob("step-*")))


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Report which steps stay after an early end, and how to continue."""
    kept = "all steps that were saved stay"
    try:
        yield
    except KeyboardInterrupt as error:
        raise CommandError(f"interrupted; {kept}: continue with --resume", Exit.INTERRUPTED) from error
    except TrainingLogError as error:
        raise CommandError(error, Exit.REFUSED) from error
    except (CheckpointError, StoreError, OSError) as error:
        if isinstance(error, StoreError) and not isinstance(error.__cause__, OSError):
            raise
        raise CommandError(f"{error}; {kept}: fix the cause, then continue with --resume", Exit.REFUSED) from error


def _cut_to_saved(log: TrainingLog, folder: Path) -> int:
    """Take the folder back to its last saved step, and return its number; 0 without one.

    The rollouts of the step under way stay: the weights of the saved step sampled them.
    """
    saved = [step["step"] for step in log.steps if step["saved"] and (folder / f"checkpoint-{step['step']}").is_dir()]
    last = saved[-1] if saved else 0
    log.cut(last)
    for path in folder.iterdir():
        if (match := re.fullmatch(r"(step|checkpoint)-(\d+)", path.name)) and int(match[2]) > last + (
            match[1] == "step"
        ):
            shutil.rmtree(path)
    return last


def _keep_weights(checkpoint: Path, target: Path) -> None:
    """Make the folder of the model from that of the last checkpoint, at once; one that is there is replaced."""
    partial = target.with_name(f".{target.name}")
    shutil.rmtree(partial, ignore_errors=True)  # of a kill
    # Weights, configuration and tokenizer, without the trainer's state.
    shutil.copytree(
        checkpoint, partial, ignore=shutil.ignore_patterns("optimizer*", "scheduler*", "rng_state*", "train*")
    )
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)


# ---- the run ---------------------------------------------------------------------------------------------------------


class TrainingRun:
    """A training from the last saved step of its log to the last step.

    Args:
        given: The options of the command line, as far as they were given.

    Raises:
        EvalError: An option is wrong, or something cannot be made.
    """

    def __init__(
        self, options: EvalOptions, training: TrainOptions, log: TrainingLog, given: Mapping[str, Any]
    ) -> None:
        self.training, self.log, self.folder = training, log, log.path.parent
        self.options = replace(options, keep_tokens=True, keep_results=True)
        first = self._options_of(len(log.steps) + 1)
        evaluation = _evaluation_of(first, given)
        self.evaluator: Evaluator = evaluation.evaluator
        self.engine: Any = getattr(evaluation.models, "engine", None)
        if self.engine is None:
            raise EvalError(f"{options.env!r} makes its own models, so there is none to train: take a model factory")
        self.tasks = self._read_tasks()
        self._quiet, self._began, self._sampled = given["quiet"] or given["json"], time.monotonic(), 0.0
        self._counts: dict[str, int] = {}
        about: dict[str, Any] = {
            "project": options.project or "strands-env",
            "name": self.folder.name,
            "config": options.to_saved(),
        }
        self.trackers = [BackgroundTracker(make_tracker(kind, folder=self.folder, **about)) for kind in options.track]

    def _options_of(self, step: int) -> EvalOptions:
        seed = derive_seed(int(self.options.sampling_seed or 0), step)
        return replace(
            self.options,
            output_path=str(self.folder / f"step-{step}"),
            sampling_seed=seed,
            proof_seconds=self.options.proof_seconds if step == 1 else 0,
        )

    def _read_tasks(self) -> list[Action]:
        async def read() -> list[Action]:
            async with aclosing(stream(self.evaluator.load_dataset())) as actions:
                return [action async for action in actions]

        with catch_exits():
            tasks = with_names(asyncio.run(read()))
        if not tasks:
            raise EvalError(f"{self.options.benchmark!r} has no tasks: there is nothing to train on")
        return tasks

    def run(self) -> None:
        """Train. The engine is closed at the end."""
        from transformers.utils import logging as hf_logging

        from strands_sglang.backends.engine.loader import load_model

        hf_logging.set_verbosity_error()
        hf_logging.disable_progress_bar()
        training, start = self.training, len(self.log.steps)
        checkpoint = str(self.folder / f"checkpoint-{start}") if start else None
        loaded = load_model(self.engine.model_path)
        try:
            trainer = grpo_trainer(
                loaded.model,
                self.engine.tokenizer,
                self.sample,
                schedule=schedule(len(self.tasks), training, seed=int(self.options.sampling_seed or 0)),
                folder=self.folder,
                group=training.group,
                steps=training.steps,
                lr=training.lr,
                temperature=float((self.options.sampling or {}).get("temperature", 1.0)),
                save_every=training.save_every,
                seed=int(self.options.sampling_seed or 0) % 2**31,
                on_step=self.finish_step,
            )
            trainer.train(resume_from_checkpoint=checkpoint)
        finally:
            asyncio.run(self.engine.close())
            for tracker in self.trackers:
                tracker.finish(numbers_of(self.log.steps[-1]) if self.log.steps else {})

    def sample(self, prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        """The rollouts of a step, for TRL: every prompt is a task's place, a group in a row."""
        self._began = time.monotonic()
        step, places = trainer.state.global_step + 1, [int(place) for place in dict.fromkeys(prompts)]
        rollouts = asyncio.run(self._evaluate(step, trainer.model, [self.tasks[place] for place in places]))
        scored = [any(sample.is_scored for sample in rollout) for rollout in rollouts]
        self._counts = {"rollouts": len(rollouts), "unscored": scored.count(False)}
        if not any(scored):
            raise EvalError(f"no rollout of step {step} has a reward, so nothing can be learnt: see its rollouts with "
                            f"'strands-env report {self.folder / f'step-{step}'}'")  # fmt: skip
        self._sampled = time.monotonic() - self._began
        return rollout_output(rollouts)

    async def _evaluate(self, step: int, weights: Any, tasks: Sequence[Action]) -> list[list[TrainingSample]]:
        await self.engine.update_weights(weights, str(step - 1))
        options = self._options_of(step)
        evaluator = type(self.evaluator)(self.evaluator.env_factory, options=options, config=self.evaluator.config)
        results = await evaluator.run(list(tasks))
        rollouts: list[list[TrainingSample]] = []
        for task in tasks:
            samples = results.get(str(task.task_context.id), ())
            group = [samples_from_step(each.step_result, placement=None, rollout_id=each.id) for each in samples]
            # One that was lost for good is a row without loss or reward: TRL wants whole groups.
            rollouts += group + [[]] * (self.training.group - len(group))
        return rollouts

    def finish_step(self, step: int, logs: Mapping[str, float], is_saved: bool) -> None:
        """Write down a step, and show it."""
        now = time.monotonic()
        record = {
            "step": step,
            "reward": logs["reward"],
            **{name: logs.get(of) for name, of in _SHOWN.items()},
            **self._counts,
            "sampling_s": round(self._sampled, 3),
            "wall_s": round(now - self._began, 3),
            "time": time.time(),
            "saved": is_saved,
        }
        self.log.append(record)
        rows = SavedRun.of(self.folder / f"step-{step}").sample_rows(self.engine.tokenizer) if self.trackers else None
        for tracker in self.trackers:
            tracker.log(numbers_of(record), step=step)
            if rows is not None:
                tracker.log_table("samples", rows, step=step)
        if not self._quiet:
            reward, gap = format_number(logs["reward"]), logs["logprob_gap"]
            note(
                "train",
                f"step {step}/{self.training.steps}  reward {reward}  logprob gap {gap:.0e}  {record['wall_s']:.1f} s",
            )


def schedule(count: int, training: TrainOptions, *, seed: int) -> list[str]:
    """The places of the tasks of all steps, a step after the other, each `group` times for TRL's generations.

    Every pass over the tasks has its own order. A step's prompts differ; the remainder of a pass is left out.
    """
    size = min(training.prompts, count)
    places: list[int] = []
    for number in range(-(-training.steps // (count // size))):
        order = list(range(count))
        random.Random(f"{seed} {number}").shuffle(order)
        places += order[: count // size * size]
    return [str(place) for place in places[: training.steps * size]]
