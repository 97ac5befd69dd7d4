"""Matching, format, tool-use, weighted and per-turn rewards."""

from __future__ import annotations

import asyncio
import re
import sys
from typing import Any

import pytest

from strands_env.core import (
    Action,
    Observation,
    RewardFunction,
    RewardResult,
    StepResult,
    TaskContext,
    TokenObservation,
)
from strands_env.core.types import SpanReward
from strands_env.rewards import (
    AgentTurn,
    ExactMatchReward,
    FormatReward,
    NumberReward,
    RegexMatchReward,
    ToolUseReward,
    TurnReward,
    WeightedReward,
    token_rewards,
    turns_of,
)
from strands_env.testing import answered


def action(ground_truth: object = None) -> Action:
    return Action(message="?", task_context=TaskContext(ground_truth=ground_truth))


def used(name: str, call_id: str) -> dict[str, Any]:
    return {"toolUse": {"name": name, "toolUseId": call_id, "input": {}}}


def got(call_id: str, status: str = "success") -> dict[str, Any]:
    return {"toolResult": {"toolUseId": call_id, "status": status, "content": [{"text": "r"}]}}


MESSAGES = [
    {"role": "user", "content": [{"text": "?"}]},
    {"role": "assistant", "content": [{"text": "<a>1</a>"}, used("calc", "1"), used("search", "2")]},
    {"role": "user", "content": [got("1"), got("2", "error")]},
    {"role": "assistant", "content": [used("calc", "3")]},
    {"role": "user", "content": [got("3")]},
    {"role": "assistant", "content": [{"text": "done"}]},
]
TOOL_STEP = StepResult(observation=Observation(messages=MESSAGES))


@pytest.mark.parametrize(
    ("truth", "answer", "options", "reward"),
    [
        ("Paris", " Paris\n", {}, 1.0),
        ("New York", "New  York", {}, 1.0),
        ("Paris", "paris", {}, 0.0),
        ("Paris", "paris", {"ignore_case": True}, 1.0),
        ("Paris", "It is Paris", {}, 0.0),
        (["Paris", "Lutetia"], "Lutetia", {}, 1.0),
        (42, "42", {}, 1.0),
        ("Paris", None, {}, 0.0),
        (None, "Paris", {}, None),
    ],
)
async def test_exact_match(truth: object, answer: str | None, options: dict[str, bool], reward: float | None) -> None:
    assert (await ExactMatchReward(**options).compute(action(truth), answered(answer))).reward == reward


@pytest.mark.parametrize(
    ("arguments", "truth", "answer", "reward"),
    [
        ({"pattern": r"\d+"}, None, "I have 3", 1.0),
        ({"pattern": r"\d+"}, None, "I have none", 0.0),
        ({"pattern": r"#### (\S+)", "group": 1}, "72", "#### 71 no #### 72", 1.0),
        ({"pattern": r"#### (\S+)", "group": 1}, "72", "#### 71", 0.0),
        ({"pattern": r"#### (\S+)", "group": 1}, None, "#### 71", None),
        ({}, r"^yes\b", "yes, it is", 1.0),
        ({}, None, "yes", None),
        ({"pattern": "^a.c # end", "flags": re.I | re.M | re.S | re.X}, None, "first\nA\nC", 1.0),
        ({"pattern": "x"}, None, None, 0.0),
    ],
)
async def test_regex_match(arguments: dict[str, Any], truth: object, answer: str | None, reward: float | None) -> None:
    assert (await RegexMatchReward(**arguments).compute(action(truth), answered(answer))).reward == reward


def test_wrong_regex_is_refused() -> None:
    wrong = [("(", None, "regular expression"), (None, 1, "needs a pattern")]
    for pattern, group, message in [*wrong, *[("a", group, "no such group") for group in (3, "name", -1)]]:
        with pytest.raises(ValueError, match=message):
            RegexMatchReward(pattern, group=group)
    with pytest.raises(ValueError, match="timeout must be a positive number"):
        FormatReward("a", timeout=0)


