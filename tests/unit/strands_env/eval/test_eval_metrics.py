from __future__ import annotations

import functools
import math
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest

from strands_env.commands.display import summary_lines
from strands_env.eval.metrics import (
    ScoreTable,
    compare,
    comparison,
    compute_pass_at_k,
    compute_pass_hat_k,
    pass_at_k,
    summarize,
)
from strands_env.eval.metrics.comparison import sign_flip_test
from strands_env.eval.metrics.interval import beta_cdf, beta_quantile, interval_of, mean_interval, student_quantile
from strands_env.eval.options import EvalOptions
from tests.unit.eval_support import sample


def table(options: EvalOptions | None = None, **rewards: list[float | None]) -> ScoreTable:
    return ScoreTable.from_results(
        {name: [sample(value, i, prompt=name) for i, value in enumerate(values)] for name, values in rewards.items()},
        options,
    )


def test_pass_at_k_keeps_tiny_probabilities():
    exact = 1 - Fraction(math.comb(999_999, 1), math.comb(1_000_000, 1))
    assert pass_at_k(1_000_000, 1, 1) == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 0), (3, 1, 4)])
def test_impossible_counts_are_refused(n, c, k):
    with pytest.raises(ValueError):
        pass_at_k(n, c, k)


@pytest.mark.parametrize("lost", [{"aborted": True}, {}], ids=["infrastructure", "unscored"])
def test_pass_at_every_k_rests_on_one_set_of_prompts(lost):
    """A prompt that lost a sample stays, else pass@2 is below pass@1."""
    results = {"a": [sample(0.0), sample(0.0, 1)], "b": [sample(1.0), sample(None, 1, **lost)], "c": [sample(None)]}
    summary = summarize(ScoreTable.from_results(results))
    assert {k: (found.value, found.prompts) for k, found in summary.pass_at.items()} == {1: (0.5, 2), 2: (0.5, 2)}
    assert {k: found.prompts for k, found in summary.pass_hat.items()} == {1: 2, 2: 2}
    assert summary.short == {1: 0, 2: 1}
    assert (summary.aborted, summary.unscored) == (len(lost), 2)
    assert "pass@2      0.500" in "\n".join(summary_lines(summary, title="run"))
    assert "(2 prompts, 1 of them with fewer samples)" in "\n".join(summary_lines(summary, title="run"))
    assert compute_pass_at_k(results, [1, 2]) == {"pass@1": 0.5, "pass@2": 0.5}
    assert math.isnan(compute_pass_at_k(results, [3])["pass@3"])


def test_a_pass_at_k_that_no_prompt_has_enough_samples_for_says_so():
    scores = table(EvalOptions(n_samples_per_prompt=2), a=[1.0, None], b=[0.0])
    assert "pass@2      -  (no prompt has 2 scored samples)" in summary_lines(summarize(scores), title="run")
    assert not any("pass@2" in line for line in summary_lines(summarize(table(a=[1.0])), title="run"))
    assert not any("pass^2" in line for line in summary_lines(summarize(scores), title="run"))


@pytest.mark.parametrize("lost", [{"aborted": True}, {}], ids=["infrastructure", "abstained"])
def test_a_comparison_counts_lost_samples(lost):
    first, second = table(a=[1.0], b=[1.0]), table(a=[1.0])
    second.add("b", sample(None, prompt="b", **lost))
    result = compare(first, second)
    assert (result.lost_first, result.lost_second, result.only_first) == (0.0, 0.5, 1)


def test_unequal_sample_counts_use_every_prompt():
    results = {"a": [sample(1.0, i) for i in range(4)], "b": [sample(0.0), sample(1.0, 1)]}
    metrics = compute_pass_at_k(results, [1, 2, 4])
    assert metrics == pytest.approx({"pass@1": 0.75, "pass@2": 1.0, "pass@4": 1.0})
    unscored = {"a": [sample(1.0), sample(None, 1), sample(0.0, 2, aborted=True)]}  # neither passed nor failed
    assert compute_pass_at_k(unscored, [1])["pass@1"] == compute_pass_hat_k(unscored, [1])["pass^1"] == 1.0


