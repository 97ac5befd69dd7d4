"""A training on one page: a folder of runs, one a step, or the log of slime's rollouts."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from strands_env.core import TerminationReason
from strands_env.core.jsonable import shown_text
from strands_env.eval.errors import EvalError, StoreCorruptError, naming_errors
from strands_env.eval.metrics import ScoreTable, summarize
from strands_env.eval.metrics.summary import without_nan
from strands_env.eval.report.details import answer_of, task_of
from strands_env.eval.report.page import ReportResult, now, page
from strands_env.eval.saved import SavedRun
from strands_env.eval.store import StorePaths, read_results
from strands_env.training.log import NAME as LOG_NAME
from strands_env.training.log import TrainingLogError, read_training

ANSWER = 1200
"""Characters of an answer that are kept."""
ANSWERS = 4
"""Answers to a prompt that are kept of every step."""
CHUNK = 50
"""Prompts of one data island."""
SHOWN = 8
TRAINED = ("loss", "grad_norm", "entropy")
"""Numbers of the trainer that have a curve."""
DRIFT_TOKENS = 300_000
"""Tokens of a step in which drift is looked for."""
_DRAWING = ("charts.js", "table.js", "prompts.js", "training.js")
_SCRIPTS = ("dom.js", "islands.js", *_DRAWING)
LIVE_SCRIPTS = ("dom.js", "live.js", *_DRAWING)
"""The assets of the page that `watch --open` shows."""
_NUMBER = re.compile(r"\d+")

Step = dict[str, Any]
Answers = dict[str, dict[str, Any]]


class Note(NamedTuple):
    """A rollout, as the page of a training shows it."""

    prompt: str
    text: str
    truth: Any
    reward: float | None
    answer: str


def runs_in(folder: str | Path) -> list[Path]:
    """Results of all runs below a folder, in the order of the numbers in their paths."""
    root = Path(folder)
    # A walk leaves out a folder that goes while it is looked at; `rglob` raises.
    found = (Path(folder) / name for folder, _, names in os.walk(root) for name in names if name.endswith(".run.json"))
    results = (StorePaths.of(path).results for path in found)

    def natural(path: Path) -> list[Any]:
        parts = re.split(r"(\d+)", str(path.relative_to(root)))
        return [int(part) if place % 2 else part for place, part in enumerate(parts)]

    return sorted((path for path in results if path.is_file()), key=natural)


def is_slime_log(path: str | Path) -> bool:
    """True for a log of `strands_env.training.slime`: its lines name a rollout."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            first = json.loads(file.readline() or "null")
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(first, dict) and "rollout_id" in first and "metrics" in first


def slime_rows(path: str | Path) -> Iterator[dict[str, Any]]:
    """The lines of such a log; one that is under way is left out."""
    with Path(path).open(encoding="utf-8") as file:
        for line in file:
            with suppress(ValueError):
                yield json.loads(line)


def write_training(
    source: str | Path,
    output: str | Path,
    *,
    tokenizer_of: Callable[[Path], Any] | None = None,
) -> ReportResult:
    """Write the page of a training.

    Args:
        source: A folder of runs, one a step, or a log of slime's rollouts.
        tokenizer_of: The tokenizer of a run by its results file, to show drift; None shows none.

    Raises:
        EvalError: There are no steps.
        StoreError: Results are damaged, or the file cannot be written.
    """
    path, target = Path(source), Path(output)
    name = path.resolve().name
    steps, rows = TrainingFiles(path, tokenizer_of).read()
    if not steps:
        raise EvalError(f"there are no runs in {str(path)!r}")
    with page(target, title=name, scripts=_SCRIPTS) as add:
        for number, start in enumerate(range(0, len(rows), CHUNK)):
            add(f"chunk-{number}", [item.pop("answers") for item in rows[start : start + CHUNK]])
        data = {"title": name, "made": now(), "chunk": CHUNK, "path": str(path)}
        add("overview", {**data, "steps": steps, "prompts": rows})
    return ReportResult(path=target, samples=sum(step["samples"] for step in steps), size=target.stat().st_size)


