"""An evaluator from the options of a run, with every mistake reported before a model is loaded."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from strands_env.backends import BACKENDS
from strands_env.core import ModelFactory
from strands_env.eval import Benchmark, EvalError, Evaluator, RetryPolicy
from strands_env.eval.errors import naming_errors
from strands_env.recipe.dry_run import find_mistakes
from strands_env.recipe.environments import make_env_factory, takes_model
from strands_env.recipe.models import DeferredModels, check_named_models, loading, make_model_factory
from strands_env.recipe.names import REWARDS
from strands_env.recipe.objects import load_evaluator
from strands_env.recipe.options import output_of
from strands_env.recipe.recording import Recorder, Replay
from strands_env.recipe.tasks import DataBenchmark, FunctionBenchmark, columns_of
from strands_sglang import get_tool_parser
from strands_sglang.exceptions import StrandsSGLangError


class Evaluation:
    """An evaluator, and the model factory of this process, if there is one."""

    def __init__(self, evaluator: Evaluator, models: ModelFactory | None = None) -> None:
        self.evaluator = evaluator
        self._engine = getattr(models, "engine", None)

    async def close(self) -> None:
        """End the worker processes and the embedded engine, if there are any."""
        if self.evaluator.executor is not None:
            await self.evaluator.executor.close()
        if self._engine is not None:
            await self._engine.close()


def build_evaluation(
    options: dict[str, Any],
    given: dict[str, Any],
    *,
    resume: bool,
    note: Callable[[str], object],
    announce: Callable[[str | None], AbstractContextManager[None]],
    tape: Recorder | Replay | None = None,
) -> Evaluation:
    """Build the evaluator.

    Args:
        options: All options, as `resolve` gives them.
        given: The options that this run was given itself: one of them that would have no effect is refused.
        note: Takes one sentence that is worth knowing and no error.
        announce: Takes what is being done, or None, and surrounds it.
        tape: Records the run, or stands in for its backend and its tasks.

    Raises:
        EvalError: An option is wrong, or something cannot be made.
        StoreError: The results cannot be written or continued.
        BackendError: The server does not answer.
    """
    kind = load_evaluator(options["benchmark"])
    _refuse_ignored(options, given, kind, is_replay=isinstance(tape, Replay))
    sampling = _sampling(options, kind)
    if options["n_samples_per_prompt"] > 1 and sampling.get("temperature") == 0:
        note("at temperature 0 the samples of a prompt are alike; pass@k says no more than pass@1")
    # Plain values all through: worker processes and saved runs build the same from them.
    model = model_options(options) | {"sampling_params": sampling}
    recipe = {name: options[name] for name in ("benchmark", "env", "env_config", "reward")} | {"model": model}
    is_inline, makes_own_models = options["executor"] == "inline", not takes_model(options["env"])
    if isinstance(tape, Recorder) and not BACKENDS[options["backend"]].has_tokens:
        raise EvalError(f"--record: the backend {options['backend']!r} has no token data to record")
    if tape is not None and (makes_own_models or not is_inline):
        raise EvalError("--record: only models that this process makes can be recorded, with --executor inline")
    if is_inline and options["workers"] is not None:
        raise EvalError("--workers is for --executor processes or ray")
    # Before anything is loaded: what makes the model says the same, later.
    check_named_models(options["backend"], options["model_id"], options["tokenizer"])
    if options["tool_parser"] is not None:
        get_tool_parser(options["tool_parser"])
    try:
        BACKENDS[options["backend"]].check(sampling)
    except StrandsSGLangError as error:
        raise EvalError(str(error)) from error

    def load() -> ModelFactory:
        with announce(None if isinstance(tape, Replay) else loading(options)):
            return make_model_factory(**model, tape=tape)

    # The model is loaded last: every other mistake has been reported by then.
    models = DeferredModels(load)
    evaluator = kind(lambda: None, **_settings(options, kind, model))
    if options["env"] is None:  # also where workers make it: the benchmark may lack a package
        evaluator.env_factory = make_env_factory(**recipe, models=models)
    if tape is not None:  # the reward may ask the backend
        evaluator.proof_seconds = 0.0
    if isinstance(tape, Replay):
        evaluator.load_dataset = lambda: tape.tasks  # type: ignore[method-assign]
    else:
        _check_data(evaluator, options)
    if isinstance(tape, Recorder):
        load_tasks = evaluator.load_dataset
        evaluator.load_dataset = lambda: tape.note_tasks(load_tasks())  # type: ignore[method-assign]
    _check_output(evaluator, resume=resume, note=note)
    if is_inline and options["env"] is not None:
        with announce(loading(options) if makes_own_models else None):
            evaluator.env_factory = make_env_factory(**recipe, models=models)
    if not is_inline:
        from strands_env.distributed import ProcessExecutor, RayExecutor

        make_executor = ProcessExecutor if options["executor"] == "processes" else RayExecutor
        make = "strands_env.recipe.environments:make_env_factory"
        evaluator.executor = make_executor(make, recipe, n_workers=options["workers"] or 2)
        evaluator.env_factory = None
        return Evaluation(evaluator)
    if mistakes := find_mistakes(evaluator.env_factory):
        raise EvalError(f"{'; '.join(mistakes)} ('strands-env check' shows more)")
    return Evaluation(evaluator, None if makes_own_models else models.load())


def model_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a run that `make_model_factory` takes, without sampling parameters."""
    names = ["backend", "model_id", "base_url", "tokenizer", "tool_parser"]
    if options.get("backend") == "scripted":
        names.append("script")
    return {name: options[name] for name in names if name in options}


