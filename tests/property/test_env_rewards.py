"""Boxes are found whatever is in them, turn rewards add up wherever they are put, and estimators are exact."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strands_env.core.types import RewardResult, TokenObservation
from strands_env.eval.metrics import pass_at_k, pass_hat_k
from strands_env.rewards import numerals, token_rewards
from strands_env.rewards.mathematics.boxes import find_boxes

balanced = st.recursive(
    st.text(alphabet="abc123 +-\\", max_size=5).filter(lambda text: not text.endswith("\\")),
    lambda inner: st.lists(inner, max_size=3).map(lambda parts: "".join(f"{{{part}}}" for part in parts)),
    max_leaves=5,
)


@given(st.lists(balanced, max_size=4), st.text(alphabet="xyz .", max_size=5))
def test_every_box_is_found_whole(contents: list[str], between: str) -> None:
    text = between.join(f"\\boxed{{{content}}}" for content in contents)
    whole = between + text + between
    assert [whole[start:end] for start, end in find_boxes(whole)] == contents


MARKS = [
    *"0123456789.,-+=><~*_`^x×·$\\{}()[] \n", "**", "__", "->", "=>", "</b>", "<b>", "answer", "Total ", " - ",
    "\\frac", "\\text{", "\\boxed{", "\\times", "{,}", "²", "½", "₂", "①", "−",
]  # fmt: skip


@given(st.lists(st.sampled_from(MARKS), max_size=20).map("".join))
def test_texts_without_markup_are_as_they_would_be_after_every_replacement(text: str) -> None:
    marked, numerals._MARKED = numerals._MARKED, re.compile("")
    try:
        expected = numerals.without_markup(text)
    finally:
        numerals._MARKED = marked
    assert numerals.without_markup(text) == expected


@given(st.lists(st.sampled_from([r"\boxed{", r"\fboxed {", "{", "}", "\\", "x"]), max_size=20).map("".join))
def test_any_text_is_searched_without_an_error(text: str) -> None:
    assert all(0 < start <= end < len(text) and text[end] == "}" for start, end in find_boxes(text))


@pytest.mark.parametrize("placement", ["last", "uniform"])
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5), st.floats(-10, 10)), min_size=1, max_size=6))
def test_turn_rewards_add_up_and_touch_sampled_tokens_only(placement: str, turns: list[tuple[int, int, float]]) -> None:
    info = [pair for prompt, sampled, _ in turns for pair in ((False, prompt), (True, sampled))]
    mask = [int(is_output) for is_output, length in info for _ in range(length)]
    tokens = TokenObservation(token_ids=range(len(mask)), prompt_length=turns[0][0], loss_mask=mask, segment_info=info)
    rewards = {index: reward for index, (_, _, reward) in enumerate(turns)}
    per_token = token_rewards(RewardResult(turn_rewards=rewards), tokens, placement=placement)
    assert len(per_token) == len(mask)
    assert all(reward == 0.0 for reward, sampled in zip(per_token, mask, strict=True) if not sampled)
    for turn, spans in tokens.turn_spans.items():
        total = math.fsum(per_token[i] for start, end in spans for i in range(start, end))
        assert math.isclose(total, rewards[turn], abs_tol=1e-9)


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_estimators_equal_exact_combinatorics(case: tuple[int, int, int]) -> None:
    n, c, k = case
    at_least_one = 1 - Fraction(math.comb(n - c, k), math.comb(n, k))
    every_one = Fraction(math.comb(c, k), math.comb(n, k))
    assert math.isclose(pass_at_k(n, c, k), float(at_least_one), rel_tol=1e-9, abs_tol=1e-300)
    assert math.isclose(pass_hat_k(n, c, k), float(every_one), rel_tol=1e-9, abs_tol=1e-300)
