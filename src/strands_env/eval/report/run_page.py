"""The report of one run: numbers, curves, a row for each prompt and sample, and the samples with their tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strands_env.core.metrics import total_of
from strands_env.eval.metrics import ScoreTable, summarize
from strands_env.eval.metrics.interval import reward_interval
from strands_env.eval.options import EvalOptions
from strands_env.eval.report.details import SNIPPET, TokenTexts, details, task_of
from strands_env.eval.report.health import HealthRow, find_problems, row_of
from strands_env.eval.report.page import ReportResult, now, page
from strands_env.eval.sample import EvalSample
from strands_env.eval.saved import RunTokenizer, SavedRun
from strands_env.eval.store import Entry, ResultReader
from strands_sglang.secret_names import without_secrets

CHUNK = 50
"""Samples of one data island, which the browser unpacks when one of them is opened."""
TOKEN_BUDGET = 20_000_000
"""Tokens a report may hold; beyond it only messages are shown."""
_DRAWING = ("charts.js", "tokens.js", "detail.js", "table.js", "drawer.js", "app.js")
_SCRIPTS = ("dom.js", "islands.js", *_DRAWING)
LIVE_SCRIPTS = ("dom.js", "live.js", *_DRAWING)
"""The assets of the page that `watch --open` shows."""
POINTS = 300
"""Points of a curve, each with its interval."""
LIVE_POINTS = 60
"""The same of a page that is made again and again."""
_DRIFT = 7
"""Place of the drift in a row without its index; `COLUMNS` of app.js names all of them."""
BINS = 20
"""Bars of the distribution of rewards."""


def write_report(
    run: str | Path,
    output: str | Path,
    *,
    tokenizer: Any = None,
    tokenizer_note: str | None = None,
    title: str | None = None,
    reward_threshold: float | None = None,
    token_budget: int = TOKEN_BUDGET,
) -> ReportResult:
    """Write the report of a run.

    Args:
        run: The `.jsonl` file or its folder.
        tokenizer: Tokenizer of the run, to show tokens as text and where re-tokenising would have drifted; None shows
            ids.
        tokenizer_note: A note on the tokenizer, such as why it is missing.
        title: Title; the name of the benchmark if None.
        reward_threshold: A sample passes with at least this reward; the run's own threshold if None.

    Raises:
        FileNotFoundError: There are no results.
        StoreError: They are damaged, or the file cannot be written.
    """
    target = Path(output)
    with ResultReader(run) as reader:
        saved = SavedRun.of(run)
        overview = Overview(replace(saved.options, reward_threshold=saved.threshold(reward_threshold)))
        for entry in reader.entries:  # as they finished: the running mean follows the run
            overview.add(reader.read(entry))
        order = reader.in_task_order()
        name = title or saved.name
        texts = TokenTexts(tokenizer, token_budget)
        with page(target, title=name, scripts=_SCRIPTS) as add:
            # Chunk by chunk: the tokens of a whole run do not fit into memory.
            rows: list[HealthRow] = []
            for number, chunk in enumerate(_chunks(reader, order, texts, saved.system_prompt, overview, rows)):
                add(f"chunk-{number}", chunk)
            data = {
                **overview.to_dict(order),
                **about_run(saved, RunTokenizer(tokenizer=tokenizer, note=tokenizer_note)),
                "title": name,
                "chunk": CHUNK,
                "health": [finding.to_dict() for finding in find_problems(rows)[0]],
                "drift": None if texts.drift is None or not texts.drift.trajectories else texts.drift.to_dict(),
                "tokens_left_out": texts.left_out,
            }
            add("overview", data)
    return ReportResult(path=target, samples=len(order), size=target.stat().st_size, tokens_left_out=texts.left_out)


def about_run(saved: SavedRun, tokenizer: RunTokenizer) -> dict[str, Any]:
    """The values of a page that do not depend on the samples."""
    return {
        "title": saved.name,
        "made": now(),
        "header": saved.header,
        "run": without_secrets({key: saved.document.get(key) for key in ("config", "environment", "about")}),
        "has_texts": tokenizer.tokenizer is not None,
        "tokenizer_note": tokenizer.note,
    }


def _chunks(
    reader: ResultReader,
    order: list[Entry],
    texts: TokenTexts,
    system_prompt: str | None,
    overview: Overview,
    rows: list[HealthRow],
) -> Iterator[dict[str, Any]]:
    for start in range(0, len(order), CHUNK):
        vocabulary: dict[int, str] = {}
        samples = []
        for entry in order[start : start + CHUNK]:
            sample = reader.read(entry, with_tokens=True)
            samples.append(document := details(sample, texts, vocabulary, system_prompt))
            drifts = [path["drift"] for path in document.get("trajectories", ()) if "drift" in path]
            kinds = [kind for spans in drifts for _, _, kind, *_ in spans] if drifts else None
            if kinds is not None:
                overview.note_drift(entry.prompt_id, entry.index, len(kinds))
            rows.append(row_of(sample, kinds))
        yield {"samples": samples, "vocabulary": vocabulary}


# ---- the whole run ---------------------------------------------------------------------------------------------------


class Overview:
    """Collects the overview, a sample at a time in the order they were finished."""

    def __init__(self, options: EvalOptions | None = None) -> None:
        self.table = ScoreTable(options)
        self._reasons: dict[str, int] = {}
        self._prompts: dict[str, dict[str, Any]] = {}
        self._rows: dict[tuple[str, int], list[Any]] = {}

    def add(self, sample: EvalSample) -> None:
        """Add a sample."""
        self.table.add(sample.prompt_id, sample)
        result = sample.step_result
        task = sample.action
        self._prompts.setdefault(sample.prompt_id, task_of(task.text, task.task_context.ground_truth, SNIPPET))
        metrics = result.observation.metrics
        self._rows[(sample.prompt_id, sample.index)] = [
            None if sample.reward is None else round(sample.reward, 6),
            self._reasons.setdefault(result.termination_reason.value, len(self._reasons)),
            int(sample.aborted),
            round(sample.duration_s, 3),
            *(total_of(metrics, name) for name in ("output_tokens", "tool_calls", "model_calls")),
            None,
            *(total_of(metrics, name) for name in ("model_latency_s", "tool_s", "reward_latency_s")),
        ]

    def note_drift(self, prompt_id: str, index: int, places: int) -> None:
        """Set in how many places the tokens of a sample drift."""
        self._rows[(prompt_id, index)][_DRIFT] = places

    def to_dict(self, order: Iterable[Entry], *, points: int = POINTS) -> dict[str, Any]:
        """JSON values; `order` has the samples prompt by prompt, as the report shows them."""
        entries = list(order)
        table = self.table
        most = max((1, *(score.n for score in table.by_prompt())))
        # Up to 24 values of k, dense where the curve bends.
        k_values = range(1, most + 1) if most <= 24 else sorted({round(k) for k in np.geomspace(1, most, 24)})
        summary = summarize(table, k_values=list(k_values)).to_dict()
        prompts: list[list[Any]] = []
        for number, entry in enumerate(entries):
            if not prompts or prompts[-1][0] != entry.prompt_id:
                about = self._prompts[entry.prompt_id]
                prompts.append([entry.prompt_id, about["text"], about["truth"], number, 0])
            prompts[-1][4] += 1
        rows = [[entry.index, *self._rows[(entry.prompt_id, entry.index)]] for entry in entries]
        return {
            "summary": summary,
            "reasons": list(self._reasons),
            "prompts": prompts,
            "samples": [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(12)],
            "running": _running_mean(table, points),
            "distribution": _distribution(table.rewards),
        }


def _running_mean(table: ScoreTable, most: int = POINTS) -> list[list[float]]:
    """`[samples, mean, low, high]` over the first scored samples: the mean over prompts of their mean reward.

    The last point is the run's mean reward with the interval of its summary.
    """
    rewards = table.rewards
    scored = ~np.isnan(rewards)
    rewards, prompts = rewards[scored], table.prompts[scored]
    if rewards.size == 0:
        return []
    # Sums by prompt grow from point to point: a mean over all samples for each would be quadratic.
    sums, counts = np.zeros(len(table.prompt_ids)), np.zeros(len(table.prompt_ids))
    ends = np.unique(np.linspace(1, rewards.size, min(most, rewards.size)).round().astype(int))
    points: list[list[float]] = []
    start = 0
    for end in ends:
        np.add.at(sums, prompts[start:end], rewards[start:end])
        np.add.at(counts, prompts[start:end], 1)
        start = end
        means = sums[counts > 0] / counts[counts > 0]
        interval = reward_interval(means, rewards)
        points.append([int(end), *(round(value, 5) for value in (interval.value, interval.low, interval.high))])
    return points


def _distribution(rewards: NDArray[np.float64]) -> dict[str, Any] | None:
    scored = rewards[~np.isnan(rewards)]
    if scored.size == 0:
        return None
    values, counts = np.unique(scored, return_counts=True)
    if values.size <= BINS:
        return {"values": [float(value) for value in values], "counts": counts.tolist()}
    counts, edges = np.histogram(scored, bins=BINS)
    return {"edges": [round(float(edge), 6) for edge in edges if math.isfinite(edge)], "counts": counts.tolist()}