@pytest.mark.parametrize(("answer", "reward"), [("<a>\n1</a>", 1.0), ("1", 0.0), (None, 0.0)])
async def test_format_of_the_final_response(answer: str | None, reward: float) -> None:
    assert (await FormatReward(r"^<a>.*</a>$").compute(action(), answered(answer))).reward == reward


async def test_format_of_every_turn_has_turn_rewards() -> None:
    result = await FormatReward("<a>", every_turn=True).compute(action(), TOOL_STEP)
    assert result.reward == 0.5
    assert result.turn_rewards == {0: 1.0, 2: 0.0}  # turn 1 has no text


@pytest.mark.parametrize(
    ("options", "reward"),
    [
        ({}, 1.0),
        ({"min_calls": 2}, 1.0),
        ({"min_calls": 3}, 0.0),
        ({"max_calls": 2}, 0.0),
        ({"tools": {"search"}}, 0.0),
        ({"error_penalty": 0.25}, 0.75),
        ({"error_penalty": 3.0}, 0.0),
        ({"error_penalty": 3.0, "floor": -1.0}, -1.0),
    ],
)
async def test_tool_use(options: dict[str, Any], reward: float) -> None:
    result = await ToolUseReward(**options).compute(action(), TOOL_STEP)
    assert result.reward == reward
    if not options:
        assert result.info == {"tool_calls": 3, "tool_errors": 1, "in_range": True}


class Fixed(RewardFunction):
    def __init__(self, result: RewardResult | Exception) -> None:
        self.result = result

    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def fixed(reward: float | None, **fields: Any) -> Fixed:
    return Fixed(RewardResult(reward=reward, **fields))


async def test_weighted_sum_keeps_every_part() -> None:
    number: Any = 9.0
    reward = WeightedReward(
        {
            "a": (fixed(1.0, info={"k": 1}, turn_rewards={0: 1.0, 1: 1.0}), 2.0),
            "b": (fixed(-0.5, turn_rewards={1: 1.0}, span_rewards=[SpanReward(start=0, end=2, reward=1.0)]), -1.0),
            "plain": (lambda action, result: -0.5, 1.0),
            "log": (Fixed(number), 0.0),
        }
    )
    result = await reward.compute(action(), answered("x"))
    assert result.reward == 2.0
    assert result.info["parts"] == {
        "a": {"reward": 1.0, "weight": 2.0, "info": {"k": 1}},
        "b": {"reward": -0.5, "weight": -1.0, "info": {}},
        "plain": {"reward": -0.5, "weight": 1.0, "info": {}},
        "log": {"reward": 9.0, "weight": 0.0, "info": {}},
    }
    assert result.turn_rewards == {0: 2.0, 1: 1.0}
    assert result.span_rewards == [SpanReward(start=0, end=2, reward=-1.0)]


@pytest.mark.parametrize(
    ("policy", "parts", "reward"),
    [
        ("abstain", [(1.0, 1.0), (None, 1.0)], None),
        ("abstain", [(1.0, 1.0), (None, 0.0)], 1.0),
        ("renormalize", [(1.0, 1.0), (None, 3.0)], 4.0),
        ("renormalize", [(0.5, 1.0), (0.5, 1.0)], 1.0),
        ("renormalize", [(None, 1.0), (None, 3.0)], None),
    ],
)
async def test_weighted_sum_with_an_abstaining_part(policy, parts, reward):
    weighted = WeightedReward(
        {str(i): (fixed(value), weight) for i, (value, weight) in enumerate(parts)}, on_abstain=policy
    )
    assert (await weighted.compute(action(), answered("x"))).reward == reward


async def leave(action: Action, result: StepResult) -> float:
    sys.exit(3)


@pytest.mark.parametrize(
    ("part", "error", "message"),
    [(Fixed(ConnectionError("gone")), ConnectionError, "gone"), (leave, RuntimeError, r"called sys\.exit\(3\)")],
)
async def test_part_that_fails_fails_the_whole_with_its_own_error(part: Any, error: Any, message: str) -> None:
    async def hang(*given: Any) -> float:
        await asyncio.sleep(60)
        return 1.0

    with pytest.raises(error, match=message):
        await WeightedReward({"a": (hang, 1.0), "b": (part, 1.0)}).compute(action(), answered("x"))


