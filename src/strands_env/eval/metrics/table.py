"""Scores of a run as columns: what every metric reads, small enough for a million samples."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strands_env.eval.sample import EvalSample, Score

_TOKENS = ("input_tokens", "output_tokens", "cache_read_input_tokens")
_COUNTS = (
    "model_calls",
    "tool_calls",
    "tool_iters",
    "tool_exceptions",
    "parse_errors",
    "tool_s",
    "reward_latency_s",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptScores:
    """The scored samples of one prompt: `n` scored, `passed` of them, and the mean of their rewards."""

    n: int
    passed: int
    mean: float


class ScoreTable:
    """One row a sample, prompts in order of appearance. Build it with `add`, or with `from_results`.

    Attributes:
        tasks: Digest of each prompt's task, empty where not known.
        reasons: Number of samples by termination reason.
        errors: Number of samples by `(where, error type)`; failed cleanups are among them.
        tool_errors: Number of samples by `(tool, type)` of the exceptions that their tools raised.
        messages: The message of the first error of each kind, by the same keys.
        totals: Sums over all samples of token counts, model calls, tool calls and times.
        left_out: Ids of the prompts that have no part in scores, see `leave_out_incomplete`.
    """

    def __init__(self) -> None:
        self.prompt_ids: list[str] = []
        self.tasks: list[str] = []
        self.reasons: Counter[str] = Counter()
        self.errors: Counter[tuple[str, str]] = Counter()
        self.tool_errors: Counter[tuple[str, str]] = Counter()
        self.messages: dict[tuple[str, str], str] = {}
        self.totals: Counter[str] = Counter()
        self.aborted = 0
        self.left_out: frozenset[str] = frozenset()
        self._incomplete: NDArray[np.bool_] | None = None
        self._lost: set[int] = set()
        self._index: dict[str, int] = {}
        self._prompts = array("q")
        self._rewards = array("d")

    @classmethod
    def from_results(cls, results: Mapping[str, Sequence[EvalSample]]) -> ScoreTable:
        """The table of `{prompt id: [sample, ...]}`."""
        table = cls()
        for prompt, samples in results.items():
            # Of samples that are still in their file, only what is needed is read.
            scores = samples.scores() if hasattr(samples, "scores") else (sample.score() for sample in samples)
            for score in scores:
                table.add_score(score, prompt)
        return table

    @classmethod
    def from_samples(cls, samples: Iterable[tuple[str, EvalSample]]) -> ScoreTable:
        """The table of `(prompt id, sample)` pairs; only numbers of a sample are kept."""
        table = cls()
        for prompt, sample in samples:
            table.add(prompt, sample)
        return table

    def add(self, prompt_id: str, sample: EvalSample) -> None:
        """Add a sample."""
        self.add_score(sample.score(), prompt_id)

    def add_score(self, score: Score, prompt_id: str | None = None) -> None:
        """Add a score, to `prompt_id` where it counts for another prompt than its own."""
        name = score.prompt_id if prompt_id is None else prompt_id
        index = self._index.setdefault(name, len(self.prompt_ids))
        if index == len(self.prompt_ids):
            self.prompt_ids.append(name)
            self.tasks.append(score.task)
        self._prompts.append(index)
        self._rewards.append(math.nan if score.reward is None else score.reward)
        if score.aborted:
            self.aborted += 1
            self._lost.add(index)
        self.reasons[score.reason] += 1
        for where, kind, message in filter(None, (score.error, score.cleanup_error)):
            self.errors[(where, kind)] += 1
            self.messages.setdefault((where, kind), message)
        raised = {(tool, kind): message for tool, kind, message in reversed(score.tool_errors)}
        self.tool_errors.update(raised.keys())
        self.messages = {**raised, **self.messages}
        _count(self.totals, score.metrics)
        self.totals["wall_s"] += score.duration_s  # type: ignore[assignment]
        self.totals["attempts"] += score.attempts

    def __len__(self) -> int:
        return len(self._prompts)

    def leave_out_incomplete(self, n_samples: int) -> None:
        """Give prompts that lost a sample, or have fewer than `n_samples`, no part in scores.

        Their samples have no reward then; they stay in the counts, tokens, reasons and errors. Call it when all samples
        are in the table.
        """
        count = len(self.prompt_ids)
        incomplete = np.bincount(self.prompts, minlength=count) < n_samples
        incomplete[list(self._lost)] = True
        self._incomplete = incomplete
        self.left_out = frozenset(self.prompt_ids[index] for index in np.flatnonzero(incomplete))

    @property
    def rewards(self) -> NDArray[np.float64]:
        """float64[samples]; NaN where a sample has no reward that counts."""
        rewards = np.array(self._rewards, dtype=np.float64)
        if self._incomplete is not None:
            rewards[self._incomplete[self.prompts]] = math.nan
        return rewards

    @property
    def prompts(self) -> NDArray[np.int64]:
        """int64[samples]: index into `prompt_ids`."""
        return np.array(self._prompts, dtype=np.int64)

    def by_prompt(self, reward_threshold: float = 1.0) -> list[PromptScores]:
        """Scores of every prompt, in the order of `prompt_ids`; a sample passes with at least the threshold."""
        rewards, prompts, count = self.rewards, self.prompts, len(self.prompt_ids)
        scored = ~np.isnan(rewards)
        sizes = np.bincount(prompts[scored], minlength=count)
        passed = np.bincount(prompts[scored & (rewards >= reward_threshold)], minlength=count)
        sums = np.bincount(prompts[scored], weights=rewards[scored], minlength=count)
        return [
            PromptScores(n=int(n), passed=int(c), mean=float(total) / int(n) if n else math.nan)
            for n, c, total in zip(sizes, passed, sums, strict=True)
        ]


def check_tables(function: str, *tables: object) -> None:
    """Refuse anything but score tables, such as the path of a run, with a `TypeError`."""
    for table in tables:
        if not isinstance(table, ScoreTable):
            hint = f"read_scores({str(table)!r})" if isinstance(table, str | PurePath) else "read_scores(path)"
            raise TypeError(f"{function}() takes a ScoreTable, got {table!r:.200}: strands_env.eval.{hint} makes one")


def _count(totals: Counter[str], metrics: Mapping[str, Any]) -> None:
    for name in _TOKENS:
        value = metrics.get(name)
        total = value.get("total") if isinstance(value, Mapping) else value
        if isinstance(total, int | float):
            totals[name] += total  # type: ignore[assignment]
    for name in _COUNTS:
        value = metrics.get(name)
        if isinstance(value, int | float):
            totals[name] += value  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices in a currency per million tokens, to turn token counts into cost."""

    input: float = 0.0
    output: float = 0.0
    cached_input: float | None = None
    """Price of cached input; None counts it like other input."""

    def cost(self, totals: Mapping[str, float]) -> float:
        """Cost of the tokens of a run."""
        cached = totals.get("cache_read_input_tokens", 0)
        fresh = totals.get("input_tokens", 0) - cached
        cached_price = self.input if self.cached_input is None else self.cached_input
        return (fresh * self.input + cached * cached_price + totals.get("output_tokens", 0) * self.output) / 1e6
