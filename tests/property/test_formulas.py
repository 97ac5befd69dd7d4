"""Formulas that are equal win, and formulas that only look so do not, whatever their letters and numbers."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("math_verify", reason="needs the extra `math`")

from benchmarks.grading_formulas import FORMULAS
from hypothesis import given
from hypothesis import strategies as st

from strands_env.rewards.mathematics.answers import verify


@given(st.sampled_from(sorted(FORMULAS)), st.integers(0, 10**9))
def test_equal_forms_win_and_changed_ones_do_not(name: str, seed: int) -> None:
    rng = random.Random(seed)
    case = FORMULAS[name](rng)
    one, other = rng.sample(list(case.right), k=2)
    for text, is_right in ((one, True), (other, True), (rng.choice(case.wrong), False)):
        found = verify(case.gold, rf"\boxed{{{text}}}", case.question)
        assert (found.get("matched"), found.get("reason")) == (is_right, None), (case.gold, text)
