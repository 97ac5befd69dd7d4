"""Group-relative advantages: every rollout counts once."""

from __future__ import annotations

import importlib
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from strands_env.training import InvalidSampleError, SampleStatus, TrainingSample, group_advantages, weigh_rollouts


def test_the_standard_deviation_is_that_of_rollouts() -> None:
    advantages = group_advantages([1, 1, 0], group_ids=[0, 0, 0], rollout_ids=["a", "a", "b"])
    assert advantages == pytest.approx([2**-0.5, 2**-0.5, -(2**-0.5)], abs=1e-5)


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_rollout_without_reward_counts_not_at_all(missing: float | None) -> None:
    advantages = group_advantages([1, 0, missing], group_ids=[0, 0, 0], rollout_ids=range(3), scale_by_std=False)
    assert advantages == [0.5, -0.5, 0.0]


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("scalars", [True, False])
def test_numbers_and_ids_of_other_libraries_count_by_value(library: str, scalars: bool) -> None:
    make: Any = getattr(pytest.importorskip(library), {"numpy": "array", "torch": "tensor"}[library])
    rewards = make([1.0, 0.0, 0.25, 0.75], dtype=importlib.import_module(library).float32)  # a float64 is a float
    groups, rollouts = make([0, 0, 1, 1]), make([0, 1, 0, 1])
    if scalars:
        rewards, groups, rollouts = list(rewards), list(groups), list(rollouts)
    advantages = group_advantages(rewards, group_ids=groups, rollout_ids=rollouts, scale_by_std=False)
    assert advantages == [0.5, -0.5, -0.25, 0.25]


@pytest.mark.parametrize("reward", ["1.0", [1.0, 2.0], object()])
def test_what_is_no_number_is_refused(reward: Any) -> None:
    with pytest.raises(ValueError, match="one number or None"):
        group_advantages([1.0, reward], group_ids=[0, 0], rollout_ids=[0, 1])


@pytest.mark.parametrize("reward", [10**400, Fraction(10**400), 1e308, -1e200])
def test_rewards_too_large_for_statistics_are_refused(reward: Any) -> None:
    with pytest.raises(ValueError, match=r"larger one|too large"):
        group_advantages([reward, 1.0, reward], group_ids=[0, 0, 0], rollout_ids=[0, 1, 2])


@pytest.mark.parametrize("missing", [None, float("nan")])
@pytest.mark.parametrize("which", ["group_ids", "rollout_ids"])
def test_ids_that_identify_nothing_are_refused(which: str, missing: Any) -> None:
    ids: Any = {"group_ids": [0, 0], "rollout_ids": [0, 1], which: [1, missing]}
    with pytest.raises(ValueError, match=rf"{which}\[1\] is (None|nan)"):
        group_advantages([1.0, 0.0], **ids)


def test_a_group_of_one_has_no_advantage() -> None:
    assert group_advantages([3.0], group_ids=["g"], rollout_ids=["r"]) == [0.0]


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="2 rewards"):
        group_advantages([1, 2], group_ids=[0], rollout_ids=[0, 1])


def row(tokens: int, rollout: str | None = "a", group: str | None = None, **changes: Any) -> TrainingSample:
    """Tokens that were all sampled and are all trained."""
    ids, mask = np.arange(tokens, dtype=np.int32), np.ones(tokens, dtype=np.uint8)
    fields = {"prompt_length": 0, "reward": 1.0, "rollout_id": rollout, "group_id": group, **changes}
    return TrainingSample(token_ids=ids, loss_mask=mask, **fields)


def test_rollouts_weigh_alike_and_the_mean_weight_is_one() -> None:
    failed = row(5, "c", status=SampleStatus.FAILED, reward=None, loss_weight=0.5)
    samples = [row(1), row(2), row(3), row(2, "b"), row(4, "a", "another group"), row(0, "d"), failed]
    by_tokens = [each.loss_weight for each in weigh_rollouts(samples)]
    assert by_tokens == [4 / 6, 4 / 6, 4 / 6, 4 / 2, 4 / 4, 1.0, 0.5]
    by_rows = [each.loss_weight for each in weigh_rollouts(samples, row_means=True)]
    assert by_rows == pytest.approx([5 / 3 / 6, 5 / 3 * 2 / 6, 5 / 3 * 3 / 6, 5 / 3, 5 / 3, 1.0, 0.5])
    assert weigh_rollouts([failed])[0] is failed
    assert weigh_rollouts([]) == []
    with pytest.raises(InvalidSampleError, match="rollout_id None"):
        weigh_rollouts([row(1, None)])


@pytest.mark.parametrize("weight", [-0.1, float("nan"), float("inf"), True, "1", None])
def test_a_loss_weight_that_is_none_is_named(weight: Any) -> None:
    with pytest.raises(InvalidSampleError, match=r"loss_weight is .* expected a finite number from 0"):
        row(2, loss_weight=weight).validate()
