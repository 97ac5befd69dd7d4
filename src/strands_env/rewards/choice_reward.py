"""`ChoiceReward`: the letter that an answer states."""

from __future__ import annotations

from typing import Final

from strands_env.core import Action, RewardFunction, RewardResult, StepResult

from .choices import find_letter
from .golds import GroundTruthError, only_gold

LETTERS: Final = "ABCDEFGHIJ"


class ChoiceReward(RewardFunction):
    """1.0 where the letter that an answer states is the ground truth; without one it is wrong: `no_letter`.

    Args:
        letters: Those of the options; None for as many as the task has `choices`, of `LETTERS`.
    """

    def __init__(self, letters: str | None = None) -> None:
        self.letters = letters

    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        """Find the letter and compare it."""
        truth = action.task_context.ground_truth
        try:
            gold = only_gold(truth).strip().strip("()").upper()
        except GroundTruthError as error:
            return RewardResult(info={"ground_truth": truth, "reason": "invalid_ground_truth", "error": str(error)})
        choices = (action.task_context.model_extra or {}).get("choices")
        letters = self.letters or (LETTERS[: len(choices)] if isinstance(choices, list) and choices else LETTERS)
        letter = find_letter(step_result.observation.final_response or "")
        letter = letter if letter is not None and letter in letters else None
        info = {"ground_truth": truth, "letter": letter, **({} if letter else {"reason": "no_letter"})}
        return RewardResult(reward=float(letter == gold), info=info)
