"""The options of a run, and its evaluator, with every mistake reported before a model is loaded."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from strands_env.commands.recipe.factories import (
    DeferredModels,
    benchmark_of_data,
    load_evaluator,
    loading,
    make_env_factory,
    make_model_factory,
    takes_model,
)
from strands_env.commands.recipe.names import no_saved_run
from strands_env.commands.recipe.task_files import DataBenchmark, FunctionBenchmark
from strands_env.commands.recipe.trial import find_mistakes
from strands_env.core import ModelFactory
from strands_env.core.backends import BACKENDS
from strands_env.eval import Benchmark, EvalError, Evaluator, Executor, Progress
from strands_env.eval.errors import naming_errors
from strands_env.eval.options import CONTINUED, DATA, OPTIONS, REWARDS, SAMPLING, EvalOptions, flag_of
from strands_env.eval.saved import SavedRun
from strands_sglang import get_tool_parser
from strands_sglang.backends.engine.own_models import check_model_name
from strands_sglang.conversation.model_options import DEFAULTS, merge_options
from strands_sglang.exceptions import StrandsSGLangError
from strands_sglang.secret_names import lacks_secrets


def resolve(
    arguments: Mapping[str, Any],
    *,
    from_run: str | None = None,
    saved: Mapping[str, Any] | None = None,
    resume: bool = False,
) -> EvalOptions:
    """All options of a run: those given, then the saved run's, then those of the run to resume, then defaults.

    Args:
        arguments: Those of the command line by name; None stands for one that was not given.
        from_run: Saved run to repeat: its folder or its `.run.json`.
        saved: The options of a saved run, in place of `from_run`.
    """
    given = {name: value for name, value in arguments.items() if name in OPTIONS and value is not None}
    sampling = {name: value for name in SAMPLING if (value := arguments.get(name)) is not None}
    if own := {**given.pop("sampling", {}), **sampling}:
        given["sampling"] = own
    saved = dict(saved or {})
    if from_run is not None:
        run = SavedRun.of(from_run)
        if not run.document:
            raise no_saved_run(from_run)
        saved = run.saved_options
        if "benchmark" not in saved:
            raise EvalError(f"{from_run!r} was not saved by 'strands-env eval': its options are unknown")
    values = {**saved, **given}
    output = output_of(values)
    continued: dict[str, Any] = {}
    if resume and output is not None:
        before = SavedRun.of(output).saved_options
        continued = {name: before[name] for name in CONTINUED if before.get(name) is not None}
        values = {**continued, **values}
    earlier = {**continued, **saved}
    if "seed" in given:
        values["sampling_seed"] = given["seed"]
    if values.get("sampling_seed") is None:
        values["sampling_seed"] = secrets.randbits(31)
    data, saved_data = values.get("data_path"), continued.get("data_path")
    if data and saved_data and os.path.realpath(data) == os.path.realpath(saved_data):
        values["data_path"] = saved_data  # its spelling is part of the configuration
    if data and not values.get("benchmark"):
        values["benchmark"] = benchmark_of_data(str(data))
    for name, value in values.items():
        if name not in given and lacks_secrets(value):
            raise EvalError(f"the saved run does not hold the secrets of {flag_of(name)}: give that option again")
    if not values.get("benchmark"):
        if resume and "output_path" in given:
            raise EvalError(f"there is no run at {given['output_path']!r} to resume: name a benchmark to start one")
        raise EvalError("name a benchmark ('strands-env eval --list' shows them), --data FILE, or --from-run RUN")
    values["output_path"] = str(output_of(values))
    # A saved run has all its sampling parameters, a new one those of the benchmark.
    kind, base = load_evaluator(values["benchmark"]), earlier.get("sampling")
    if base is None and issubclass(kind, Benchmark):
        base = dict(kind.default_sampling)
        if values.get("n_samples_per_prompt", 1) > 1:
            base.pop("temperature", None)  # several samples are to differ
    values["sampling"] = {**(base or {}), **(given.get("sampling") or {})}
    return EvalOptions(**{"keep_tokens": True, "keep_results": False, **values})


def output_of(values: Mapping[str, Any]) -> Path | None:
    """Folder of the results; None if neither output nor benchmark is named."""
    if values.get("output_path"):
        return Path(values["output_path"])
    name = values.get("benchmark")
    if values.get("data_path") and name in (None, DATA, "harbor"):
        return Path("runs") / Path(values["data_path"]).stem
    return Path("runs") / re.sub(r"[^\w.+@-]+", ".", str(name)) if name else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """An evaluator, and the model factory of this process."""

    evaluator: Evaluator
    models: ModelFactory | None = None

    async def run(self) -> None:
        """Evaluate, and end the worker processes or the embedded engine, if there are any."""
        try:
            await self.evaluator.run()
        finally:
            for resource in (self.evaluator.executor, getattr(self.models, "engine", None)):
                if resource is not None:
                    await resource.close()


def build_evaluation(
    options: EvalOptions,
    given: Mapping[str, Any],
    *,
    resume: bool,
    note: Callable[[str], object],
    announce: Callable[[str | None], AbstractContextManager[None]],
    progress: Progress | None = None,
    loads: bool = True,
) -> Evaluation:
    """Build the evaluator.

    Args:
        options: All options, as `resolve` gives them.
        given: The options that this run was given itself: one of them that would have no effect is refused.
        note: Takes one sentence that is worth knowing and no error.
        announce: Takes what is being done, or None, and surrounds it.
        loads: Load the model; False is for a plan.

    Raises:
        EvalError: Options are wrong, which is said of all of them at once, or something cannot be made.
        StoreError: The results cannot be written or continued.
        BackendError: The server does not answer.
    """
    kind = load_evaluator(str(options.benchmark))
    if wrong := list(complaints(options, given, kind)):
        raise EvalError("\n".join(wrong))
    if options.n_samples_per_prompt > 1 and (options.sampling or {}).get("temperature") == 0:
        note("at temperature 0 the samples of a prompt are alike; pass@k says no more than pass@1")

    def load() -> ModelFactory:
        with announce(loading(options)):
            return make_model_factory(options)

    # Models are loaded last: every other mistake has been reported by then.
    models, is_inline, makes_own_models = (
        DeferredModels(load),
        options.executor == "inline",
        not takes_model(options.env),
    )
    env_factory: Any = dict
    if options.env is None or (is_inline and not makes_own_models):  # a worker makes it, or it loads its own model
        env_factory = make_env_factory(options, models)
    executor: Executor | None = None
    if not is_inline:
        from strands_env.eval.executors import ProcessExecutor, RayExecutor

        make_executor = ProcessExecutor if options.executor == "processes" else RayExecutor
        make = "strands_env.commands.recipe.factories:make_env_factory"
        executor = make_executor(make, {"options": options}, n_workers=options.workers or 2)
    evaluator = kind(
        env_factory if is_inline else None,
        executor=executor,
        options=options,
        config=options.identity(),
        progress=progress,
    )
    _check_data(evaluator, options)
    _check_output(evaluator, resume=resume, note=note)
    if not is_inline or (makes_own_models and not loads):
        return Evaluation(evaluator=evaluator)
    if makes_own_models:
        with announce(loading(options)):
            evaluator.env_factory = make_env_factory(options)
    if mistakes := find_mistakes(evaluator.env_factory):
        raise EvalError(f"{'; '.join(mistakes)} ('strands-env check' shows more)")
    return Evaluation(evaluator=evaluator, models=models.load() if loads and not makes_own_models else None)


def complaints(options: EvalOptions, given: Mapping[str, Any], kind: type[Evaluator]) -> Iterator[str]:
    """All that is wrong with the options themselves, a sentence each; nothing is read, made or loaded for it."""
    backend = BACKENDS[options.backend]
    ignored = dict(backend.ignores)
    if backend.name != "scripted":
        ignored["script"] = "it is for --backend scripted"
    if not issubclass(kind, Benchmark):
        why = f"{kind.__name__} is not a Benchmark, and reads its data itself"
        ignored |= {"data_path": why, "limit": why}
    if not issubclass(kind, DataBenchmark):
        ignored["columns"] = "it is for --data without a benchmark"
    if issubclass(kind, FunctionBenchmark):
        ignored["data_path"] = f"the tasks come from the function {options.benchmark!r}, which reads its data itself"
    for name, reason in ignored.items():
        if given.get(name) is not None:
            yield f"{flag_of(name)} would have no effect: {reason}; leave it out"
    if (missing := backend.missing({"base_url": options.base_url, "model_id": options.model_id})) is not None:
        yield missing
    if options.executor == "inline" and options.workers is not None:
        yield "--workers is for --executor processes or ray"
    checks: list[Callable[[], object]] = [partial(backend.check, options.sampling or {})]
    for model in (options.model_id if backend.name == "local" else None, options.tokenizer):
        if model is not None:
            checks.append(partial(check_model_name, model))
    if options.tool_parser is not None and "tool_parser" not in ignored:
        checks.append(partial(get_tool_parser, options.tool_parser))
    if backend.has_tokens:
        checks.append(partial(merge_options, DEFAULTS, options.model_options or {}))
    for check in checks:  # the model's constructor says the same, later
        try:
            check()
        except (TypeError, ValueError, StrandsSGLangError) as error:
            yield str(error)


def _check_output(evaluator: Evaluator, *, resume: bool, note: Callable[[str], object]) -> None:
    assert evaluator.paths is not None
    path = evaluator.paths.results
    check_writable(path)
    has_results = path.is_file() and path.stat().st_size > 0
    if has_results and not resume:
        raise EvalError(f"{str(path)!r} is not empty: continue its results with --resume, or give another --output")
    if has_results:
        evaluator.run_config().compare()
    if resume and not path.exists() and not evaluator.paths.run.exists():
        note(f"there is nothing to resume at {str(path)!r}: a new run is started")


def _check_data(evaluator: Evaluator, options: EvalOptions) -> None:
    """Read local tasks, so that their errors are reported before anything is made or shown."""
    tasks = evaluator.known_tasks()
    known_reward = options.reward is None or options.reward in REWARDS
    needs_answer = isinstance(evaluator, DataBenchmark) and options.env is None and known_reward
    if needs_answer and tasks and all(task.task_context.ground_truth is None for task in tasks):
        raise EvalError(
            f"{options.data_path!r} has no column for the answer, so no reward could score it: name the column with "
            "--columns answer=NAME, or give a reward of your own with --reward or --env"
        )


def check_writable(path: Path) -> None:
    """Check that a file can be written, before long work begins; nothing is left behind."""
    with naming_errors("write to", path):
        if path.is_file():
            path.open("ab").close()
        else:
            TemporaryFile(dir=next(folder for folder in path.parents if folder.exists())).close()
