"""Runs and trainings while another process writes them, read from their files alone.

So they may lie on another machine's file system, and one that crashed is read like one that goes on.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Protocol

from strands_env.core.metrics import total_of
from strands_env.eval.drift import DriftTotals
from strands_env.eval.errors import EvalError, StoreCorruptError, naming_errors
from strands_env.eval.report import run_page, training_page
from strands_env.eval.report.details import TokenTexts, details
from strands_env.eval.report.health import HealthRow, find_problems, row_of
from strands_env.eval.report.page import now
from strands_env.eval.report.training_page import TrainingFiles, is_slime_log, runs_in
from strands_env.eval.run.progress import ProgressState
from strands_env.eval.sample import EvalSample
from strands_env.eval.saved import RunTokenizer, SavedRun
from strands_env.eval.store import Entry, in_task_order
from strands_env.eval.store.line import read_entry, read_sample
from strands_env.training.log import NAME as LOG_NAME


class LivePage(Protocol):
    """A page's data while its source grows. One thread at a time calls `read` and `overview`; any thread `part`."""

    scripts: ClassVar[tuple[str, ...]]
    title: str
    is_behind: bool
    """The last read ended before the end of the file."""

    def read(self, seconds: float) -> int:
        """Read new data, for about so long; 0 where nothing changed."""

    def overview(self) -> dict[str, Any]:
        """JSON values of the page."""

    def part(self, name: str) -> Any:
        """JSON values of the part that the page opens under a name; None if there is none."""


class Follower:
    """Reads the lines that a results file has got since the last look, and keeps the `latest` samples.

    Raises:
        EvalError: There is no run, begun or finished, at the path.
    """

    with_tokens: ClassVar[bool] = False
    is_behind = False

    def __init__(self, path: str | Path, *, latest: int = 5) -> None:
        self.saved = SavedRun.of(path)
        self.saved = SavedRun.of(path, must_exist=not self.saved.document)  # one that begins has no samples yet
        self._file = self.saved.paths.results
        self.recent: deque[EvalSample] = deque(maxlen=latest)
        self._begin()

    def _begin(self) -> None:
        self._offset, self._seen, self._has_caught_up = 0, set[str](), False
        self.state, self.output_tokens = ProgressState(), 0.0
        self.recent.clear()

    def read(self, seconds: float = float("inf")) -> int:
        """Read the lines that have come, for about so long; returns how many."""
        end, count = time.monotonic() + seconds, 0
        self.is_behind = False
        with suppress(FileNotFoundError), naming_errors("read", self._file), self._file.open("rb") as file:
            if file.seek(0, 2) < self._offset:  # a resume cut off a torn line, or the run began anew
                self._begin()
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):  # the writer may be in the middle of it
                    break
                with suppress(StoreCorruptError):  # left by an interrupted write; `report --verify` names damage
                    self._take(line, read_sample(line, with_tokens=self.with_tokens))
                self._offset += len(line)
                count += 1
                if time.monotonic() > end:
                    self.is_behind = True
                    break
        if not self.saved.document:
            self.saved = SavedRun.of(self._file)
        if not self._has_caught_up:  # older lines say nothing of the speed
            self.state.resumed, self.state.started = len(self._seen), time.monotonic()
            self._has_caught_up = not self.is_behind
        self.state.done = len(self._seen) - self.state.resumed  # one that was lost and tried again counts once
        self.state.total = self.total
        return count

    def _take(self, line: bytes, sample: EvalSample) -> None:
        self.output_tokens += float(total_of(sample.step_result.observation.metrics, "output_tokens") or 0)
        self._seen.add(sample.id)
        self.state.count(sample)
        self.recent.append(sample)

    @property
    def total(self) -> int | None:
        """Samples of the whole run; None where it is not known."""
        options = self.saved.options
        tasks = self.saved.about.get("tasks") or options.limit
        return None if tasks is None else int(tasks) * options.n_samples_per_prompt

    @property
    def is_finished(self) -> bool:
        """All samples have been written."""
        return self.total is not None and len(self._seen) >= self.total

    @property
    def changed(self) -> datetime | None:
        """The time of the last write, local; None before the first."""
        with suppress(OSError):
            return datetime.fromtimestamp(self._file.stat().st_mtime).astimezone()
        return None

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "samples": len(self._seen),
            "total": self.total,
            "finished": self.is_finished,
            "scored": self.state.scored,
            "mean_reward": self.state.mean_reward if self.state.scored else None,
            "output_tokens": self.output_tokens,
            "failures": dict(self.state.failures.most_common()),
            "latest": [
                {
                    "sample": f"{sample.prompt_id}/{sample.index}",
                    "reward": sample.reward,
                    "termination_reason": sample.step_result.termination_reason.value,
                }
                for sample in reversed(self.recent)
            ],
        }


