"""Humanity's Last Exam (Phan et al. 2025), its questions without pictures, graded by a judge model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from importlib import util
from typing import Any

from strands_env.core import Action, Environment, ModelFactory, RewardResult, StepResult, TaskContext
from strands_env.eval.benchmarks.grading import MATCH, GradedAnswerReward, published
from strands_env.eval.run.benchmark import Benchmark, HubDataset, Row, field

SYSTEM_PROMPT = """Answer in this form:
Explanation: why you chose your answer
Answer: your answer
Confidence: how sure you are, from 0% to 100%"""

_CONFIDENCE = re.compile(r"confidence\W{0,8}(\d{1,3})", re.IGNORECASE)


class HLEReward(GradedAnswerReward):
    """The judge's verdict. `info["confidence"]` is the response's own, from 0 to 1; 1 if it states none."""

    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        """Ask the judge, and read the confidence."""
        result = await super().compute(action, step_result)
        stated = _CONFIDENCE.findall(step_result.observation.final_response or "")
        confidence = min(int(stated[-1]), 100) / 100 if stated else 1.0
        return result.model_copy(update={"info": {**result.info, "confidence": confidence}})


class HLEEvaluator(Benchmark):
    """HLE: the questions of Humanity's Last Exam without pictures (asks for a licence on the hub); needs a judge."""

    benchmark_name = "hle"
    dataset = HubDataset(path="cais/hle", split="test")

    @classmethod
    def environment(cls, model_factory: ModelFactory, **options: Any) -> Callable[[], Environment]:
        """Reasoning without tools, graded by `judge_model` (the evaluated model itself if not given)."""
        judge = options.pop("judge_model", model_factory)
        known = util.find_spec("inspect_evals") is not None
        prompt = published("hle.prompts", "SYSTEM_MC") if known else SYSTEM_PROMPT
        options = {"system_prompt": prompt, "reward_fn": HLEReward(judge, MATCH), **options}
        return lambda: Environment(model_factory=model_factory, **options)

    def rows(self) -> Iterable[Row]:
        """The rows without a picture."""
        return (row for row in super().rows() if not row.get("image"))

    def action(self, row: Row, index: int) -> Action | None:
        """The question with its answer."""
        question, answer = field(row, "question"), field(row, "answer")
        if question is None or answer is None:
            return None
        kept = {key: row[key] for key in ("category", "raw_subject", "answer_type") if row.get(key) is not None}
        name = field(row, "id") or str(index)
        context = TaskContext(id=f"{self.benchmark_name}_{name}", ground_truth=answer, **kept)
        return Action(message=question, task_context=context)
