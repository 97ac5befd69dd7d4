"""Two or more runs on one page: their numbers, their curves, and their answers to the same prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from strands_env.eval.metrics import compare
from strands_env.eval.metrics.summary import without_nan
from strands_env.eval.run.groups import Grouping
from strands_env.eval.saved import SavedRun
from strands_env.eval.store import ResultReader
from strands_env.report.details import answer_of, task_of
from strands_env.report.overview import Overview
from strands_env.report.page import now, page
from strands_env.report.run import ReportResult

ANSWER = 1500
"""Characters of an answer that are kept."""
CHUNK = 100
"""Prompts of one data island."""
_SCRIPTS = ("dom.js", "charts.js", "table.js", "prompts.js", "compare.js")


def write_comparison(
    runs: Sequence[str | Path], output: str | Path, *, reward_threshold: float = 1.0, seed: int = 0
) -> ReportResult:
    """Write the comparison of runs; each is compared with the first.

    Args:
        runs: Two or more `.jsonl` files or their folders.
        reward_threshold: A sample passes with at least this reward.
        seed: Seed of the confidence intervals.

    Raises:
        FileNotFoundError: A run has no results.
        ValueError: A prompt of the same id is another task in two runs.
        StoreError: Results are damaged, or the file cannot be written.
    """
    target, names = Path(output), _names(runs)
    prompts: dict[str, dict[str, Any]] = {}
    shown: list[dict[str, Any]] = []
    tables = []
    for place, (name, path) in enumerate(zip(names, runs, strict=True)):
        saved = SavedRun.of(path)
        overview = Overview(reward_threshold=reward_threshold, grouping=Grouping.of(saved.document))
        with ResultReader(path) as reader:
            order = reader.in_task_order()
            for entry in order:
                prompts.setdefault(entry.prompt_id, {"runs": [None] * len(runs)})["runs"][place] = []
            for entry in reader.entries:  # as they finished: the running mean follows the run
                sample = reader.read(entry)
                overview.add(sample)
                about, result = prompts[entry.prompt_id], sample.step_result
                about.setdefault("task", task_of(sample.action.text, sample.action.task_context.ground_truth, 300))
                answer = [sample.reward, result.termination_reason.value, entry.index, answer_of(result)[:ANSWER]]
                about["runs"][place].append(answer)
            numbers = overview.to_dict(order)
            shown.append(
                {"name": name, "path": str(reader.paths.results), "header": saved.header}
                | {"summary": numbers["summary"], "running": numbers["running"], "samples": len(order)}
            )
        tables.append(overview.table)
    tests = [without_nan(asdict(compare(tables[0], other, seed=seed))) for other in tables[1:]]
    listed = list(prompts.items())
    for _, about in listed:
        for answers in filter(None, about["runs"]):
            answers.sort(key=lambda answer: answer[2])

    def picked(about: dict[str, Any], part: int | slice) -> list[Any]:
        return [None if answers is None else [answer[part] for answer in answers] for answers in about["runs"]]

    with page(target, title=" and ".join(names), scripts=_SCRIPTS) as made:
        for number, start in enumerate(range(0, len(listed), CHUNK)):
            made.add(f"chunk-{number}", [picked(about, 3) for _, about in listed[start : start + CHUNK]])
        rows = [[name, *about["task"].values(), picked(about, slice(3))] for name, about in listed]
        data = {"chunk": CHUNK, "threshold": reward_threshold, "runs": shown, "tests": tests, "prompts": rows}
        made.add("overview", {"made": now(), **data})
    return ReportResult(path=target, samples=sum(run["samples"] for run in shown), size=target.stat().st_size)


def _names(runs: Sequence[str | Path]) -> list[str]:
    """Short names that differ: of each path the part that is its own."""
    paths = [Path(run).with_suffix("") if Path(run).suffix == ".jsonl" else Path(run) for run in runs]
    parts = [path.resolve().parts for path in paths]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{number + 1}: {path.name}" for number, path in enumerate(paths)]