def test_mean_weighs_prompts_alike_and_the_threshold_decides_what_passes():
    scores = table(a=[1.0, 1.0, 1.0, 1.0], b=[0.0])
    assert summarize(scores).mean_reward.value == pytest.approx(0.5)
    half = table(a=[0.5])
    assert [summarize(half, reward_threshold=bound).pass_at[1].value for bound in (1.0, 0.5)] == [0.0, 1.0]


def test_nothing_scored_is_nan_with_a_count_and_null_in_json():
    summary = summarize(table(a=[None, None]), k_values=[1])
    assert math.isnan(summary.mean_reward.value)
    assert math.isnan(summary.pass_at[1].value)
    assert (summary.samples, summary.scored, summary.unscored) == (2, 0, 2)
    assert summary.to_dict()["mean_reward"]["value"] is None
    assert math.isnan(compute_pass_at_k({}, [1])["pass@1"])
    found = mean_interval([1.0, math.nan, 0.0])  # a prompt without a score has no part
    assert found.prompts == 2 and found.value == 0.5


@pytest.mark.parametrize("count", [10, 20, 30])
@pytest.mark.parametrize("rate", [0.05, 0.1, 0.25, 0.5, 0.75, 0.95])
def test_the_interval_of_yes_or_no_rewards_holds_as_often_as_it_says(count, rate):
    holds = 0.0
    for passed in range(count + 1):
        found = mean_interval([1.0] * passed + [0.0] * (count - passed))
        if found.low <= rate <= found.high:
            holds += math.comb(count, passed) * rate**passed * (1 - rate) ** (count - passed)
    assert holds >= 0.95


def test_the_interval_of_averages_is_narrower_where_prompts_agree():
    scattered = mean_interval([0.0, 1.0] * 10)
    agreeing = mean_interval([0.25, 0.75] * 10)
    assert agreeing.high - agreeing.low < 0.7 * (scattered.high - scattered.low)


def test_prompts_that_all_score_alike_leave_a_doubt():
    assert mean_interval([1.0] * 10).low == pytest.approx(0.025 ** (1 / 10))
    assert mean_interval([0.0] * 10).high == pytest.approx(1 - 0.025 ** (1 / 10))
    assert mean_interval([0.5] * 10).low < 0.45


@pytest.mark.parametrize(("least", "greatest"), [(0.0, 1.0), (-1.0, 1.0), (-1.0, 7.0), (-30.0, 2.0)])
def test_the_interval_never_leaves_the_possible_range(least, greatest):
    rng = np.random.default_rng(4)
    for size in (1, 2, 5, 40):
        values = rng.choice([least, greatest], p=[0.1, 0.9], size=size)
        found = mean_interval(values)
        assert least <= found.low <= found.value <= found.high <= greatest
    with pytest.raises(ValueError, match="between"):
        mean_interval([greatest + 1], bounds=(least, greatest))


def test_the_interval_of_many_prompts_is_as_wide_as_theory_says():
    values = np.random.default_rng(2).uniform(size=400)
    found = mean_interval(values)
    width = 2 * 1.96 * values.std() / math.sqrt(len(values))
    assert found.high - found.low == pytest.approx(width, rel=0.05)


def test_quantiles_are_those_of_the_tables():
    assert student_quantile(0.975, 9) == pytest.approx(2.262157, abs=1e-6)
    assert student_quantile(0.975, 1) == pytest.approx(12.706205, abs=1e-5)
    assert student_quantile(0.95, 5000) == pytest.approx(1.645, abs=1e-3)
    assert beta_quantile(0.3, 1.0, 4.0) == pytest.approx(1 - 0.7**0.25, abs=1e-9)
    assert beta_quantile(0.5, 50_000.0, 50_000.0) == pytest.approx(0.5, abs=1e-9)
    assert beta_cdf(0.2, 2.0, 3.0) == pytest.approx(0.1808, abs=1e-9)