class LiveRun(Follower):
    """A run as its page shows it.

    Kept of each sample are its numbers, of one that was tried again those of the last attempt; its messages and tokens
    are read when they are looked at.
    """

    with_tokens = True
    scripts: ClassVar[tuple[str, ...]] = run_page.LIVE_SCRIPTS

    def __init__(self, path: str | Path, *, tokenizer: RunTokenizer) -> None:
        super().__init__(path)
        self.title = self.saved.name
        self._tokenizer = tokenizer

    def _begin(self) -> None:
        super()._begin()
        self._kept: dict[str, tuple[Entry, EvalSample, HealthRow, DriftTotals | None]] = {}
        self._names: dict[str, Entry] = {}

    def _take(self, line: bytes, sample: EvalSample) -> None:
        super()._take(line, sample)
        entry = read_entry(line, self._offset)
        assert entry is not None  # the sample was read
        tokenizer, result = self._tokenizer.tokenizer, sample.step_result
        drift = None
        if tokenizer is not None and result.recorded_trajectories:
            drift = DriftTotals(tokenizer=tokenizer)
            for trajectory in result.recorded_trajectories:
                drift.add(trajectory.tokens)
        row = row_of(sample, None if drift is None else list(drift.kinds))
        result.observation = result.observation.model_copy(update={"messages": [], "tokens": None, "tools": None})
        result.trajectories = []
        self._kept.pop(sample.id, None)  # so that it counts where it was tried last
        self._kept[sample.id] = entry, sample, row, drift
        self._names[f"{entry.prompt_id}/{entry.index}"] = entry

    def overview(self) -> dict[str, Any]:
        """JSON values of the page: those of a report, and how far the run is."""
        saved = self.saved
        page = run_page.Overview(replace(saved.options, reward_threshold=saved.threshold(None)))
        totals: Counter[str] = Counter()
        kinds: Counter[str] = Counter()
        for entry, sample, _, drift in self._kept.values():
            page.add(sample)
            if drift is not None:
                page.note_drift(entry.prompt_id, entry.index, drift.kinds.total())
                counts = drift.to_dict()
                kinds.update(counts.pop("kinds"))
                totals.update({name: count for name, count in counts.items() if isinstance(count, int)})
        entries = in_task_order([entry for entry, *_ in self._kept.values()])
        document = page.to_dict(entries, points=run_page.LIVE_POINTS)
        state, changed = self.state, self.changed
        return document | {
            **run_page.about_run(saved, self._tokenizer),
            "health": [each.to_dict() for each in find_problems([row for _, _, row, _ in self._kept.values()])[0]],
            "drift": {**totals, "kinds": dict(kinds.most_common())} if totals else None,
            "live": {
                "done": len(self._seen),
                "total": self.total,
                "finished": self.is_finished,
                "rate": state.rate,
                "eta": state.eta,
                "changed": None if changed is None else changed.astimezone(UTC).isoformat(timespec="seconds"),
            },
        }

    def part(self, name: str) -> Any:
        """A sample with its tokens, and their texts."""
        entry = self._names.get(name)
        if entry is None:
            return None
        with naming_errors("read", self._file), self._file.open("rb") as file:
            file.seek(entry.offset)
            sample = read_sample(file.read(entry.length), with_tokens=True)
        vocabulary: dict[int, str] = {}
        texts = TokenTexts(self._tokenizer.tokenizer, run_page.TOKEN_BUDGET)
        return {"sample": details(sample, texts, vocabulary, self.saved.system_prompt), "vocabulary": vocabulary}


class LiveTraining:
    """A training as its page shows it: a folder of runs, one a step, or the log of slime's rollouts."""

    scripts: ClassVar[tuple[str, ...]] = training_page.LIVE_SCRIPTS
    is_behind = False  # a step that grows is read whole each time

    def __init__(self, path: str | Path, *, tokenizer: str | None = None) -> None:
        self._path = Path(path)
        self.title = self._path.resolve().name
        self._files = TrainingFiles(self._path, lambda results: SavedRun.of(results).tokenizer(tokenizer).tokenizer)
        self._answers: Mapping[str, Any] = {}
        self.steps: list[dict[str, Any]] = []
        self.prompts: list[dict[str, Any]] = []

    def read(self, seconds: float = float("inf")) -> bool:
        """Read the steps whose files changed, all of them."""
        if not self._files.have_changed():
            return False
        steps, rows = self._files.read()
        self._answers = {row["id"]: row.pop("answers") for row in rows}
        self.steps, self.prompts = steps, rows
        return True

    def to_dict(self) -> dict[str, Any]:
        """JSON values of the steps."""
        return {"title": self.title, "steps": self.steps}

    def overview(self) -> dict[str, Any]:
        """JSON values of the page."""
        about = {"title": self.title, "made": now(), "path": str(self._path)}
        samples = sum(step["samples"] for step in self.steps)
        live = {"done": samples, "total": None, "finished": False, "rate": 0.0, "eta": None, "changed": now()}
        return {**about, "steps": self.steps, "prompts": self.prompts, "live": live}

    def part(self, name: str) -> Any:
        """The answers to a prompt, by step."""
        return self._answers.get(name)


def open_live(path: str | Path, *, tokenizer: str | None = None) -> LiveRun | LiveTraining:
    """The run or the training at a path; `tokenizer` names one in place of the run's own, `none` for none.

    Raises:
        EvalError: There is neither.
    """
    source = Path(path)
    saved = None if is_slime_log(source) else SavedRun.of(source)
    if saved is None:
        return LiveTraining(source, tokenizer=tokenizer)
    if source.is_dir() and not saved.document and not saved.paths.results.exists():
        if not runs_in(source) and not (source / LOG_NAME).exists():
            raise EvalError(
                f"there is neither a run nor a training in {str(path)!r}: give the folder that strands-env eval or "
                "train writes, or the log of slime's rollouts"
            )
        return LiveTraining(source, tokenizer=tokenizer)
    return LiveRun(source, tokenizer=saved.tokenizer(tokenizer))
