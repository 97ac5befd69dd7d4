"""Ground truths in the formats of data sets: each grader reads them, or refuses them with a sentence."""

from __future__ import annotations

import importlib.util
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from strands_env.core import Action, TaskContext
from strands_env.rewards import (
    ChoiceReward,
    ExactMatchReward,
    MathRewardFunction,
    NumberReward,
    RegexMatchReward,
    prove_reward,
)
from strands_env.testing import answered

GRADERS = {
    "math": MathRewardFunction,
    "number": NumberReward,
    "exact": ExactMatchReward,
    "regex": lambda: RegexMatchReward(r"#### (\S+)", group=1),
    "choice": ChoiceReward,
}
SOLUTION = "He has 3*6=<<3*6=18>>18 eggs.\n#### 18"
# The graders that read it, the ground truth, a right answer, a wrong one.
READ: list[tuple[str, Any, str, str]] = [
    ("math number exact", "#### 18", "18", "17"),
    ("math number exact", SOLUTION, "18", "17"),
    ("math number", SOLUTION, "The answer is 18.", "The answer is 6."),
    ("math number", "16 - 7 = 9 eggs at $2. #### 18", "18", "9"),
    ("regex", SOLUTION, "#### 18", "#### 6"),
    ("regex", 18, "#### 18", "#### 6"),
    ("math number", "#### 1,234", "1234", "1235"),
    ("math number exact", "<answer>18</answer>", "18", "17"),
    ("exact", "<answer>18</answer>", "<answer>18</answer>", "<answer>17</answer>"),
    ("math number exact", 4.0, "4", "5"),
    ("math number exact", 4, "4.0", "4.1"),
    ("exact", "4.0", "4.0", "4"),
    ("math number", "9 (apples)", "The answer is 9.", "The answer is 8."),
    ("math number exact", np.int64(7), "7", "8"),
    ("math number exact", np.float32(0.5), "0.5", "0.6"),
    ("math number exact", np.array([7]), "7", "8"),
    ("math number exact", Decimal("1E+3"), "1000", "1E+2"),
    ("math number exact", Fraction(1, 3), "1/3", "0.33"),
    ("math exact", True, "True", "False"),
    ("exact", np.bool_(False), "false", "true"),
    ("math", True, "The statement is true.", "The statement is false."),
    ("math", ["$\\frac{1}{2}$"], r"\boxed{0.5}", r"\boxed{0.2}"),
    ("exact", ["Paris", ("Lutetia", 4)], "4.0", "5"),
    ("math number exact", 2**64 + 1, "18446744073709551617", "18446744073709551616"),
    ("math number", 6.02e23, "6.02e23", "6.03e23"),
    ("choice", "(C)", "Answer: C", "Answer: B"),
]
UNREADABLE: list[tuple[str, Any, str]] = [
    ("math number exact regex choice", None, "is missing"),
    ("math number exact regex choice", " ", "is empty"),
    ("math number exact regex choice", [], "at least one item"),
    ("math number exact regex choice", {"ground_truth": "7"}, "got dict {'ground_truth': '7'}"),
    ("math number exact regex choice", float("nan"), "is not finite"),
    ("math number exact regex choice", np.float64("inf"), "is not finite"),
    ("math number exact", float(2**64), "a float that was rounded"),
    ("math number choice", [1, 2], "has 2 items"),
    ("number", "B", "'B' is not a number"),
]


def task(truth: Any) -> Action:
    return Action(message="q", task_context=TaskContext(id="t", ground_truth=truth))


@pytest.mark.parametrize(("graders", "truth", "right", "wrong"), READ, ids=[repr(row[1])[:40] for row in READ])
async def test_a_ground_truth_is_read_by_every_grader_alike(graders: str, truth: Any, right: str, wrong: str) -> None:
    for name in graders.split():
        if name == "math" and importlib.util.find_spec("math_verify") is None:
            continue
        found = [(await GRADERS[name]().compute(task(truth), answered(text))).reward for text in (right, wrong)]
        assert found == [1.0, 0.0], name


@pytest.mark.parametrize(("graders", "truth", "said"), UNREADABLE, ids=[repr(row[1])[:40] for row in UNREADABLE])
async def test_what_cannot_be_compared_scores_no_answer_and_says_why(graders: str, truth: Any, said: str) -> None:
    for name in graders.split():
        if name == "math" and importlib.util.find_spec("math_verify") is None:
            continue
        reward = GRADERS[name]()
        for answer in (str(truth), "7", None):
            result = await reward.compute(task(truth), answered(answer))
            assert (result.reward, result.info["reason"]) == (None, "invalid_ground_truth"), name
            assert said in result.info["error"]
        if name in ("math", "number", "exact"):  # before the run
            proof = await prove_reward([task(truth), task("4")], reward)
            assert proof.rows[0].verdict == "broken" and said in proof.rows[0].reason