def _settings(options: dict[str, Any], kind: type[Evaluator], model: dict[str, Any]) -> dict[str, Any]:
    config = {
        "model": {name: value for name, value in model.items() if name != "base_url"},
        "environment": {"hook": options["env"], "config": options["env_config"], "reward": options["reward"]},
        "data": {"path": options["data"], "seed": options["seed"], "columns": options["columns"]},
        "env_factory": options["env"] or options["benchmark"],
    }
    settings: dict[str, Any] = {
        "sampling_seed": options["sampling_seed"],
        "n_samples_per_prompt": options["n_samples_per_prompt"],
        "max_concurrency": options["max_concurrency"],
        "keep_tokens": not options["no_tokens"],
        "output_path": output_of(options),
        "config": config,
        "about": {"options": options},
        "retry": RetryPolicy(max_attempts=options["max_attempts"]),
        "group_policy": options["group_policy"],
        "max_failures": options["max_failures"],
        "sample_timeout": options["sample_timeout"],
        "reward_threshold": options["reward_threshold"],
        "keep_results": False,
        "proof_seconds": options.get("proof_seconds") or 0.0,
    }
    if issubclass(kind, Benchmark):
        settings |= {"data_path": options["data"], "limit": options["limit"], "seed": options["seed"]}
    if issubclass(kind, DataBenchmark):
        settings["columns"] = columns_of(options["columns"])
    return settings


def _sampling(options: dict[str, Any], kind: type[Evaluator]) -> dict[str, Any]:
    """The benchmark's sampling parameters, or those of the continued run, under what is given here."""
    sampling: dict[str, Any] = {}
    if issubclass(kind, Benchmark) and not options.get("sampling_is_whole"):
        sampling |= kind.default_sampling
        if options["n_samples_per_prompt"] > 1:
            sampling.pop("temperature", None)  # several samples are to differ
    sampling |= options["sampling"] or {}
    for name in ("temperature", "top_p", "top_k", "max_new_tokens"):
        if options[name] is not None:
            sampling[name] = options[name]
    return sampling


def _refuse_ignored(options: dict[str, Any], given: dict[str, Any], kind: type[Evaluator], *, is_replay: bool) -> None:
    """Refuse options given here that would have no effect, and missing ones."""
    backend = BACKENDS[options["backend"]]
    ignored = dict(backend.ignores)
    if backend.name != "scripted":
        ignored["script"] = "it is for --backend scripted"
    if not issubclass(kind, Benchmark):
        why = f"{kind.__name__} is not a Benchmark, and reads its data itself"
        ignored |= {"data": why, "limit": why}
    if not issubclass(kind, DataBenchmark):
        ignored["columns"] = "it is for --data without a benchmark"
    if issubclass(kind, FunctionBenchmark):
        ignored["data"] = f"the tasks come from the function {options['benchmark']!r}, which reads its data itself"
    for name, reason in ignored.items():
        if given.get(name) is not None:
            raise EvalError(f"--{name.replace('_', '-')} would have no effect: {reason}; leave it out")
    if not is_replay and (missing := backend.missing(options)) is not None:
        raise EvalError(missing)


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


def _check_data(evaluator: Evaluator, options: dict[str, Any]) -> None:
    """Read local tasks, so that their errors are reported before anything is made or shown."""
    if not isinstance(evaluator, Benchmark):
        return
    first = evaluator.check_data()
    known_reward = options["reward"] is None or options["reward"] in REWARDS
    needs_answer = isinstance(evaluator, DataBenchmark) and options["env"] is None and known_reward
    if needs_answer and first is not None and first.task_context.ground_truth is None:
        raise EvalError(
            f"{options['data']!r} has no column for the answer, so no reward could score it: name the column with "
            "--columns answer=NAME, or give a reward of your own with --reward or --env"
        )


def check_writable(path: Path) -> None:
    """Try whether a file can be written, before what takes long begins; nothing is left behind."""
    with naming_errors("write to", path):
        if path.is_file():
            path.open("ab").close()
        else:
            TemporaryFile(dir=next(folder for folder in path.parents if folder.exists())).close()
