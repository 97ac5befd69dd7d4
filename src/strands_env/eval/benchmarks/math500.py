"""MATH-500: the 500 problems of MATH that Lightman et al. 2023 held out."""

from __future__ import annotations

from strands_env.eval.benchmarks.mathematics import MathBenchmark
from strands_env.eval.run.benchmark import HubDataset


class Math500Evaluator(MathBenchmark):
    """MATH-500: competition problems of five levels."""

    benchmark_name = "math-500"
    dataset = HubDataset(path="HuggingFaceH4/MATH-500", split="test", size=500)
    id_fields = ("unique_id",)
    kept_fields = ("subject", "level")
