"""Two or more runs on one page: their numbers, their curves, and their answers to the same prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from strands_env.eval.metrics import ScoreTable, compare
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
    loaded = [_Run(name, run, reward_threshold=reward_threshold) for name, run in zip(names, runs, strict=True)]
    tests = [without_nan(asdict(compare(loaded[0].table, other.table, seed=seed))) for other in loaded[1:]]
    prompts: dict[str, dict[str, Any]] = {}
    for place, run in enumerate(loaded):
        for prompt, about in run.prompts.items():
            known = prompts.setdefault(
                prompt, {"text": about["text"], "truth": about["truth"], "runs": [None] * len(loaded)}
            )
            known["runs"][place] = about["answers"]
    listed = [{"id": prompt, **about} for prompt, about in prompts.items()]
    with page(target, title=" and ".join(names), scripts=_SCRIPTS) as made:
        for number, start in enumerate(range(0, len(listed), CHUNK)):
            made.add(f"chunk-{number}", [[answers and [a["text"] for a in answers] for answers in item["runs"]]
                                         for item in listed[start : start + CHUNK]])  # fmt: skip
        made.add(
            "overview",
            {
                "made": now(),
                "chunk": CHUNK,
                "threshold": reward_threshold,
                "runs": [run.to_dict() for run in loaded],
                "tests": tests,
                "prompts": [
                    [item["id"], item["text"], item["truth"],
                     [None if answers is None else [[a["reward"], a["reason"], a["index"]] for a in answers]
                      for answers in item["runs"]]]
                    for item in listed
                ],
            },
        )  # fmt: skip
    samples = sum(run.samples for run in loaded)
    return ReportResult(path=target, samples=samples, size=target.stat().st_size)


class _Run:
    def __init__(self, name: str, path: str | Path, *, reward_threshold: float) -> None:
        self.name = name
        self.prompts: dict[str, dict[str, Any]] = {}
        with ResultReader(path) as reader:
            saved = SavedRun.of(path)
            grouping = Grouping.of(saved.document)
            overview = Overview(reward_threshold=reward_threshold, grouping=grouping)
            self.table = ScoreTable()
            for entry in reader.entries:
                sample = reader.read(entry)
                overview.add(sample)
                self.table.add(sample.prompt_id, sample)
                task, result = sample.action, sample.step_result
                about = self.prompts.setdefault(
                    entry.prompt_id, {**task_of(task.text, task.task_context.ground_truth, 300), "answers": []}
                )
                about["answers"].append(
                    {
                        "index": entry.index,
                        "reward": sample.reward,
                        "reason": result.termination_reason.value,
                        "text": answer_of(result)[:ANSWER],
                    }
                )
            for about in self.prompts.values():
                about["answers"].sort(key=lambda answer: answer["index"])
            grouping.apply(self.table)
            self.samples = len(reader.entries)
            order = reader.in_task_order()
            self.prompts = {entry.prompt_id: self.prompts[entry.prompt_id] for entry in order}
            shown = overview.to_dict(order)
            self._shown = {
                "path": str(reader.paths.results),
                "header": saved.header,
                "summary": shown["summary"],
                "running": shown["running"],
            }

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, **self._shown}


def _names(runs: Sequence[str | Path]) -> list[str]:
    """Short names that differ: of each path the part that is its own."""
    paths = [Path(run).with_suffix("") if Path(run).suffix == ".jsonl" else Path(run) for run in runs]
    parts = [path.resolve().parts for path in paths]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{number + 1}: {path.name}" for number, path in enumerate(paths)]
