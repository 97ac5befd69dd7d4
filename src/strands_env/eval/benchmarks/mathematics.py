"""Benchmarks of mathematics: a problem, and a final answer in a box."""

from __future__ import annotations

from typing import ClassVar, Literal

from strands_env.core import Action
from strands_env.eval.run.benchmark import Benchmark, HubDataset, Row, field
from strands_env.eval.run.tasks import Tasks
from strands_env.rewards import MathRewardFunction

_AIME = {
    "2024": HubDataset(path="HuggingFaceH4/aime_2024", split="train", size=30),
    "2025": HubDataset(path="MathArena/aime_2025", split="train", size=30),
    "2026": HubDataset(path="math-ai/aime26", split="test", size=30),
}

SYSTEM_PROMPT = r"Reason step by step, and put your final answer within \boxed{}."


class MathBenchmark(Benchmark):
    """Problems with one final answer (extra `math`); a subclass names its data set.

    Attributes:
        id_fields: Columns that may hold the id, by default the number of the row.
        kept_fields: Further columns that the task context keeps.
    """

    system_prompt = SYSTEM_PROMPT
    reward_class = MathRewardFunction
    id_fields: ClassVar[tuple[str, ...]] = ("id",)
    kept_fields: ClassVar[tuple[str, ...]] = ()

    def action(self, row: Row, index: int) -> Action | None:
        """The problem with its answer."""
        problem, answer = field(row, "problem", "question"), field(row, "answer")
        if problem is None or answer is None:
            return None
        columns = {key: row[key] for key in self.kept_fields if row.get(key) is not None}
        return self.task(field(row, *self.id_fields) or str(index), problem, answer, **columns)


class AIMEEvaluator(MathBenchmark):
    """AIME of a year: 30 problems, answers from 0 to 999."""

    benchmark_name = "aime"
    id_fields = ("id", "problem_idx")

    def load_dataset(self, version: Literal["2024", "2025", "2026"] | None = None) -> Tasks:
        """The problems of a year, of the class's own year if None (2024 for `AIMEEvaluator` itself)."""
        if version is not None and version not in _AIME:
            raise ValueError(f"version must be one of {', '.join(_AIME)}, got {version!r}")
        if version is not None or self.dataset is None:
            year = version or "2024"
            self.dataset = _AIME[year]  # type: ignore[misc]
            self.benchmark_name = f"aime-{year}"
        return super().load_dataset()


class AIME2024Evaluator(AIMEEvaluator):
    """AIME 2024: 30 problems, answers from 0 to 999."""

    benchmark_name = "aime-2024"
    dataset = _AIME["2024"]


class AIME2025Evaluator(AIMEEvaluator):
    """AIME 2025: 30 problems, answers from 0 to 999."""

    benchmark_name = "aime-2025"
    dataset = _AIME["2025"]


class AIME2026Evaluator(AIMEEvaluator):
    """AIME 2026: 30 problems, answers from 0 to 999."""

    benchmark_name = "aime-2026"
    dataset = _AIME["2026"]


class HMMTEvaluator(MathBenchmark):
    """HMMT, the Harvard-MIT Mathematics Tournament, as MathArena publishes it."""

    benchmark_name = "hmmt"
    id_fields = ("problem_idx", "id")


class HMMTFeb2025Evaluator(HMMTEvaluator):
    """HMMT February 2025: 30 problems with closed-form answers."""

    benchmark_name = "hmmt-feb-2025"
    dataset = HubDataset(path="MathArena/hmmt_feb_2025", split="train", size=30)


class HMMTNov2025Evaluator(HMMTEvaluator):
    """HMMT November 2025: 30 problems with closed-form answers."""

    benchmark_name = "hmmt-nov-2025"
    dataset = HubDataset(path="MathArena/hmmt_nov_2025", split="train", size=30)


class HMMTFeb2026Evaluator(HMMTEvaluator):
    """HMMT February 2026: problems with closed-form answers."""

    benchmark_name = "hmmt-feb-2026"
    dataset = HubDataset(path="MathArena/hmmt_feb_2026", split="train")


class Math500Evaluator(MathBenchmark):
    """MATH-500: competition problems of five levels that Lightman et al. 2023 held out."""

    benchmark_name = "math-500"
    dataset = HubDataset(path="HuggingFaceH4/MATH-500", split="test", size=500)
    id_fields = ("unique_id",)
    kept_fields = ("subject", "level")
