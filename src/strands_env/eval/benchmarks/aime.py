"""AIME: 30 problems a year of the American Invitational Mathematics Examination, answers from 0 to 999."""

from __future__ import annotations

from typing import Literal

from strands_env.eval.benchmarks.mathematics import MathBenchmark
from strands_env.eval.run.benchmark import HubDataset
from strands_env.eval.run.tasks import Tasks

_YEARS = {
    "2024": HubDataset(path="HuggingFaceH4/aime_2024", split="train", size=30),
    "2025": HubDataset(path="MathArena/aime_2025", split="train", size=30),
    "2026": HubDataset(path="math-ai/aime26", split="test", size=30),
}


class AIMEEvaluator(MathBenchmark):
    """AIME of a year: 30 problems, answers from 0 to 999."""

    benchmark_name = "aime"
    id_fields = ("id", "problem_idx")

    def load_dataset(self, version: Literal["2024", "2025", "2026"] | None = None) -> Tasks:
        """The problems of a year, of the class's own year if None (2024 for `AIMEEvaluator` itself)."""
        if version is not None and version not in _YEARS:
            raise ValueError(f"version must be one of {', '.join(_YEARS)}, got {version!r}")
        if version is not None or self.dataset is None:
            year = version or "2024"
            self.dataset = _YEARS[year]  # type: ignore[misc]
            self.benchmark_name = f"aime-{year}"
        return super().load_dataset()


class AIME2024Evaluator(AIMEEvaluator):
    """AIME 2024: 30 problems, answers from 0 to 999."""

    benchmark_name = "aime-2024"
    dataset = _YEARS["2024"]


class AIME2025Evaluator(AIMEEvaluator):
    """AIME 2025: 30 problems, answers from 0 to 999."""

    benchmark_name = "aime-2025"
    dataset = _YEARS["2025"]


class AIME2026Evaluator(AIMEEvaluator):
    """AIME 2026: 30 problems, answers from 0 to 999."""

    benchmark_name = "aime-2026"
    dataset = _YEARS["2026"]
