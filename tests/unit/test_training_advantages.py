"""Group-relative advantages: every rollout counts once."""

from __future__ import annotations

import pytest

from strands_env.training import group_advantages


def test_the_standard_deviation_is_that_of_rollouts() -> None:
    advantages = group_advantages([1, 1, 0], group_ids=[0, 0, 0], rollout_ids=["a", "a", "b"])
    assert advantages == pytest.approx([2**-0.5, 2**-0.5, -(2**-0.5)], abs=1e-5)


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_rollout_without_reward_counts_not_at_all(missing: float | None) -> None:
    advantages = group_advantages([1, 0, missing], group_ids=[0, 0, 0], rollout_ids=range(3), scale_by_std=False)
    assert advantages == [0.5, -0.5, 0.0]


def test_a_group_of_one_has_no_advantage() -> None:
    assert group_advantages([3.0], group_ids=["g"], rollout_ids=["r"]) == [0.0]


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="2 rewards"):
        group_advantages([1, 2], group_ids=[0], rollout_ids=[0, 1])
