"""Multiple choice: GPQA (Rein et al. 2023), whose data asks for a licence, and MMLU-Pro (Wang et al. 2024).

The published score of MMLU-Pro gives five worked examples of the subject; this asks without examples, as most reports
do now. The letter that an answer states is its answer; of two, the published script takes the first and, where an
answer states none, the last letter that stands alone or one at random.
"""

from __future__ import annotations

import random
from typing import ClassVar

from strands_env.core import Action, RewardFunction, RewardResult, StepResult
from strands_env.eval.run.benchmark import Benchmark, HubDataset, QuestionBenchmark, Row, field
from strands_env.rewards.choices import find_letter
from strands_env.rewards.golds import GroundTruthError, only_gold

LETTERS = "ABCD"
SYSTEM_PROMPT = 'Answer the multiple-choice question. Reason first; end with the line "Answer: X", X being the letter.'

_WRONG = ("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


class ChoiceReward(RewardFunction):
    """1.0 where the letter that an answer states is the ground truth; without one it is wrong: `no_letter`."""

    letters: ClassVar[str] = LETTERS

    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        """Find the letter and compare it."""
        truth = action.task_context.ground_truth
        try:
            gold = only_gold(truth).strip().strip("()").upper()
        except GroundTruthError as error:
            return RewardResult(info={"ground_truth": truth, "reason": "invalid_ground_truth", "error": str(error)})
        letter = find_letter(step_result.observation.final_response or "")
        letter = letter if letter is not None and letter in self.letters else None
        info = {"ground_truth": truth, "letter": letter, **({} if letter else {"reason": "no_letter"})}
        return RewardResult(reward=float(letter == gold), info=info)


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
        return self.task(name, f"{question.strip()}\n\n{listed}", LETTERS[order.index(0)])


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


class MMLUProReward(ChoiceReward):
    """`ChoiceReward` for up to ten options."""

    letters = "ABCDEFGHIJ"


class MMLUProEvaluator(QuestionBenchmark):
    """MMLU-Pro: 12,032 questions of fourteen subjects with up to ten options, without worked examples."""

    benchmark_name = "mmlu-pro"
    dataset = HubDataset(path="TIGER-Lab/MMLU-Pro", split="test", size=12032)
    question_fields = ("question",)
    id_fields = ("question_id",)
    kept_fields = ("category",)
    system_prompt = (
        'Answer the multiple-choice question. Think step by step, and finish with "the answer is (X)", '
        "X being the letter of the right option."
    )
    reward_class = MMLUProReward

    def answer(self, row: Row) -> str | None:
        """The letter; None, so that the row is left out, where there are no options."""
        answer = field(row, "answer")
        return answer.strip().upper() if answer is not None and row.get("options") else None

    def message(self, row: Row, question: str) -> str:
        """The question with its options, in the order of the data."""
        listed = "\n".join(f"{letter}. {option}" for letter, option in zip(LETTERS, row["options"], strict=False))
        return f"Question:\n{question.strip()}\nOptions:\n{listed}"