class TrainingFiles:
    """The steps of a training and its prompts, from a folder of runs or a log; a step that stays is read once."""

    def __init__(self, path: Path, tokenizer_of: Callable[[Path], Any] | None = None) -> None:
        self._path = path
        self._tokenizer_of = tokenizer_of
        self._read: dict[Path, tuple[Any, Step, list[Note]]] = {}
        self._state: Any = None

    def have_changed(self) -> bool:
        """True if anything was written since this was asked last."""
        files = [*runs_in(self._path), self._path / LOG_NAME] if self._path.is_dir() else [self._path]
        before, self._state = self._state, [(file, _state_of(file)) for file in files]
        return bool(before != self._state)

    def read(self) -> tuple[list[Step], list[dict[str, Any]]]:
        """The steps, and a row for each prompt with its rewards and answers by step."""
        prompts: Answers = {}
        if not self._path.is_dir():
            steps = list(_of_log(self._path, prompts))
        else:
            steps, trained = [], _trained(self._path)
            for number, results in _find_steps(self._path):
                state = _state_of(results)
                if self._read.get(results, (None,))[0] != state:
                    self._read[results] = (state, *self._of_run(results))
                _, step, notes = self._read[results]
                steps.append({"step": number, **step, **trained.get(number, {})})
                for note in notes:
                    _note(prompts, number, note)
        return steps, [{"id": prompt, **about} for prompt, about in prompts.items()]

    def _of_run(self, results: Path) -> tuple[Step, list[Note]]:
        saved = SavedRun.of(results)
        table, notes = ScoreTable(saved.options), []
        for sample in read_results(results):
            table.add(sample.prompt_id, sample)
            truth = sample.action.task_context.ground_truth
            answer = answer_of(sample.step_result)[:ANSWER]
            notes.append(Note(sample.prompt_id, sample.action.text[:300], truth, sample.reward, answer))
        summary = summarize(table, k_values=[1])
        reasons, samples = summary.terminations, max(1, summary.samples)
        tokenizer = None if self._tokenizer_of is None else self._tokenizer_of(results)
        drift = None if tokenizer is None else saved.drift(tokenizer, budget=DRIFT_TOKENS)
        drifted = drift.changed_tokens / drift.sampled_tokens if drift is not None and drift.sampled_tokens else None
        step = {
            "name": str(results.relative_to(self._path).parent),
            "samples": summary.samples,
            "reward": without_nan(summary.mean_reward.value),
            "low": without_nan(summary.mean_reward.low),
            "high": without_nan(summary.mean_reward.high),
            "length": summary.totals.get("output_tokens", 0.0) / samples,
            "tool_calls": summary.totals.get("tool_calls", 0.0) / samples,
            "truncated": _cut(reasons) / samples,
            "failed": summary.unscored / samples,
            "drift": drifted,
            "model": saved.header["model"],
        }
        return step, notes


def _trained(folder: Path) -> dict[int, dict[str, Any]]:
    """The trainer's own numbers by step, where `strands-env train` wrote the folder."""
    try:
        records = read_training(folder)
    except FileNotFoundError:
        return {}
    except TrainingLogError as error:
        raise StoreCorruptError(str(error)) from error
    return {record["step"]: {name: record.get(name) for name in TRAINED} for record in records}


def _state_of(file: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        state = file.stat()
        return state.st_size, state.st_mtime_ns
    return None


def _of_log(path: Path, prompts: Answers) -> Iterator[Step]:
    with naming_errors("read", path):
        for row in slime_rows(path):
            metrics = row.get("metrics") or {}
            step = row.get("rollout_id")
            for shown in row.get("samples") or ():
                text = shown.get("prompt")
                text = text if isinstance(text, str) else shown_text(text)
                answer = str(shown.get("response") or "")[:ANSWER]
                _note(prompts, step, Note(text[:200], text, shown.get("label"), shown.get("reward"), answer))
            ended = {name[6:]: value for name, value in metrics.items() if name.startswith("ended/")}
            yield {
                "step": step,
                "name": f"rollout {step}",
                "samples": int(metrics.get("rollouts") or 0),
                "reward": metrics.get("reward"),
                "length": metrics.get("response_tokens"),
                "tool_calls": metrics.get("tool_calls"),
                "truncated": _cut(ended),
                "failed": (metrics.get("removed") or 0) / max(1, metrics.get("rollouts") or 1),
                **dict.fromkeys(("low", "high", "drift", "model")),  # unknown to the log
            }


def _note(prompts: Answers, step: Any, note: Note) -> None:
    empty = {**task_of(note.text, note.truth, 300), "rewards": {}, "answers": {}}
    about = prompts.setdefault(note.prompt, empty)
    about["rewards"].setdefault(str(step), []).append(note.reward)
    answers = about["answers"].setdefault(str(step), [])
    if len(answers) < ANSWERS:
        answers.append([note.reward, note.answer])


def _cut(reasons: Mapping[str, float | None]) -> float:
    """The part of counts or shares by termination reason that limits account for."""
    limits = {reason.value for reason in TerminationReason if reason.is_limit}
    return sum(value or 0 for name, value in reasons.items() if name in limits)


def _find_steps(root: Path) -> list[tuple[int, Path]]:
    """The runs below a folder with their numbers: the last in each path, or their places where these are alike.

    Raises:
        EvalError: Their paths differ in more than numbers, or they ran different benchmarks.
    """
    results = runs_in(root)
    if not results:
        return []
    names = [str(path.relative_to(root).parent) for path in results]
    families = {_NUMBER.sub("*", name) for name in names}
    benchmarks = {str(SavedRun.of(path).config.get("benchmark")) for path in results}
    numbers = [_NUMBER.findall(name) for name in names]
    if len(families) != 1 or len(benchmarks) != 1 or not all(numbers):
        text = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
        raise EvalError(
            f"{str(root)!r} holds {len(results)} run{'s' * (len(results) > 1)}: {text}. Give one of them; "
            "the steps of a training are folders that differ in a number, such as step-1 and step-2"
        )
    last = [int(parts[-1]) for parts in numbers]
    return list(zip(last if len(set(last)) == len(last) else range(len(results)), results, strict=True))