@pytest.mark.parametrize(
    "reward",
    [
        FormatReward(r"^(a|aa)+$", timeout=0.2),
        FormatReward(r"^(a|aa)+$", every_turn=True, timeout=0.2),
        RegexMatchReward(r"(a|aa)+$", timeout=0.2),
    ],
)
async def test_answer_on_which_an_expression_explodes_is_wrong_and_does_not_hold_the_loop(reward: Any) -> None:
    task = asyncio.create_task(reward.compute(action("x"), answered("a" * 100 + "!")))
    turns = 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0.001)
    assert (task.result().reward, task.result().info["reason"]) == (0.0, "timeout")
    assert turns > 5


@pytest.mark.parametrize(
    ("parts", "error", "message"),
    [
        ({}, ValueError, "needs parts"),
        ({"a": (fixed(1.0), float("nan"))}, ValueError, "the weight of 'a' must be a finite number, got nan"),
        ({"a": 1}, TypeError, r"the part 'a' must be \(reward_fn, weight\), got 1"),
        ({"a": (1, 2)}, TypeError, "the part 'a': a reward function has an async compute"),
    ],
)
def test_wrong_parts_are_refused(parts: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        WeightedReward(parts)


def test_turns_hold_their_calls_and_results() -> None:
    turns = [(turn.index, len(turn.calls), turn.error_count, turn.text) for turn in turns_of(MESSAGES)]
    assert turns == [(0, 2, 1, "<a>1</a>"), (1, 1, 0, ""), (2, 0, 0, "done")]


@pytest.mark.parametrize(("aggregate", "reward"), [("mean", -0.5), ("sum", -1.0), ("last", 0.0)])
async def test_turn_rewards_are_aggregated(aggregate: str, reward: float) -> None:
    class Errors(TurnReward):
        async def compute_turn(self, turn: AgentTurn, action: Action, step_result: StepResult) -> float | None:
            return -float(turn.error_count) if turn.calls else None

    result = await Errors(aggregate=aggregate).compute(action(), TOOL_STEP)
    assert (result.turn_rewards, result.reward) == ({0: -1.0, 1: 0.0}, reward)
    assert (await Errors(aggregate=aggregate).compute(action(), answered("no call"))).reward is None


TOKENS = TokenObservation(
    token_ids=range(8), prompt_length=2, loss_mask=[0, 0, 1, 1, 0, 1, 1, 1]
)  # turn 0 sampled 2-3, turn 1 sampled 5-7


def test_turn_rewards_go_to_their_tokens() -> None:
    result = RewardResult(turn_rewards={0: 1.0, 1: 3.0})
    assert token_rewards(result, TOKENS) == [0, 0, 0, 1.0, 0, 0, 0, 3.0]
    assert token_rewards(result, TOKENS, placement="uniform") == [0, 0, 0.5, 0.5, 0, 1.0, 1.0, 1.0]
    assert token_rewards(result, TOKENS, placement="all") == [0, 0, 1.0, 1.0, 0, 3.0, 3.0, 3.0]


def test_span_rewards_go_to_sampled_tokens_only_and_add_up() -> None:
    result = RewardResult(
        turn_rewards={0: 1.0},
        span_rewards=[SpanReward(start=0, end=5, reward=2.0), SpanReward(start=4, end=6, reward=0.5)],
    )
    assert token_rewards(result, TOKENS) == [0, 0, 0, 3.0, 0, 0.5, 0, 0]


def test_rewards_without_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match=r"turn 5 has a reward, but no sampled token: turns with tokens are \[0, 1\]"):
        token_rewards(RewardResult(turn_rewards={5: 1.0}), TOKENS)
    for (start, end), message in {(0, 2): "no sampled token", (3, 9): "lies outside", (3, 3): "lies outside"}.items():
        with pytest.raises(ValueError, match=message):
            token_rewards(RewardResult(span_rewards=[SpanReward(start=start, end=end, reward=1.0)]), TOKENS)


