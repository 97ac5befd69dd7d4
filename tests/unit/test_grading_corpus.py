"""The corpus of graded answers: the same for the same seed, and without two verdicts on one answer."""

from __future__ import annotations

from collections import Counter

import pytest
from benchmarks.grading_corpus import FAMILIES, corpus


def test_the_corpus_is_large_and_the_same_for_the_same_seed() -> None:
    pairs = corpus()
    assert len(pairs) >= 2000 and pairs == corpus()
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
