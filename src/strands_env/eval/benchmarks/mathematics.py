"""Base of the mathematics benchmarks: a problem, a final answer in a box, and math-verify."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from strands_env.core import Action, Environment, ModelFactory, TaskContext
from strands_env.eval.run.benchmark import Benchmark, Row, field

SYSTEM_PROMPT = r"Reason step by step, and put your final answer within \boxed{}."


class MathBenchmark(Benchmark):
    """Problems with one final answer; a subclass names its data set and its fields."""

    id_fields: ClassVar[tuple[str, ...]] = ("id",)
    problem_fields: ClassVar[tuple[str, ...]] = ("problem", "question")
    kept_fields: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def environment(cls, model_factory: ModelFactory, **options: Any) -> Callable[[], Environment]:
        """Reasoning without tools, scored by math-verify (extra `math`)."""
        from strands_env.rewards import MathRewardFunction

        options = {"system_prompt": SYSTEM_PROMPT, "reward_fn": MathRewardFunction(), **options}
        return lambda: Environment(model_factory=model_factory, **options)

    def answer(self, row: Row) -> str | None:
        """The final answer of a row."""
        return field(row, "answer")

    def action(self, row: Row, index: int) -> Action | None:
        """The problem with its answer."""
        problem, answer = field(row, *self.problem_fields), self.answer(row)
        if problem is None or answer is None:
            return None
        name = field(row, *self.id_fields) or str(index)
        kept = {key: row[key] for key in self.kept_fields if row.get(key) is not None}
        context = TaskContext(id=f"{self.benchmark_name}_{name}", ground_truth=answer, **kept)
        return Action(message=problem, task_context=context)