@pytest.mark.parametrize(
    ("truth", "answer", "reward"),
    [
        ("3", "−3", 0),
        ("-3", "−3", 1),
        ("3", "1e3", 0),
        ("1000", "1e3", 1),
        ("-3", "5-3", 0),
        ("3", "5-3", 0),
        ("3", "5 - 3", 0),
        (str(2**53 + 1), str(2**53), 0),
        (2**53 + 1, str(2**53 + 1), 1),
        ("1,234", "1234", 1),
        ("1,234", "1,234", 1),
        ("50%", "50%", 1),
        ("50%", "50", 1),
        ("50%", "0.5", 1),
        ("1/2", "0.5", 1),
        ("1/2", "1/2", 1),
        ("1/2", "2", 0),
        (None, "4", None),
        ("abc", "4", None),
        ("4", "", 0),
        ("4", None, 0),
        ("4", "the answer is **4**.", 1),
        ("4", "\\boxed{4}", 1),
        ("0.5", "3 1/2", 0),
        ("3.5", "3 1/2", 1),
        ("4", "x4", 0),
        ("4", "$4.00", 1),
        (True, "1", None),
        (float("nan"), "4", None),
        ("12", "2024-05-12", 0),
        ("30", "9:30", 0),
        ("42", "425", 0),
        ("4", "４", 1),
        (1e-7, "1e-7", 1),
        ("0", "I do not know", 0),
        ("1.5", "1,5", 0),
        ("18", "$18", 1),
        ("$18", "18", 1),
        ("5", "5-year plan", 1),
        ("-5", "-5", 1),
        ("7", "10-3 = 7", 1),
        ("10 000", "10000", 1),
        ("7", "5 6 7", 0),
        ("7", "between 6 and 7", 0),
        ("7", "4 (see step 7)", 0),
        ("47", "4₇", 0),
        pytest.param("4", "7" * 5000, 0, id="long"),
        pytest.param("7" * 5000, "7" * 5000, 1, id="long gold"),
        pytest.param(10**5000, f"1{'0' * 5000}", 1, id="long integer"),
        pytest.param("7" * 5000, "7" * 4999 + "8", 0, id="long and another"),
        *[
            ("3", answer, 0)
            for answer in (
                "\\frac{1}{3}",
                "\\sqrt{3}",
                "3!",
                "3x",
                "3i",
                "3\\pi",
                "3 π",
                "3 million",
                "log(3)",
                "log 3",
                "3 squared",
                "3rd",
                "(3)!",
                "3^2",
                "3 or 4",
                "The answer is 3x, for 3 boxes of 3",
                "It is greater than 3",
                "isn't 3",
                "4 times 3",
                "3 + x",
                "\\{3\\}",
                "3万",
                "2 ** 3",
                "x - 3",
            )
        ],
        *[
            ("5", answer, 0)
            for answer in ("minus 5", "negative 5", "±5", "≠5", "<5", "> x > 5", "10^{5}", "10**5", "5 - 3")
        ],
        *[("7", answer, 0) for answer in ("-£7", "-(7)", "-**7**", "-$7", "- 7", "5-£7", "f(7)")],
        ("42", "4²", 0),
        ("105", "10⁵", 0),
        ("234", "1 234", 0),
        ("3", "The answer is 4, not 3.", 0),
        ("4", "The answer is 4, not 3.", 1),
        ("4", "Not 3 but 4", 1),
        ("3", "What is 1 of 3", 0),
        ("3", "What is 1 of 3: 3", 1),
        ("3.5", "3½", 1),
        ("3.5", r"3\frac{1}{2}", 1),
        ("1/3", r"\frac{1}{3}", 1),
        ("4200", "4.2 × 10^3", 1),
        ("4200", r"$4.2 \times 10^{3}$", 1),
        ("3000000", "3 million", 1),
        ("-5", "negative 5", 1),
        ("-7", "-$7", 1),
        *[("1234", answer, 1) for answer in ("1 234", "1\u202f234", "1\u00a0234", "1\u2009234")],
        ("42", "The answer is 42.\n\nConfidence: 95%", 1),
        ("42", "#### 42\n95% sure", 1),
        ("13", "The answer is 12. Wait, actually 13.", 1),
        ("7", "The answer is 3 + 4 = 7.", 1),
        ("7", "<answer>7</answer>", 1),
        ("7", r"\(7\)", 1),
        ("7", "答案是7个", 1),
        ("7", "Answer:7", 1),
        ("7", "Answer - 7", 1),
        ("7", r"7\text{ cm}", 1),
        ("7", "7cm", 1),
        ("7", "*7*", 1),
        *[("7", answer, 0) for answer in ("7 in base 9",)],
        *[
            ("7", answer, 1)
            for answer in (
                "How many? 7.",
                "She needs 7 more.",
                "I went 7 times.",
                "Not 8 but 7",
                "3 and 4 make 7",
                "From 3 to 10 is 7",
                "3 to 10: 7",
                "The answer is 7, and 8 is wrong.",
                "7",
            )
        ],
        *[
            ("8", answer, 0)
            for answer in (
                "7 and 8",
                "7 or 8",
                "7 (or 8)",
                "7, maybe 8",
                "7 to 8",
                "7 if x>0, else 8",
                "either 7, 8, or 9",
                "8 apples or 7",
                "7 apples or 8",
                "8 or Paris",
                "Paris or 8",
                "If the answer is 8, I would be surprised.",
                "Many say the answer is 8.",
                "People say it's 8.",
                "red, 8, blue",
                "8 or 39/23",
                "8 or .5",
                r"8 or \frac{4}{9}",
                "8 or nine",
                r"\boxed{8} \boxed{4.27 \times 10^{15}}",
                "不是8",
            )
        ],
        *[
            ("42", answer, 1)
            for answer in ("forty-two", "Forty two.", "The answer is forty-two apples.", "**forty-two**")
        ],
        ("7", "La réponse est 7. J'ai vérifié 2 fois.", 1),
        ("0.5", "0.5 or 1/2", 1),
        ("7", "7 or seven", 1),
        ("4.27e15", r"\boxed{4.27 \times 10^{15}}", 1),
        ("5000", "5k", 1),
        ("5000", "about $5K", 1),
        ("1000000", "1M", 1),
        ("2500000", "2.5 million", 1),
        ("2500000", "two million five hundred thousand", 1),
        ("121", "one hundred and twenty-one", 1),
        ("-7", "minus seven", 1),
        ("1", "The answer is one.", 1),
        ("0", "zero", 1),
        ("5k", "5000", 1),
        ("1", "It is one of many.", 0),
        ("1", "I choose the first one.", 0),
        ("1", "No one answered.", 0),
        ("5", "five or six", 0),
        ("6", "five or six", 0),
        ("5", "not five", 0),
        ("5", "two thirds, so five-sided", 0),
        ("2", "two thirds", 0),
        ("2", "two and a half", 0),
        ("5", "three point five", 0),
        ("5", "twenty-fifth", 0),
        ("20", "twenty-fifth", 0),
        ("23", "twenty three four", 0),
        ("5", "5 km", 1),
        ("5", "5kg", 1),
        ("7", "The answer is seven. (8 was a guess.)", 0),
        *[("5", answer, 0) for answer in ("5‰", "5 bn", "5 crore", "5 lakh", r"5 \text{k}")],
        ("10", "7 out of 10", 0),
        ("8", "The answer is 7. Wait, no, it is 8.", 1),
        ("1/2", r"\boxed{7\ 1/2}", 0),
        ("7.5", r"\boxed{7\ 1/2}", 1),
        ("7.5", r"7\tfrac12", 1),
        ("7", r"\boxed{-|7|}", 0),
        ("50000000", "5 crore", 1),
        ("7000", r"\boxed{7{,}000}", 1),
        pytest.param("7", "-" * 200_000 + "1 " * 50_000 + "is 7", 1, id="slow"),
    ],
)
async def test_the_last_number_is_compared_exactly(truth: object, answer: str | None, reward: float | None) -> None:
    action = Action(message="What is 1 of 3", task_context=TaskContext(ground_truth=truth))
    assert (await NumberReward().compute(action, answered(answer))).reward == reward
