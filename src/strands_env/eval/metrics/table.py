"""Scores of a run as columns, read by every metric, small enough for a million samples."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np
from numpy.typing import NDArray

from strands_env.core import ErrorRecord, Outcome
from strands_env.core.metrics import total_of
from strands_env.eval.options import EvalOptions
from strands_env.eval.sample import EvalSample

_SUMMED = (
    *("input_tokens", "output_tokens", "cache_read_input_tokens", "model_calls", "tool_calls", "tool_iters"),
    *("tool_exceptions", "parse_errors", "tool_s", "reward_latency_s", "untrained_tokens"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptScores:
    """The scored samples of one prompt: `n` scored, `passed` of them, and the mean of their rewards."""

    n: int
    passed: int
    mean: float


class ScoreTable:
    """A row per sample, prompts in order of appearance. Build it with `add`, or with `from_results`.

    Attributes:
        tasks: Digest of each prompt's task, empty where not known.
        reasons: Number of samples by termination reason.
        errors: Number of samples by `(where, error type)`; failed cleanups are among them.
        tool_errors: Number of samples by `(tool, type)` of the exceptions that their tools raised.
        messages: The message of the first error of each kind, by the same keys.
        aborted: Number of samples lost to infrastructure.
        ungraded: Number of unscored samples whose reward function failed.
        unscored: Number of samples without a reward, for any reason.
        options: Options of the run: its samples of each prompt, its threshold.
        missing: Number of samples that the run should have and has not, being stopped or killed; 0 where not known.
        totals: Sums over all samples of token counts, model calls, tool calls and times.
    """

    def __init__(self, options: EvalOptions | None = None) -> None:
        self.options = options or EvalOptions()
        self.prompt_ids: list[str] = []
        self.tasks: list[str] = []
        self.reasons: Counter[str] = Counter()
        self.errors: Counter[tuple[str, str]] = Counter()
        self.tool_errors: Counter[tuple[str, str]] = Counter()
        self.messages: dict[tuple[str, str], str] = {}
        self.totals: Counter[str] = Counter()
        self.aborted = 0
        self.ungraded = 0
        self.unscored = 0
        self.missing = 0
        self._index: dict[str, int] = {}
        self._prompts = array("q")
        self._rewards = array("d")

    @classmethod
    def from_results(
        cls, results: Mapping[str, Sequence[EvalSample]], options: EvalOptions | None = None
    ) -> ScoreTable:
        """The table of `{prompt id: [sample, ...]}`."""
        return cls.from_samples(((name, sample) for name, samples in results.items() for sample in samples), options)

    @classmethod
    def from_samples(cls, samples: Iterable[tuple[str, EvalSample]], options: EvalOptions | None = None) -> ScoreTable:
        """The table of `(prompt id, sample)` pairs."""
        table = cls(options)
        for prompt, sample in samples:
            table.add(prompt, sample)
        return table

    def add(self, prompt_id: str, sample: EvalSample) -> None:
        """Add a sample; only numbers of it are kept."""
        index = self._index.setdefault(prompt_id, len(self.prompt_ids))
        if index == len(self.prompt_ids):
            self.prompt_ids.append(prompt_id)
            self.tasks.append(sample.task_digest)
        self._prompts.append(index)
        self._rewards.append(math.nan if sample.reward is None else sample.reward)
        self.aborted += sample.aborted
        result = sample.step_result
        self.unscored += sample.reward is None
        self.ungraded += sample.reward is None and result.end.outcome is Outcome.GRADER
        self.reasons[result.end.reason.value] += 1
        for error in filter(None, (result.error, result.cleanup_error)):
            self.errors[(str(error.where), error.type)] += 1
            self.messages.setdefault((str(error.where), error.type), _message_with_place(error))
        raised = {
            (item.tool, item.error.type): _message_with_place(item.error) for item in reversed(result.tool_errors)
        }
        self.tool_errors.update(raised.keys())
        self.messages = {**raised, **self.messages}
        for name in _SUMMED:
            total = total_of(result.observation.metrics, name)
            if isinstance(total, int | float):
                self.totals[name] += total  # type: ignore[assignment]
        self.totals["wall_s"] += sample.duration_s  # type: ignore[assignment]
        self.totals["attempts"] += sample.attempts

    def __len__(self) -> int:
        return len(self._prompts)

    @property
    def rewards(self) -> NDArray[np.float64]:
        """float64[samples]; NaN where a sample has no reward."""
        return np.array(self._rewards, dtype=np.float64)

    @property
    def prompts(self) -> NDArray[np.int64]:
        """int64[samples]: index into `prompt_ids`."""
        return np.array(self._prompts, dtype=np.int64)

    def by_prompt(self, reward_threshold: float | None = None) -> list[PromptScores]:
        """Scores of every prompt, in the order of `prompt_ids`; a sample passes with at least the threshold.

        The threshold is the run's own if None.
        """
        threshold = self.options.reward_threshold if reward_threshold is None else reward_threshold
        rewards, prompts, count = self.rewards, self.prompts, len(self.prompt_ids)
        scored = ~np.isnan(rewards)
        sizes = np.bincount(prompts[scored], minlength=count)
        passed = np.bincount(prompts[scored & (rewards >= threshold)], minlength=count)
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


def _message_with_place(error: ErrorRecord) -> str:
    """The cause and the message of an error, with the line of the user's code that raised it."""
    message = "\n".join(filter(None, (error.cause, error.message)))
    return message if error.raised_at is None else f"{message} ({error.raised_at})"
