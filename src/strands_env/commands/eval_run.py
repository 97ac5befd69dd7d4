"""The run of `strands-env eval`, and its result; its imports are loaded with this module."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from strands_env.commands.display import TrackedProgress, make_display, nothing_scored, summary_lines
from strands_env.commands.recipe.evaluation import Evaluation, build_evaluation, resolve
from strands_env.commands.recipe.plan import plan_lines, plan_of
from strands_env.commands.terminal import announce, explain_errors, format_number, note, show, write_to
from strands_env.core import TerminationReason
from strands_env.core.backends import BACKENDS
from strands_env.core.garbage import rare_collections
from strands_env.core.trackers import BackgroundTracker, make_tracker, numbers_of
from strands_env.eval import (
    EvalError,
    Evaluator,
    RunSummary,
    ScoreTable,
    StoreError,
    TooManyFailuresError,
    summarize,
)
from strands_env.eval.errors import NoResultsError
from strands_env.eval.metrics import flat_metrics
from strands_env.eval.metrics.summary import without_nan
from strands_env.eval.saved import SavedRun
from strands_env.eval.store import StorePaths
from strands_sglang.command_line import CommandError, Exit

logger = logging.getLogger(__name__)

_PASSING = frozenset({TerminationReason.CONNECTION_ERROR, TerminationReason.THROTTLED, TerminationReason.ABORTED})
DRIFT_TOKENS = 1_000_000
"""Tokens in which the summary looks for drift; `drift` has no limit."""


def run_benchmark(arguments: Mapping[str, Any]) -> int:
    """Run it, or show the plan of the run."""
    resume, as_json = arguments["resume"], arguments["json"]
    with explain_errors(ValueError, TypeError, OSError):
        quiet = arguments["quiet"] or as_json
        options = resolve(arguments, from_run=arguments["from_run"], resume=resume)
        evaluation = build_evaluation(
            options,
            arguments,
            resume=resume,
            loads=not arguments["dry_run"],
            note=lambda text: note("eval", f"note: {text}"),
            announce=partial(announce, quiet=quiet),
            progress=make_display(quiet=quiet),
        )
        evaluator = evaluation.evaluator
        plan = plan_of(evaluator, options) if arguments["dry_run"] else None
        trackers = [] if plan else _track(evaluator)
    if plan:
        show(plan, plan_lines(plan), as_json=as_json)
        return Exit.OK
    assert evaluator.paths is not None
    try:
        with _no_empty_run(evaluator.paths), rare_collections(is_tuned=True):
            status = asyncio.run(_evaluate(evaluation))
    except TooManyFailuresError as error:
        status = Exit.GAVE_UP
        note("eval", error)
    except StoreError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        saved = "earlier samples are kept: make room, then continue with --resume"
        raise CommandError(f"{error}; {saved}", Exit.REFUSED) from error
    return _show(evaluator, status, as_json=as_json, trackers=trackers)


@contextlib.contextmanager
def _no_empty_run(paths: StorePaths) -> Iterator[None]:
    """Remove the files of a run that failed before its first sample, unless they were there before."""
    was_there, had_folder = paths.results.exists() or paths.run.exists(), paths.results.parent.exists()
    try:
        yield
    except EvalError:
        if not was_there and not (paths.results.exists() and paths.results.stat().st_size):
            for path in (paths.results, paths.run):
                path.unlink(missing_ok=True)
            if not had_folder:
                with contextlib.suppress(OSError):  # a tracker may have written into it
                    paths.results.parent.rmdir()
        raise


def _track(evaluator: Evaluator) -> list[BackgroundTracker]:
    """Start the requested trackers, and report the progress to them."""
    assert evaluator.paths is not None
    folder, options = evaluator.paths.results.parent, evaluator.options
    project = options.project or evaluator.benchmark_name or "strands-env"
    about: dict[str, Any] = {"project": project, "name": folder.name, "config": options.to_saved(), "folder": folder}
    trackers = [BackgroundTracker(make_tracker(kind, **about)) for kind in options.track]
    if trackers:
        evaluator.displays.append(TrackedProgress(trackers))
    return trackers


async def _evaluate(evaluation: Evaluation) -> Exit:
    evaluator = evaluation.evaluator
    task = asyncio.ensure_future(evaluation.run())
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        if interrupted:
            task.cancel()
        else:
            evaluator.stop()
            if sys.stderr is not None and sys.stderr.isatty():
                write_to(sys.stderr, "\n")  # below the line that is drawn, and the ^C in it
            note("eval", "stopping: samples under way are finished and saved first; Ctrl-C again cancels them")
        interrupted = True

    # The first signal stops taking samples, the second cancels: both save what is finished. The loop forgets these
    # handlers when it is closed.
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C cancels at once
            asyncio.get_running_loop().add_signal_handler(number, interrupt)
    try:
        await task
    except asyncio.CancelledError:
        if not interrupted:
            raise
    return Exit.INTERRUPTED if interrupted else Exit.OK


def _show(
    evaluator: Evaluator,
    status: Exit,
    *,
    as_json: bool,
    trackers: Sequence[BackgroundTracker],
) -> int:
    assert evaluator.paths is not None
    path = evaluator.paths.results
    saved = SavedRun.of(path)  # it holds the earlier parts of a resumed run too
    try:
        table = saved.scores()
    except NoResultsError as error:  # interrupted before it began
        raise CommandError(f"nothing was run, and {error}", status) from error
    summary = summarize(table)
    metrics, failure = _own_metrics(evaluator, table)
    has_tokens = evaluator.options.keep_tokens and BACKENDS[saved.options.backend].has_tokens
    tokenizer = saved.tokenizer().tokenizer if has_tokens and (trackers or not as_json) else None
    rows = saved.sample_rows(tokenizer) if trackers else None
    for tracker in trackers:
        if rows is not None:
            tracker.log_table("samples", rows, step=len(table))
        tracker.finish(numbers_of({**summary.to_dict(), "metrics": metrics}))
    complaint = None
    if status is Exit.OK:
        status, complaint = _ending(evaluator, summary, failure)
    lines: list[str] = []
    if not as_json:
        drift = None if tokenizer is None else saved.drift(tokenizer, budget=DRIFT_TOKENS)
        title = evaluator.benchmark_name or str(evaluator.options.benchmark)
        lines += summary_lines(summary, title=title, wall_s=saved.wall_s, drift=drift)
        for name, value in metrics.items():
            lines.append(f"{name:<11} {format_number(value) if isinstance(value, int | float) else value}")
        next_step = f"look at it  strands-env report {path.parent}"
        if status is Exit.INTERRUPTED:
            next_step = "interrupted; everything finished is saved: continue with --resume"
        lines += [f"results     {path}", next_step]
    document = {"results": str(path), "status": status.name.lower(), **summary.to_dict()}
    show({**document, "metrics": without_nan(metrics)}, lines, as_json=as_json)
    left_out = getattr(evaluator, "rows_left_out", 0)
    if left_out:
        read = getattr(evaluator, "rows_read", 0)
        note("eval", f"{left_out} of {read} rows left out: they lack what the benchmark needs (-v names them)")
    if evaluator.note is not None:
        note("eval", f"note: {evaluator.note}")
    if summary.ungraded and summary.scored:
        note(
            "eval",
            f"note: the reward function failed on {summary.ungraded} of {summary.samples} samples, which "
            f"are left out of every mean: strands-env rescore {path.parent} scores them again",
        )
    if complaint is not None:
        raise CommandError(complaint, status)
    return status


def _ending(evaluator: Evaluator, summary: RunSummary, failure: str | None) -> tuple[Exit, str | None]:
    if not summary.samples:
        return Exit.USAGE, f"{evaluator.options.benchmark!r} has no tasks: nothing was run"
    if failure is not None:
        return Exit.UNEXPECTED, f"the run is saved, but its compute_metrics raised: {failure}"
    if evaluator.lost:  # of those asked for; the file may hold others
        lost = "1 sample was" if evaluator.lost == 1 else f"{evaluator.lost} samples were"
        # What may pass by itself is of the server or the network, not of the user's code.
        may_pass = not _PASSING.isdisjoint(summary.terminations)
        if not summary.scored and len(summary.errors) == 1 and not may_pass:
            return Exit.INCOMPLETE, (
                f"all {summary.samples} samples failed alike: {evaluator.last_loss}; fix the cause, then --resume runs "
                "them again"
            )
        return Exit.INCOMPLETE, f"{lost} lost, the last one: {evaluator.last_loss}; try again with --resume"
    if list(summary.terminations) == [TerminationReason.CONTEXT_WINDOW_OVERFLOW] and not summary.totals.get(
        "output_tokens"
    ):
        return Exit.INCOMPLETE, (
            "no first prompt left room in the model's context, so nothing was sampled: start the server with a longer "
            "one (vLLM: --max-model-len, SGLang: --context-length)"
        )
    assert evaluator.paths is not None
    return (Exit.OK, None) if summary.scored else nothing_scored(evaluator.paths.results, summary.samples)


def _own_metrics(evaluator: Evaluator, table: ScoreTable) -> tuple[dict[str, Any], str | None]:
    """Metrics of the evaluator's class or its `metrics_fns` that differ from the usual ones, and their error."""
    if type(evaluator).compute_metrics is Evaluator.compute_metrics and not evaluator.metrics_fns:
        return {}, None
    try:
        values: Any = evaluator.compute_metrics(evaluator.load_results())
        metrics: dict[str, Any] = {str(name): value for name, value in dict(values).items()}
    except Exception as error:  # the user's code
        logger.warning("evaluator=<%s> | compute_metrics raised", evaluator.benchmark_name, exc_info=True)
        return {}, f"{type(error).__name__}: {error} (-v shows where)"
    usual = flat_metrics(table)
    return {name: value for name, value in metrics.items() if str(value) != str(usual.get(name))}, None
