"""MMLU-Pro: multiple choice with up to ten options in fourteen subjects (Wang et al. 2024).

The published score gives five worked examples of the subject; this asks without examples, as most reports do now. The
letter that an answer states is its answer; of two, the published script takes the first and, where an answer states
none, the last letter that stands alone or one at random.
"""

from __future__ import annotations

from strands_env.eval.benchmarks.gpqa import ChoiceReward
from strands_env.eval.run.benchmark import HubDataset, QuestionBenchmark, Row, field

LETTERS = "ABCDEFGHIJ"
SYSTEM_PROMPT = (
    'Answer the multiple-choice question. Think step by step, and finish with "the answer is (X)", '
    "X being the letter of the right option."
)


class MMLUProReward(ChoiceReward):
    """`ChoiceReward` for up to ten options."""

    letters = LETTERS


class MMLUProEvaluator(QuestionBenchmark):
    """MMLU-Pro: 12,032 questions of fourteen subjects with up to ten options, without worked examples."""

    benchmark_name = "mmlu-pro"
    dataset = HubDataset(path="TIGER-Lab/MMLU-Pro", split="test", size=12032)
    question_fields = ("question",)
    id_fields = ("question_id",)
    kept_fields = ("category",)
    system_prompt = SYSTEM_PROMPT
    reward_class = MMLUProReward

    def answer(self, row: Row) -> str | None:
        """The letter; None, so that the row is left out, where there are no options."""
        answer = field(row, "answer")
        return answer.strip().upper() if answer is not None and row.get("options") else None

    def message(self, row: Row, question: str) -> str:
        """The question with its options, in the order of the data."""
        listed = "\n".join(f"{letter}. {option}" for letter, option in zip(LETTERS, row["options"], strict=False))
        return f"Question:\n{question.strip()}\nOptions:\n{listed}"