def test_sign_flips_are_counted_exactly_for_few_prompts_and_sampled_for_many():
    # 3 of 3 in favour: only the two uniform sign patterns of 8 are as extreme.
    assert sign_flip_test([1.0, 1.0, 1.0]) == (0.25, True)
    assert sign_flip_test([1.0, -1.0]) == (1.0, True)
    assert sign_flip_test([0.0, 0.0]) == (1.0, True)
    assert sign_flip_test([1.0] * 40, resamples=99) == (1 / 100, False)  # the observed signs count too
    assert sign_flip_test([0.1] * 15 + [-0.3] * 5, resamples=500) == (1.0, False)


def test_sampled_sign_flips_agree_with_the_binomial_test():
    differences = [1.0] * 14 + [-1.0] * 6
    exact = sum(math.comb(20, k) for k in range(21) if abs(2 * k - 20) >= 8) / 2**20
    p_value, is_exact = sign_flip_test(differences, resamples=20_000)
    assert not is_exact
    assert p_value == pytest.approx(exact, abs=0.02)


@pytest.mark.parametrize(
    "differences", [[0.1, 0.2, -0.3, 1e-17], [1 / 3, 1 / 5, -8 / 15], [0.1] * 3 + [-0.3], [0.7, -0.1, -0.6, 0.0]]
)
def test_sign_flips_of_differences_that_cancel_are_all_as_large(differences):
    assert sign_flip_test(differences) == (1.0, True)


def test_compare_pairs_prompts_and_counts_the_rest():
    first = table(a=[0.0], b=[1.0], c=[0.0], d=[None], e=[1.0])
    second = table(a=[1.0], b=[1.0], c=[1.0], d=[1.0])
    result = compare(first, second)
    assert (result.wins, result.losses, result.ties) == (2, 0, 1)
    assert (result.only_first, result.only_second) == (1, 1)
    assert result.difference.value == pytest.approx(2 / 3)
    assert (result.first, result.second) == (pytest.approx(1 / 3), 1.0)
    assert compare(table(a=[1e-13]), table(a=[3e-13])).wins == 1
    assert compare(table(a=[-1.0]), table(a=[1.0])).difference.high == 2.0
    assert compare(table(a=[0.1, 0.2, 0.3]), table(a=[0.3, 0.2, 0.1])).ties == 1
    apart = compare(table(a=[1.0]), table(b=[1.0]))
    assert math.isnan(apart.p_value) and math.isnan(apart.difference.value)
    second.tasks[0] = "another"
    with pytest.raises(ValueError, match="another task"):
        compare(first, second)


def test_many_sign_flips_of_distinct_values_need_little_memory(monkeypatch):
    values = np.arange(1, 201) / 200 - 0.45
    whole = sign_flip_test(values, resamples=20_000)
    monkeypatch.setattr(comparison, "_CELLS", 20_000)
    tracemalloc.start()
    try:
        assert sign_flip_test(values, resamples=20_000) == whole
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def test_tokens_are_summed():
    totals = summarize(table(a=[1.0, 0.0])).totals
    assert (totals["input_tokens"], totals["output_tokens"]) == (20, 10)


@pytest.mark.parametrize(("prompts", "samples"), [(10, 1), (10, 8), (30, 4), (100, 2)])
@pytest.mark.parametrize("rate", [0.05, 0.5, 0.9])
def test_the_interval_holds_the_true_mean_nearly_as_often_as_it_says(prompts: int, samples: int, rate: float) -> None:
    """In 300 runs whose prompts pass with rates of their own, drawn from a beta distribution of this concentration."""
    rng, interval = np.random.default_rng(0), functools.cache(interval_of)
    for concentration in (0.3, 3.0):
        own = rng.beta(rate * concentration, (1 - rate) * concentration, size=(300, prompts))
        rewards = np.sort(rng.binomial(samples, own) / samples, axis=1)  # equal runs have equal sums
        found = [interval(each.mean(), each.var(ddof=1), prompts) for each in rewards]
        assert np.mean([low - 1e-9 <= rate <= high + 1e-9 for low, high in found]) >= 0.93
