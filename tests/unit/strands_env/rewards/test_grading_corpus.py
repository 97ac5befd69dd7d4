"""The corpus of graded answers, and that the reward for mathematics pays none of its wrong ones."""

from __future__ import annotations

import random
from collections import Counter
from importlib.util import find_spec

import pytest
from benchmarks.grading import our_scores
from benchmarks.grading_corpus import FAMILIES, corpus

REFUSED, UNSCORED = 0.005, 0.01  # of all pairs, at most


def test_the_corpus_is_large_and_the_same_for_the_same_seed() -> None:
    pairs = corpus()
    assert len(pairs) >= 4500 and pairs == corpus()
    assert pairs != corpus(seed=1)
    for name in FAMILIES:
        verdicts = Counter(pair.right for pair in pairs if pair.family == name)
        assert min(verdicts[True], verdicts[False]) >= 30, name


@pytest.mark.parametrize("seed", range(5))
def test_no_answer_is_both_right_and_wrong(seed: int) -> None:
    pairs = corpus(seed)
    verdicts: dict[tuple[str, str], bool] = {}
    for pair in pairs:
        assert verdicts.setdefault((pair.gold, pair.answer), pair.right) is pair.right
        assert pair.answer != pair.gold or pair.right


def test_a_factorial_that_is_its_number_is_not_called_wrong() -> None:
    cases = [FAMILIES["boxes_in_formulas"](random.Random(seed)) for seed in range(200)]
    twos, threes = ([each for each in cases if each.gold == gold] for gold in ("2", "3"))
    assert twos and not any(r"!$\boxed{2}!$" in each.wrong for each in twos)
    assert any(r"!$\boxed{3}!$" in each.wrong for each in threes)


@pytest.mark.skipif(find_spec("math_verify") is None, reason="needs the extra `math`")
async def test_no_wrong_answer_is_paid_and_few_right_ones_are_not() -> None:
    pairs = corpus(seed=1, per_family=24)
    scores = await our_scores(pairs)
    graded = list(zip(pairs, scores, strict=True))
    paid = [(pair.gold, pair.answer) for pair, score in graded if score and not pair.right]
    refused = [(pair.gold, pair.answer) for pair, score in graded if score == 0.0 and pair.right]
    assert paid == []
    assert len(refused) <= len(pairs) * REFUSED, refused
    assert scores.count(None) <= len(pairs) * UNSCORED
