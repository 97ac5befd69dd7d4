"""The proof of a reward: broken rewards and tasks are found, sound ones pass."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from typing import Any

import pytest

pytest.importorskip("math_verify", reason="needs the extra `math`")

from strands_env.core import Action, RewardFunction, RewardResult, StepResult, TaskContext
from strands_env.rewards import (
    ChoiceReward,
    CorrectnessJudgeReward,
    ExactMatchReward,
    FormatReward,
    MathRewardFunction,
    NumberReward,
    RegexMatchReward,
    RewardExamples,
    TaskVerdict,
    ToolUseReward,
    WeightedReward,
    numerals,
    proof,
    prove_reward,
)
from strands_env.rewards.golds import gold_text
from strands_env.rewards.proof import RewardOf, wrong_answers
from strands_env.testing import RewardContract, ScriptedModel

NUMBERS = ["4", "17", "-3", "425", "0.5", "1"]
TEXTS = ["Paris", "New York", "yes", "42"]


def tasks(*golds: Any, **more: Any) -> list[Action]:
    return [
        Action(message=f"Question {place}?", task_context=TaskContext(id=f"t{place}", ground_truth=gold, **more))
        for place, gold in enumerate(golds)
    ]


def text_of(result: StepResult) -> str:
    return result.observation.final_response or ""


def is_gold(action: Action, result: StepResult) -> float:
    return float(text_of(result).removeprefix("The answer is ").rstrip(".") == str(action.ground_truth))


def contains(action: Action, result: StepResult) -> float:
    return float(str(action.ground_truth) in text_of(result))


def first_word(action: Action, result: StepResult) -> float:
    return float(text_of(result).split(",")[0].lstrip("-") == action.ground_truth)


def as_digits(action: Action, result: StepResult) -> float:
    """A reward that reads digits alone, and no gold with a comma."""
    return float(float(action.ground_truth) == float(text_of(result).rstrip(".")))


def in_turn() -> Any:
    scores = itertools.cycle([1.0, 0.0])
    return lambda action, result: next(scores)


class NeedsAnEpisode(RewardFunction):
    """A reward that reads more than the answer, and says so."""

    def examples(self, action: Action) -> None:
        return None

    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        raise RuntimeError("no database")


class Programs(RewardFunction):
    """Answers that a text can be made of, but not from the gold."""

    def __init__(self, right: str) -> None:
        self.right = right

    def examples(self, action: Action) -> RewardExamples:
        return RewardExamples(right=[self.right], wrong=["print(2)"])

    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        return RewardResult(reward=float(text_of(step_result) == "print(1)"))


class BadExamples(Programs):
    def examples(self, action: Action) -> RewardExamples:
        raise KeyError("tests")


def unscored(action: Action, result: StepResult) -> float | None:
    return is_gold(action, result) or None


def raises(action: Action, result: StepResult) -> float:
    if not is_gold(action, result):
        raise ValueError("wrong")
    return 1.0


def or_also(pattern: str) -> Any:
    """A reward that pays for its gold, and for answers with a pattern in which `GOLD` stands for it."""

    def reward(action: Action, result: StepResult) -> float:
        words = pattern.replace("GOLD", re.escape(str(action.ground_truth))).replace("PROMPT", re.escape(action.text))
        return float(is_gold(action, result) or bool(re.fullmatch(words, text_of(result), re.DOTALL)))

    return reward


def same_words(action: Action, result: StepResult) -> float:
    return float({*text_of(result).split()} == {*action.ground_truth.split()})


def same_digits(action: Action, result: StepResult) -> float:
    return float(re.sub(r"\D", "", text_of(result)) == re.sub(r"\D", "", action.ground_truth))


def is_part_of_gold(action: Action, result: StepResult) -> float:
    return float(bool(text_of(result)) and text_of(result) in action.ground_truth)


SOUND: dict[str, tuple[Any, list[Any]]] = {
    "exact": (ExactMatchReward(ignore_case=True), TEXTS),
    "several golds": (ExactMatchReward(), [["Paris", "paris"], "Rome"]),
    "a function": (is_gold, [*TEXTS, 7, 2.5]),
    "weighted": (WeightedReward({"a": (ExactMatchReward(), 1.0), "s": (FormatReward("^.{1,10}$"), 0.5)}), TEXTS),
    "a penalty": (lambda a, r: is_gold(a, r) - 0.01 * len(text_of(r)), TEXTS),
    "minus one": (lambda a, r: 2 * is_gold(a, r) - 1, TEXTS),
    "a scale of its own": (lambda a, r: 0.25 * is_gold(a, r), TEXTS),
    "maths": (MathRewardFunction(), ["4", "-17", r"\frac{1}{2}", "x^2+1", "(1, 2)", r"\{1, 2\}", r"10^{5}", "5 cm"]),
    "the last number": (NumberReward(), ["4", "-17", "425", "1,234", 7, 2.5, "0"]),
    "golds of one value": (MathRewardFunction(), ["5", "5 apples", "7"]),
    "two golds of one value": (MathRewardFunction(), ["5", "5 apples"]),
    "maths of one value": (MathRewardFunction(), ["3", "2+1", "1/2", "0.5"]),
    "less than half for what is wrong": (lambda a, r: is_gold(a, r) or 0.49, TEXTS),
    "four letters": (ChoiceReward("ABCD"), list("ABCDA")),
    "ten letters": (ChoiceReward(), list("AJCDA")),
    "a program": (Programs("print(1)"), [None, None]),
    "a regular expression as the gold": (RegexMatchReward(), [r"^Paris\b", r"(?<!\w)42\Z"]),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_rewards_pass(name):
    reward, golds = SOUND[name]
    proof = asyncio.run(prove_reward(tasks(*golds), reward))
    assert len(proof.rows) == len(golds) and proof.ok, proof.table()


FAULTY: dict[str, tuple[Any, list[Any], dict[str, str]]] = {
    "a gold inside another": (contains, ["42", "425", "7"], dict.fromkeys(("t0", "t1", "t2"), "free")),
    "the sign is not read": (first_word, ["4", "17"], dict.fromkeys(("t0", "t1"), "free")),
    "anything wins": (lambda a, r: 1.0, TEXTS, dict.fromkeys(("t0", "t1", "t2", "t3"), "free")),
    "an empty answer wins": (lambda a, r: not text_of(r) or is_gold(a, r), ["x"], {"t0": "free"}),
    "the prompt wins": (lambda a, r: "Question" in text_of(r) or is_gold(a, r), ["x"], {"t0": "free"}),
    "a list of all wins": (
        lambda a, r: float(str(a.ground_truth) in text_of(r).split(", ") or is_gold(a, r)),
        ["Paris", "Rome", "Lima"],
        dict.fromkeys(("t0", "t1", "t2"), "free"),
    ),
    "the last element is not read": (
        lambda a, r: float(text_of(r).rstrip(".").strip("()")[:1] == a.ground_truth[1]),
        ["(1, 2)", "(3, 4)"],
        {"t0": "free", "t1": "free"},
    ),
    "a gold that no answer equals": (as_digits, ["4", "1,234", "8"], {"t1": "broken"}),
    "no gold": (is_gold, ["4", None, ""], {"t1": "broken", "t2": "broken"}),
    "a reward that abstains": (lambda a, r: None if a.id == "t1" else is_gold(a, r), TEXTS, {"t1": "broken"}),
    "a gold that loses": (lambda a, r: a.id != "t1" and is_gold(a, r), TEXTS, {"t1": "unsolved"}),
    "an example that loses": (Programs("print(3)"), [None], {"t0": "unsolved"}),
    "examples that raise": (BadExamples(""), ["x"], {"t0": "broken"}),
    "golds that are no texts": (MathRewardFunction(), [["4", "5"], {"a": 5}], {"t0": "broken", "t1": "broken"}),
    "one gold that is no text": (is_gold, ["4", ["5"], "Paris"], {"t1": "broken"}),
    "not the same twice": (in_turn(), ["Paris"], {"t0": "flaky"}),
    "what is wrong is never scored": (unscored, ["42", "57"], {"t0": "broken", "t1": "broken"}),
    "a gold beside one that is none": (NumberReward(), ["5", "5 apples", "7"], {"t1": "broken"}),
    "what is wrong raises": (raises, ["42", "57"], {"t0": "broken", "t1": "broken"}),
    "nearly all for what is wrong": (lambda a, r: is_gold(a, r) or 0.99, ["42", "57"], {"t0": "free", "t1": "free"}),
    "a first guess": (or_also("GOLD.{500,}"), ["42", "57"], {"t0": "free", "t1": "free"}),
    "one of two": (or_also("GOLD or .*"), ["42", "57"], {"t0": "free", "t1": "free"}),
    "one of many": (or_also("(.*, ){5}.*"), ["42", "57"], {"t0": "free", "t1": "free"}),
    "the prompt and more": (or_also("PROMPT .*"), ["42", "57"], {"t0": "free", "t1": "free"}),
    "white space": (or_also(r"\s+"), ["42", "57"], {"t0": "free", "t1": "free"}),
    "one of two texts": (or_also("GOLD or .*"), ["Paris", "Rome"], {"t0": "free", "t1": "free"}),
    "the last of two": (or_also(".* or GOLD"), ["Paris", "57"], {"t0": "free", "t1": "free"}),
    "a denied box": (or_also(r"It is not \\boxed\{GOLD\}"), ["B", "57"], {"t0": "free", "t1": "free"}),
    "a long answer": (or_also(".{2000,}"), ["B", "57"], {"t0": "free", "t1": "free"}),
    "a long answer with the gold": (or_also(".{500,}GOLD.{500,}"), ["Paris", "57"], {"t0": "free", "t1": "free"}),
    "a gold inside a word": (or_also(r"\w+GOLD\w+"), ["Paris", "New York"], {"t0": "free", "t1": "free"}),
    "a gold that ends another": (or_also(r"\d+GOLD"), ["42", "57"], {"t0": "free", "t1": "free"}),
    "words in any order": (same_words, ["New York", "Lima"], {"t0": "free"}),
    "digits alone": (same_digits, ["2.5", "Rome 4"], {"t0": "free", "t1": "free"}),
    "a rounded number": (or_also(r"GOLD\.4"), ["42", "57"], {"t0": "free", "t1": "free"}),
    "a part of the gold": (is_part_of_gold, ["425", "Paris"], {"t0": "free", "t1": "free"}),
    "half of the gold": (or_also("GOLD/2"), ["42", "57"], {"t0": "free", "t1": "free"}),
    "a pattern that fits anything": (RegexMatchReward(), [".*", r"\b42\Z", "4"], {"t0": "free", "t2": "free"}),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTY)
def test_faults_are_found_with_their_rows(name):
    reward, golds, expected = FAULTY[name]
    proof = asyncio.run(prove_reward(tasks(*golds), reward))
    found = {row.id: row.verdict.value for row in proof.rows if row.verdict is not TaskVerdict.SOUND}
    assert found == expected and not proof.ok, proof.table()
    assert all(row_id in proof.table() for row_id in expected)
    assert json.loads(json.dumps(proof.to_json()))["verdicts"].keys() >= set(expected.values())


@pytest.mark.parametrize(
    "gold", ["4", "-17", "1,234", "50%", r"\frac{1}{2}", "10^{5}", "(1, 2)", r"\{1, 2\}", "5 cm", "B", "yes", "Paris"]
)
def test_no_wrong_answer_is_the_gold(gold):
    found = wrong_answers(gold, ["7", gold, f" {gold} ", "Rome", "London", "0.50", "4.0"], "Question?")
    assert {"nothing", "no answer", "the prompt"} <= found.keys()
    assert (gold not in found.values() and "4.0" not in found.values()) or gold != "4"
    assert len(set(found.values())) == len(found)


@pytest.mark.parametrize(
    ("gold", "what", "text"),
    [
        ("425", "gold with another last digit", "426"),
        ("425", "gold with a digit more", "4250"),
        ("-3", "gold with another sign", "3"),
        ("10^{5}", "gold with another last digit", "10^{6}"),
        ("2^{3}x", "gold with another last digit", "2^{4}x"),
        (r"\{1, 2, 3\}", "gold with the last element missing", r"\{1, 2\}"),
        ("5 cm", "gold with another unit", "5 km"),
        ("(B)", "gold with the next letter", "(C)"),
        ("True", "gold with the opposite", "False"),
        ("4", "all golds", "7, 4, 9"),
        ("Paris", "gold with two letters swapped", "Prais"),
        ("2024-05-12", "gold with day and month swapped", "2024-12-05"),
        ("3/4/2024", "gold with day and month swapped", "4/3/2024"),
        ("Paris", "gold denied", "the answer is not Paris"),
        ("Paris", "not gold", "not Paris"),
        ("42", "gold with a word that changes it", "42 squared"),
    ],
)
def test_golds_are_changed_in_one_place(gold, what, text):
    assert wrong_answers(gold, ["7", "9"])[what] == text


def test_spellings_that_a_reward_does_not_read_are_told_with_their_tasks():
    proof = asyncio.run(prove_reward(tasks("4", "2.5", "7"), lambda a, r: is_gold(a, r) and text_of(r) != "2.5."))
    assert proof.ok
    assert proof.lost_forms == {"boxed": ("t0", "t1", "t2"), "with a stop": ("t1",)}
    assert "when written with a stop in 1 of 3 tasks (t1)" in proof.table()


def test_a_judge_is_asked_on_demand_only():
    asked = []

    def model() -> ScriptedModel:
        asked.append(1)
        return ScriptedModel(["correct"])

    judge = WeightedReward({"judge": (CorrectnessJudgeReward(model), 1.0)})
    proof = asyncio.run(prove_reward(tasks(*TEXTS), judge))
    assert not proof.rows and not asked and "on demand" in proof.table()
    asyncio.run(prove_reward(tasks("Paris"), judge, ask_models=True))
    assert asked


def test_tasks_without_ground_truth_are_not_tried():
    proof = asyncio.run(prove_reward(tasks(None, None), NeedsAnEpisode()))
    assert not proof.rows and "none has ground truth" in proof.table()


@pytest.mark.parametrize("reward", [NeedsAnEpisode(), ToolUseReward(), FormatReward("a"), RegexMatchReward("a")])
def test_a_reward_that_reads_no_answer_is_not_tried(reward):
    proof = asyncio.run(prove_reward(tasks(*TEXTS), reward))
    assert not proof.rows and proof.ok and not proof.decides


def test_a_sample_is_the_same_for_a_seed_and_ends_with_the_budget():
    many = tasks(*range(50))
    first, again, other = (asyncio.run(prove_reward(many, is_gold, limit=5, seed=seed)) for seed in (1, 1, 2))
    ids = [[row.id for row in proof.rows] for proof in (first, again, other)]
    assert ids[0] == ids[1] != ids[2] and len(ids[0]) == 5 and first.total == 50

    async def hangs(action: Action, result: StepResult) -> float:
        await asyncio.sleep(0.0 if action.id == "t3" else 3600.0)
        return is_gold(action, result)

    proof = asyncio.run(prove_reward(tasks(*range(3)), hangs, seconds=0.1))
    assert proof.is_late and not proof.ok and "too short" in proof.table()
    proof = asyncio.run(prove_reward(tasks(*range(4)), hangs, seconds=1.0))
    assert [row.id for row in proof.rows] == ["t3"]
    late = asyncio.run(prove_reward(tasks("a"), hangs, timeout=0.05, limit=1))
    assert late.rows[0].verdict is TaskVerdict.BROKEN and "EpisodeTimeoutError" in late.rows[0].reason


def test_the_slowest_answer_and_errors_are_told():
    def slow(action: Action, result: StepResult) -> float:
        if text_of(result) == "I do not know":
            time.sleep(0.05)
            raise KeyError("unknown")
        return is_gold(action, result)

    proof = asyncio.run(prove_reward(tasks("x", "y"), slow))
    assert proof.ok and proof.slowest >= 0.05
    assert proof.raised[0] == 2 and "KeyError" in proof.table()


def test_each_task_may_have_a_reward_of_its_own():
    async def make(action: Action) -> Any:
        return None if action.id == "t0" else ExactMatchReward() if action.id == "t1" else contains

    proof = asyncio.run(prove_reward(tasks("a", "b", "42"), RewardOf(make)))
    assert {row.id: row.verdict.value for row in proof.rows} == {"t1": "sound", "t2": "free"}


def test_a_reward_that_remembers_texts_makes_no_golds_equal():
    scores: dict[str, float] = {}

    def remembers(action: Action, result: StepResult) -> float:
        return scores.setdefault(text_of(result), is_gold(action, result))

    proof = asyncio.run(prove_reward(tasks("42", "57", "131"), remembers))
    assert not proof.ok and not proof.equal_golds, proof.table()


def test_golds_of_one_value_and_unscored_wrong_answers_are_notes():
    def abstains(action: Action, result: StepResult) -> float | None:
        return None if "know" in text_of(result) else is_number(action, result)

    def is_number(action: Action, result: StepResult) -> float:
        numbers = re.findall(r"-?\d+", text_of(result))
        is_plain = re.fullmatch(r"(The answer is )?-?\d+( apples)?\.?", text_of(result))
        return float(bool(is_plain) and numbers == re.findall(r"-?\d+", str(action.ground_truth)))

    proof = asyncio.run(prove_reward(tasks("5", "5 apples", "8"), abstains))
    assert proof.ok and set(proof.equal_golds) == {("5", "5 apples"), ("5 apples", "5")}, proof.table()
    assert "golds are equal under the reward" in proof.table()
    assert proof.unscored_wrong[0] == 3 and "3 wrong answers are not scored" in proof.table()


class NeedsATable(RewardFunction):
    """A reward that reads more of its tasks than the ground truth."""

    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        return RewardResult(reward=float(text_of(step_result) == action.task_context.table[action.id]))


class TestATable(RewardContract):
    """The other clauses use the tasks too."""

    def make_reward(self) -> Any:
        return NeedsATable()

    def tasks(self) -> Any:
        return tasks(*TEXTS, table={f"t{place}": text for place, text in enumerate(TEXTS)})


class TestExactMatch(RewardContract):
    def make_reward(self) -> Any:
        return ExactMatchReward()

    def tasks(self) -> Any:
        return tasks(*TEXTS)


def test_the_contract_names_the_rows():
    suite = type("Suite", (RewardContract,), {"make_reward": lambda self: contains, "tasks": lambda self: tasks("42")})
    with pytest.raises(AssertionError, match=r"free +t0"):
        suite().test_reward_is_proven()


@pytest.mark.parametrize(
    ("truth", "length"),
    [(10**5000, 5001), (0.5, 3), ("  ", None), (float("nan"), None), ([4], 1), ([4, 5], None)],
    ids=["huge", "decimal", "blank", "nan", "list of one", "list"],
)
def test_a_gold_is_the_text_of_any_finite_number(truth: Any, length: int | None) -> None:
    gold = gold_text(Action(message="?", task_context=TaskContext(ground_truth=truth)))
    assert (None if gold is None else len(gold)) == length


async def test_a_proof_reads_each_text_once_however_many_tasks_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    only = numerals.only_number
    monkeypatch.setattr(numerals, "_value", lambda text: text)  # which reads parts of texts by the same function
    monkeypatch.setattr(numerals, "only_number", lambda text: read.append(text) or only(text))
    assert (await prove_reward(tasks(*NUMBERS), is_gold)).rows
    assert len(read) == len({*read}) > len(NUMBERS)


async def test_a_number_is_read_once_for_the_proof_and_its_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []
    calmed = numerals.calmed
    monkeypatch.setattr(numerals, "calmed", lambda text: looked_at.append(text) or calmed(text))
    numerals._numerals.cache_clear()
    found = await prove_reward(tasks(*map(str, range(300, 350))), NumberReward())
    assert len(found.rows) == 50 and found.ok
    assert len(looked_at) < 1.3 * len({*looked_at})  # 3 times without a memory of texts


async def test_golds_are_compared_with_a_few_others_however_many_tasks_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[str] = []
    differs = proof._differs
    monkeypatch.setattr(proof, "_differs", lambda other, gold: compared.append(gold) or differs(other, gold))
    golds = [str(number) for number in range(300, 400)]
    assert len((await prove_reward(tasks(*golds), is_gold)).rows) == len(golds)
    assert len(compared) < 10 * len(golds)
