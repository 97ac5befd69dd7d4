"""GSM8K: word problems of grade-school mathematics (Cobbe et al. 2021)."""

from __future__ import annotations

from strands_env.eval.benchmarks.mathematics import MathBenchmark
from strands_env.eval.run.benchmark import HubDataset, Row, field


class GSM8KEvaluator(MathBenchmark):
    """GSM8K: 1,319 word problems, answers are whole numbers."""

    benchmark_name = "gsm8k"
    dataset = HubDataset(path="openai/gsm8k", name="main", split="test", size=1319)

    def answer(self, row: Row) -> str | None:
        """The text after `####` in the worked solution, without thousands separators."""
        solution = field(row, "answer")
        if solution is None:
            return None
        _, mark, final = solution.rpartition("####")
        return final.strip().replace(",", "") if mark else None
