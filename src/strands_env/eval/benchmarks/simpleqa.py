"""SimpleQA Verified: short questions of fact, graded by a judge model."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, Field

from strands_env.core import Action, Environment, ModelFactory, StepResult, TaskContext
from strands_env.eval.benchmark import Benchmark, HubDataset, Row, field
from strands_env.rewards import LLMJudgeReward


class Grade(StrEnum):
    """The three grades of SimpleQA."""

    CORRECT = "correct"
    """The answer holds the expected fact and nothing that contradicts it."""
    INCORRECT = "incorrect"
    """The answer contradicts the expected fact, hedged or not."""
    NOT_ATTEMPTED = "not_attempted"
    """The answer neither gives nor contradicts it."""


class Judgment(BaseModel):
    """What the judge answers."""

    grade: Grade = Field(description="correct, incorrect or not_attempted")


PROMPT = """Grade an answer to a question of fact against the expected answer.

- correct: it states the expected answer in full, in any wording, and nothing that contradicts it. What the question
  already implies may be left out. A number must agree to the last significant digit of the expected one.
- incorrect: any part of it contradicts the expected answer, even when it is hedged.
- not_attempted: it does not state the expected answer, and contradicts nothing.

Question: {question}
Expected answer: {truth}
Answer to grade: {answer}"""


class SimpleQAReward(LLMJudgeReward[Judgment]):
    """1.0 for a correct answer, 0.0 for an incorrect one or none; a judge that fails gives no reward."""

    judgment_format = Judgment

    async def get_judge_prompt(self, action: Action, step_result: StepResult) -> str:
        """Question, expected answer and the answer to grade."""
        answer = step_result.observation.final_response or "(no answer)"
        return PROMPT.format(question=action.text, truth=action.task_context.ground_truth, answer=answer)

    async def get_reward(self, judgment: Judgment) -> float | None:
        """1.0 for correct, else 0.0."""
        return float(judgment.grade is Grade.CORRECT)


class SimpleQAVerifiedEvaluator(Benchmark):
    """SimpleQA Verified: 1,000 short questions of fact; needs a judge model."""

    benchmark_name = "simpleqa-verified"
    dataset = HubDataset(path="google/simpleqa-verified", split="eval", size=1000)

    @classmethod
    def environment(cls, model_factory: ModelFactory, **options: Any) -> Callable[[], Environment]:
        """A plain conversation, graded by `judge_model` (the evaluated model itself if not given)."""
        judge = options.pop("judge_model", model_factory)
        options = {"reward_fn": SimpleQAReward(judge), **options}
        return lambda: Environment(model_factory=model_factory, **options)

    def action(self, row: Row, index: int) -> Action | None:
        """The question with its expected answer."""
        question, answer = field(row, "problem", "question"), field(row, "answer")
        if question is None or answer is None:
            return None
        name = field(row, "original_index") or str(index)
        context = TaskContext(id=f"{self.benchmark_name}_{name}", ground_truth=answer)
        return Action(message=question, task_context=context)
