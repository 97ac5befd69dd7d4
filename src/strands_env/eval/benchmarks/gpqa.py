"""GPQA: graduate-level multiple choice in biology, physics and chemistry (Rein et al. 2023). Asks for a licence."""

from __future__ import annotations

import random
import re

from strands_env.core import Action, RewardFunction, RewardResult, StepResult, TaskContext
from strands_env.eval.run.benchmark import Benchmark, HubDataset, Row, field

LETTERS = "ABCD"
SYSTEM_PROMPT = 'Answer the multiple-choice question. Reason first; end with the line "Answer: X", X being the letter.'

_WRONG = ("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
_STATED = re.compile(r"answer\s*+(?:is)?\s*+:?\s*+\(?\**+\s*+\(?([A-D])\b", re.IGNORECASE)
_BRACKETED = re.compile(r"\(([A-D])\)")


class ChoiceReward(RewardFunction):
    """1.0 where the chosen letter is the ground truth: the last one called the answer, else the last in brackets.

    An answer without a letter is wrong, with reason `no_letter`.
    """

    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        """Find the letter and compare it."""
        truth = action.task_context.ground_truth
        letter = self.find(step_result.observation.final_response or "")
        info = {"ground_truth": truth, "letter": letter, **({} if letter else {"reason": "no_letter"})}
        return RewardResult(reward=float(letter == truth), info=info)

    def find(self, text: str) -> str | None:
        """The letter that an answer chooses, or None."""
        found = _STATED.findall(text) or _BRACKETED.findall(text)
        return found[-1].upper() if found else None


class GPQAEvaluator(Benchmark):
    """GPQA: graduate-level multiple choice; the data set asks for a licence on the hub."""

    benchmark_name = "gpqa"
    system_prompt = SYSTEM_PROMPT
    reward_class = ChoiceReward

    def action(self, row: Row, index: int) -> Action | None:
        """The question with its choices in an order that depends on `seed` and the record only."""
        question, right = field(row, "Question"), field(row, "Correct Answer")
        wrong = [choice for name in _WRONG if (choice := field(row, name)) is not None]
        if question is None or right is None or len(wrong) != len(_WRONG):
            return None
        name = field(row, "Record ID") or str(index)
        choices = [right.strip(), *(choice.strip() for choice in wrong)]
        order = list(range(len(choices)))
        # By the record and not its place, so that a part of the data has the choices of the whole.
        random.Random(f"{self.seed}/{name}").shuffle(order)
        listed = "\n".join(f"({letter}) {choices[place]}" for letter, place in zip(LETTERS, order, strict=True))
        context = TaskContext(id=f"{self.benchmark_name}_{name}", ground_truth=LETTERS[order.index(0)])
        return Action(message=f"{question.strip()}\n\n{listed}", task_context=context)


class GPQADiamondEvaluator(GPQAEvaluator):
    """GPQA Diamond: 198 graduate-level questions (licence on the hub)."""

    benchmark_name = "gpqa-diamond"
    dataset = HubDataset(path="Idavidrein/gpqa", name="gpqa_diamond", split="train", size=198)


class GPQAMainEvaluator(GPQAEvaluator):
    """GPQA Main: 448 graduate-level questions (licence on the hub)."""

    benchmark_name = "gpqa-main"
    dataset = HubDataset(path="Idavidrein/gpqa", name="gpqa_main", split="train", size=448)


class GPQAExtendedEvaluator(GPQAEvaluator):
    """GPQA Extended: 546 graduate-level questions (licence on the hub)."""

    benchmark_name = "gpqa-extended"
    dataset = HubDataset(path="Idavidrein/gpqa", name="gpqa_extended", split="train", size=546)
