"""`strands-env eval`: run a benchmark."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import logging
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from strands_env.backends import BACKENDS
from strands_env.commands.arguments import add_arguments, output_of, resolve
from strands_env.commands.progress import TrackedProgress, announced, make_display
from strands_env.commands.runs import SavedRun, prices_of
from strands_env.commands.summary import nothing_scored, summary_lines
from strands_env.commands.terminal import check_writable, complain, format_number, say
from strands_env.core import ModelFactory, TerminationReason
from strands_env.core.garbage import rare_collections, tune_garbage_collection
from strands_env.eval import (
    ConfigMismatchError,
    EvalError,
    Evaluator,
    RetryPolicy,
    RunSummary,
    ScoreTable,
    StoreError,
    TooManyFailuresError,
    summarize,
)
from strands_env.eval.metrics import flat_metrics
from strands_env.eval.metrics.summary import without_nan
from strands_env.eval.run.benchmark import Benchmark
from strands_env.eval.run.groups import read_scores
from strands_env.eval.run.sampling import Executor
from strands_env.eval.store import StorePaths
from strands_env.recipe.environments import check_benchmark_environment, make_env_factory, takes_model
from strands_env.recipe.models import DeferredModels, check_named_models, check_sampling, loading, make_model_factory
from strands_env.recipe.objects import HOOK, REWARDS, load_evaluator, load_object, load_reward
from strands_env.recipe.tasks import DataBenchmark, FunctionBenchmark, columns_of
from strands_env.testing.dry_run import Level, quick_findings
from strands_env.trackers import BackgroundTracker, TrackerError, make_tracker, numbers_of
from strands_sglang import get_tool_parser
from strands_sglang.command_line import Exit
from strands_sglang.drift import DriftTotals
from strands_sglang.exceptions import SGLangClientError

logger = logging.getLogger(__name__)

__all__ = ["add_arguments", "run"]

SAME_FAILURES = 10
"""First samples that have to fail alike for a run to be given up."""
DRIFT_TOKENS = 1_000_000
"""Tokens up to which the summary says what re-tokenising would have changed; `drift` has no limit."""


def run(args: argparse.Namespace) -> int:
    """Run it."""
    logging.basicConfig(level=logging.WARNING if args.verbose else logging.ERROR, format="%(name)s: %(message)s")
    if not args.verbose:
        logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)  # its retries; the error says the same
        logging.getLogger("strands").setLevel(logging.CRITICAL)  # calls of unknown tools are data, and in the results
    sys.path.insert(0, "")  # hooks in the folder one is in
    try:
        options = resolve(args)
        evaluator, executor, engine = _build(options, args, quiet=args.quiet or args.json)
        trackers = _track(evaluator, options)
    except (StoreError, ConfigMismatchError) as error:
        return _fail(error, Exit.REFUSED)
    except SGLangClientError as error:
        return _fail(error, Exit.FAILED)
    except (EvalError, ValueError, TypeError, OSError) as error:
        return _fail(error, Exit.USAGE)
    assert evaluator.paths is not None
    try:
        with _no_empty_run(evaluator.paths), _tuned_garbage_collection():
            status = asyncio.run(_evaluate(evaluator, executor, engine))
    except (StoreError, ConfigMismatchError) as error:
        is_disk = isinstance(error.__cause__, OSError)
        saved = "; what was written before stays: make room, then continue with --resume" if is_disk else ""
        return _fail(f"{error}{saved}", Exit.REFUSED)
    except TooManyFailuresError as error:
        status = _fail(error, Exit.GAVE_UP)
    except Exception as error:
        if not (isinstance(error, EvalError) or getattr(error, "is_fatal", False)):
            raise
        return _fail(error, Exit.USAGE)
    return _show(evaluator, status, options, as_json=args.json, trackers=trackers)


@contextlib.contextmanager
def _no_empty_run(paths: StorePaths) -> Iterator[None]:
    """Remove the files of a run that failed before its first sample, unless they were there before."""
    was_there, had_folder = paths.results.exists() or paths.run.exists(), paths.results.parent.exists()
    try:
        yield
    except EvalError:
        if not was_there and not (paths.results.exists() and paths.results.stat().st_size):
            for path in (paths.results, paths.tokens, paths.run):
                path.unlink(missing_ok=True)
            if not had_folder:
                with contextlib.suppress(OSError):  # a tracker may have written into it
                    paths.results.parent.rmdir()
        raise


@contextlib.contextmanager
def _tuned_garbage_collection() -> Iterator[None]:
    """Tune it for the run, and restore it for a program that called this command."""
    with rare_collections():
        tune_garbage_collection()
        try:
            yield
        finally:
            gc.unfreeze()


def _build(options: dict[str, Any], args: argparse.Namespace, *, quiet: bool) -> tuple[Evaluator, Executor | None, Any]:
    kind = load_evaluator(options["benchmark"])
    _refuse_ignored(options, args, kind)
    sampling = _sampling(options, kind)
    model = {"backend": options["backend"], "sampling_params": sampling}
    model |= {name: options[name] for name in ("model_id", "base_url", "tokenizer", "tool_parser")}
    if options["backend"] == "scripted":
        model |= {"script": options["script"], "script_delay": options["script_delay"]}
    recipe = {"benchmark": options["benchmark"], "env": options["env"], "env_config": options["env_config"]}
    recipe |= {"reward": options["reward"], "model": model}
    is_inline = options["executor"] == "inline"
    if is_inline and options["workers"] is not None:
        raise EvalError("--workers is for --executor processes or ray")
    check_named_models(options["backend"], options["model_id"], options["tokenizer"])
    if options["tool_parser"] is not None:
        get_tool_parser(options["tool_parser"])
    check_sampling(options["backend"], sampling)
    if options["env"] is not None:
        load_object(options["env"], HOOK)  # a wrong name is reported here, in one sentence
    else:
        check_benchmark_environment(options["benchmark"], options["env_config"])
    compared = {name: value for name, value in model.items() if name not in ("base_url", "script_delay")}
    config = {
        "model": compared,
        "environment": _given(hook=options["env"], config=options["env_config"], reward=options["reward"]),
        "data": _given(path=options["data"], seed=options["seed"], columns=options["columns"]),
        "env_factory": options["env"] or options["benchmark"],
    }
    settings: dict[str, Any] = {
        "sampling_seed": options["sampling_seed"],
        "n_samples_per_prompt": options["n_samples_per_prompt"],
        "max_concurrency": options["max_concurrency"],
        "keep_tokens": not options["no_tokens"],
        "output_path": output_of(options),
        "config": config,
        "about": {"options": options, "seed": options["seed"]},
        "retry": RetryPolicy(max_attempts=options["max_attempts"]),
        "group_policy": options["group_policy"],
        "max_failures": options["max_failures"],
        "max_same_failures": SAME_FAILURES,
        "sample_timeout": options["sample_timeout"],
        "reward_threshold": options["reward_threshold"],
        "keep_results": False,
        "progress": make_display(quiet=quiet),
    }
    if issubclass(kind, Benchmark):
        settings |= {"data_path": options["data"], "limit": options["limit"], "seed": options["seed"]}
    if issubclass(kind, DataBenchmark):
        settings["columns"] = columns_of(options["columns"])
    if options["reward"] is not None:
        load_reward(options["reward"])
    # The model is loaded last: every other mistake has been reported by then.
    evaluator = kind(_not_made, **settings)
    _check_data(evaluator, options)
    _check_output(evaluator, resume=args.resume)
    if not is_inline:
        evaluator.executor, evaluator.env_factory = _executor(options, recipe), None
        return evaluator, evaluator.executor, None
    if not takes_model(options["env"]):  # the hook makes its own
        with announced(loading(options), quiet=quiet):
            evaluator.env_factory = make_env_factory(**recipe)
        _check_environment(evaluator.env_factory)
        return evaluator, None, _engine_of(evaluator.env_factory)

    def load() -> ModelFactory:
        with announced(loading(options), quiet=quiet):
            return make_model_factory(**model)

    models = DeferredModels(load)
    evaluator.env_factory = make_env_factory(**recipe, models=models)
    _check_environment(evaluator.env_factory, models.load)
    return evaluator, None, getattr(models.load(), "engine", None)


def _track(evaluator: Evaluator, options: dict[str, Any]) -> list[BackgroundTracker]:
    """Start the requested trackers and report the progress to them.

    Raises:
        EvalError: One does not start.
    """
    assert evaluator.paths is not None
    folder = evaluator.paths.results.parent
    about = {name: value for name, value in options.items() if value is not None and name not in ("track", "project")}
    project = options["project"] or evaluator.benchmark_name or "strands-env"
    try:
        trackers = [
            BackgroundTracker(make_tracker(kind, project=project, name=folder.name, config=about, folder=folder))
            for kind in options["track"] or ()
        ]
    except TrackerError as error:
        raise EvalError(str(error)) from error
    if trackers:
        evaluator.progress = TrackedProgress(evaluator.progress, trackers)
    return trackers


def _given(*, reward: str | None = None, columns: str | None = None, **values: Any) -> dict[str, Any]:
    """Part of a configuration; newer options are in it only if given, so that older runs still match."""
    later = {"reward": reward, "columns": columns}
    return {**values, **{name: value for name, value in later.items() if value is not None}}


def _not_made() -> NoReturn:
    raise AssertionError("the environment is made after the checks")


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
    if options["n_samples_per_prompt"] > 1 and sampling.get("temperature") == 0:
        complain("eval", "note: at temperature 0 the samples of a prompt are alike; pass@k says no more than pass@1")
    return sampling


def _refuse_ignored(options: dict[str, Any], args: argparse.Namespace, kind: type[Evaluator]) -> None:
    """Refuse options given here that would have no effect, and missing ones."""
    backend = options["backend"]
    if backend == "scripted":
        why = "the backend 'scripted' has no model and no server"
        ignored = dict.fromkeys(("model_id", "base_url", "tokenizer", "tool_parser"), why)
    else:
        if (missing := BACKENDS[backend].missing(options)) is not None:
            raise EvalError(missing)
        why = "it is for --backend scripted"
        ignored = {"script": why, "script_delay": why, **BACKENDS[backend].ignores}
    if not issubclass(kind, Benchmark):
        why = f"{kind.__name__} is not a Benchmark, and reads its data itself"
        ignored |= {"data": why, "limit": why}
    if not issubclass(kind, DataBenchmark):
        ignored["columns"] = "it is for --data without a benchmark"
    if issubclass(kind, FunctionBenchmark):
        ignored["data"] = f"the tasks come from the function {options['benchmark']!r}, which reads its data itself"
    for name, reason in ignored.items():
        if getattr(args, name) is not None:
            raise EvalError(f"--{name.replace('_', '-')} would have no effect: {reason}; leave it out")


def _executor(options: dict[str, Any], recipe: dict[str, Any]) -> Executor:
    from strands_env.distributed import ProcessExecutor, RayExecutor

    make = "strands_env.recipe.environments:make_env_factory"
    workers = options["workers"] or 2
    if options["executor"] == "processes":
        return ProcessExecutor(make, recipe, n_workers=workers)
    try:
        return RayExecutor(make, recipe, n_workers=workers)
    except ImportError as error:
        raise EvalError(str(error)) from error


def _engine_of(factory: Any) -> Any:
    """The embedded engine behind an environment factory, to close it at the end."""
    for cell in getattr(factory, "__closure__", None) or ():
        with contextlib.suppress(ValueError):
            if engine := getattr(cell.cell_contents, "engine", None):
                return engine
    return None


def _check_environment(env_factory: Any, load: Callable[[], Any] | None = None) -> None:
    """Refuse an environment whose methods, tools or reward are of the wrong kind: every sample would fail alike.

    Args:
        env_factory: The factory.
        load: Loads the model, which is done where nothing is wrong without it.

    Raises:
        EvalError: Says what is wrong.
    """
    findings = quick_findings(env_factory, load)
    if errors := [finding.what for finding in findings if finding.level is Level.ERROR]:
        raise EvalError(f"{'; '.join(errors)} ('strands-env check' shows more)")
    for finding in findings:
        complain("eval", f"note: {finding.what}")


def _check_output(evaluator: Evaluator, *, resume: bool) -> None:
    assert evaluator.paths is not None
    path = evaluator.paths.results
    data = getattr(evaluator, "data_path", None)
    if data is not None and path.exists() and Path(data).exists() and path.samefile(data):
        raise EvalError(f"--output is {str(path)!r}, the data: give a folder for the results, such as runs/first")
    check_writable(path, option="--output")
    has_results = path.is_file() and path.stat().st_size > 0
    if has_results and not evaluator.paths.run.exists() and not _are_results(path):
        raise EvalError(
            f"--output: {str(path)!r} exists and holds no results of a run: give a folder, such as runs/first"
        )
    if has_results and not resume:
        raise EvalError(f"{str(path)!r} holds results already: continue them with --resume, or give another --output")
    if has_results:
        evaluator.run_config().compare()
    if resume and not path.exists() and not evaluator.paths.run.exists():
        complain("eval", f"note: there is nothing to resume at {str(path)!r}: a new run is started")


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


def _are_results(path: Path) -> bool:
    try:
        read_scores(path)
    except StoreError:
        return False
    return True


async def _evaluate(evaluator: Evaluator, executor: Executor | None, engine: Any) -> Exit:
    task = asyncio.ensure_future(evaluator.run())
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        if interrupted:
            task.cancel()
        else:
            evaluator.stop()
        interrupted = True

    with _signals(interrupt):
        try:
            await task
        except asyncio.CancelledError:
            if not interrupted:
                raise
        finally:
            if executor is not None:
                await executor.close()
            if engine is not None:
                await engine.close()
    return Exit.INTERRUPTED if interrupted else Exit.OK


@contextlib.contextmanager
def _signals(interrupt: Any) -> Iterator[None]:
    """Ctrl-C and SIGTERM stop the run, a second one cancels it."""
    loop = asyncio.get_running_loop()
    caught = []
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C cancels at once
            loop.add_signal_handler(number, interrupt)
            caught.append(number)
    try:
        yield
    finally:
        for number in caught:
            loop.remove_signal_handler(number)


def _show(
    evaluator: Evaluator,
    status: Exit,
    options: dict[str, Any],
    *,
    as_json: bool,
    trackers: Sequence[BackgroundTracker],
) -> int:
    assert evaluator.paths is not None
    path = evaluator.paths.results
    try:
        table = read_scores(path)
    except FileNotFoundError:  # interrupted before it began
        complain("eval", f"nothing was run, and there are no results at {str(path)!r}")
        return status
    except StoreError as error:
        return _fail(error, Exit.REFUSED)
    summary = summarize(table, reward_threshold=options["reward_threshold"], prices=prices_of(options))
    metrics, failure = _own_metrics(evaluator, table)
    for tracker in trackers:
        tracker.finish(numbers_of({**summary.to_dict(), "metrics": metrics}))
    complaint = None
    if status is Exit.OK:
        status, complaint = _ending(evaluator, summary, failure, options)
    if as_json:
        shown = {"results": str(path), "status": status.name.lower(), **summary.to_dict()}
        say(json.dumps({**shown, "metrics": without_nan(metrics)}, default=str))
    else:
        saved = SavedRun.of(path)
        drift = _drift(saved) if evaluator.keep_tokens else None
        title = evaluator.benchmark_name or options["benchmark"]
        say("\n".join(summary_lines(summary, title=title, wall_s=saved.wall_s, drift=drift)))
        for name, value in metrics.items():
            say(f"{name:<11} {format_number(value) if isinstance(value, int | float) else value}")
        say(f"results     {path}")
        if status is Exit.INTERRUPTED:
            say("interrupted; everything finished is saved: continue with --resume")
        else:
            say(f"look at it  strands-env report {path.parent}")
    left_out = getattr(evaluator, "rows_left_out", 0)
    if left_out:
        read = getattr(evaluator, "rows_read", 0)
        complain("eval", f"{left_out} of {read} rows left out: they lack what the benchmark needs (-v names them)")
    if complaint is not None:
        complain("eval", complaint)
    return status


def _drift(saved: SavedRun) -> DriftTotals | None:
    """What re-tokenising would have changed, if the tokenizer is loaded anyway and the run is not too large."""
    backend = BACKENDS.get(saved.options.get("backend") or "")
    if backend is None or not backend.has_tokens:
        return None
    tokenizer = saved.tokenizer().tokenizer
    return None if tokenizer is None else saved.drift(tokenizer, budget=DRIFT_TOKENS)


def _ending(
    evaluator: Evaluator, summary: RunSummary, failure: str | None, options: dict[str, Any]
) -> tuple[Exit, str | None]:
    """The exit status of a finished run, and a complaint, if there is one."""
    if not summary.samples:
        return Exit.USAGE, f"{options['benchmark']!r} has no tasks: nothing was run"
    if failure is not None:
        return Exit.UNEXPECTED, f"the run is saved, but its compute_metrics raised: {failure}"
    if evaluator.lost:  # of those asked for; the file may hold others
        lost = "1 sample was" if evaluator.lost == 1 else f"{evaluator.lost} samples were"
        if not summary.scored and len(summary.errors) == 1 and not _may_pass(summary):
            return Exit.INCOMPLETE, (
                f"all {summary.samples} samples failed alike: {evaluator.last_loss}; fix the cause, then --resume runs "
                "them again"
            )
        return Exit.INCOMPLETE, f"{lost} lost, the last one: {evaluator.last_loss}; try again with --resume"
    assert evaluator.paths is not None
    return (Exit.OK, None) if summary.scored else nothing_scored(evaluator.paths.results, summary.samples)


def _may_pass(summary: RunSummary) -> bool:
    """Whether the cause of lost samples may pass by itself: the server or the network, not the user's code."""
    lost = TerminationReason.CONNECTION_ERROR, TerminationReason.THROTTLED, TerminationReason.ABORTED
    return bool(set(summary.terminations) & {reason.value for reason in lost})


def _own_metrics(evaluator: Evaluator, table: ScoreTable) -> tuple[dict[str, Any], str | None]:
    """Metrics of the evaluator's class or its `metrics_fns` that differ from the usual ones, and what they raised."""
    if type(evaluator).compute_metrics is Evaluator.compute_metrics and not evaluator.metrics_fns:
        return {}, None
    try:
        found: Any = evaluator.compute_metrics(evaluator.load_results())
        metrics: dict[str, Any] = {str(name): value for name, value in dict(found).items()}
    except Exception as error:  # the user's code
        logger.warning("evaluator=<%s> | compute_metrics raised", evaluator.benchmark_name, exc_info=True)
        return {}, f"{type(error).__name__}: {error} (-v shows where)"
    usual = flat_metrics(table, n=evaluator.n_samples_per_prompt, reward_threshold=evaluator.reward_threshold)
    return {name: value for name, value in metrics.items() if str(value) != str(usual.get(name))}, None


def _fail(error: BaseException | str, status: Exit) -> Exit:
    complain("eval", error)
    return status
