"""HMMT: the Harvard-MIT Mathematics Tournament, as MathArena publishes it."""

from __future__ import annotations

from strands_env.eval.benchmarks.mathematics import MathBenchmark
from strands_env.eval.run.benchmark import HubDataset


class HMMTEvaluator(MathBenchmark):
    """HMMT: problems with closed-form answers."""

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
