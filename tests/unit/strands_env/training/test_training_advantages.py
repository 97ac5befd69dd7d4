"""Group-relative advantages: every rollout counts once."""

from __future__ import annotations

import importlib
import itertools
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from strands_env.core.termination import UNKNOWN
from strands_env.training import (
    InvalidSampleError,
    TrainingSample,
    group_advantages,
    turn_advantages,
    weigh_rollouts,
)


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
    fields = {"prompt_length": 0, "reward": 1.0, "loss_mask": mask, **changes}
    return TrainingSample(token_ids=ids, rollout_id=rollout, group_id=group, **fields)


def test_rollouts_weigh_alike_and_the_mean_weight_is_one() -> None:
    failed = row(5, "c", end=UNKNOWN, reward=None, loss_weight=0.5)
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


# ---- rewards of turns ------------------------------------------------------------------------------------------------

ENDS = {"stop": ([0.3], 0.5), "good": ([0.8, 1.0], 1.0), "bad": ([0.8, -0.25], 0.0)}
"""The rewards of the turns and of the rollout, by how it goes: it stops, or goes on to a good or a bad second turn."""
GO_ON, GOOD = 0.7, 0.4


def rollout(end: str, name: int) -> TrainingSample:
    """A prompt token, and a token a turn with a tool's between."""
    turns, reward = ENDS[end]
    mask = np.array([0, 1, 0, 1][: 2 * len(turns)], dtype=np.uint8)
    values = np.zeros(len(mask))
    values[mask == 1] = turns
    return row(len(mask), str(name), "g", prompt_length=1, loss_mask=mask, token_rewards=values, reward=reward)


def by_turn_number(samples: list[TrainingSample]) -> list[np.ndarray[Any, Any]]:
    """The estimator of verl's issue 7244: each turn less the mean of the turns of its number, summed from each on."""
    turns = [[*each.token_rewards[each.loss_mask == 1]] for each in samples]  # type: ignore[index]
    for own, sample in zip(turns, samples, strict=True):
        own[-1] += sample.reward
    means = [np.mean([own[number] for own in turns if len(own) > number]) for number in range(max(map(len, turns)))]
    advantages = []
    for own, sample in zip(turns, samples, strict=True):
        values = np.zeros(len(sample))
        values[sample.loss_mask == 1] = np.cumsum((np.array(own) - means[: len(own)])[::-1])[::-1]
        advantages.append(values)
    return advantages


def expected_gradient(estimator: Any, rollouts: int) -> np.ndarray[Any, Any]:
    """Of the two logits, to go on and to be good, over all ways that the rollouts of a group can go."""
    chances = {"stop": 1 - GO_ON, "good": GO_ON * GOOD, "bad": GO_ON * (1 - GOOD)}
    scores = {"stop": [(-GO_ON, 0)], "good": [(1 - GO_ON, 0), (0, 1 - GOOD)], "bad": [(1 - GO_ON, 0), (0, -GOOD)]}
    total = np.zeros(2)
    for ends in itertools.product(ENDS, repeat=rollouts):
        samples = [rollout(end, name) for name, end in enumerate(ends)]
        for end, sample, values in zip(ends, samples, estimator(samples), strict=True):
            of_turns = values[sample.loss_mask == 1]
            total += math.prod(chances[each] for each in ends) * (of_turns @ np.array(scores[end])) / rollouts
    return total


@pytest.mark.parametrize("rollouts", [2, 3, 4])
def test_a_rollout_that_chooses_where_it_stops_gets_the_gradient_of_its_rewards(rollouts: int) -> None:
    worth = {end: sum(turns) + reward for end, (turns, reward) in ENDS.items()}
    going_on = GOOD * worth["good"] + (1 - GOOD) * worth["bad"] - worth["stop"]
    truth = np.array([GO_ON * (1 - GO_ON) * going_on, GO_ON * GOOD * (1 - GOOD) * (worth["good"] - worth["bad"])])
    share = (rollouts - 1) / rollouts  # as of any mean that counts the rollout itself
    assert expected_gradient(turn_advantages, rollouts) == pytest.approx(truth * share, abs=1e-12)
    assert np.abs(expected_gradient(by_turn_number, rollouts) - truth * share).max() > 0.05


def test_without_rewards_of_turns_they_are_those_of_the_group() -> None:
    rewards = [1.0, 0.0, 0.25, None, 3.0]
    failed = {"end": UNKNOWN, "reward": None}
    samples = [
        row(2, str(at), "g", **({"reward": each} if each is not None else failed)) for at, each in enumerate(rewards)
    ]
    samples += [row(3, "0", "g"), row(2, "alone", "h"), row(0, "silent", "g", reward=0.5)]
    known = [*rewards, 1.0, 1.0, 0.5]
    ids = [(each.group_id, each.rollout_id) for each in samples]
    plain = group_advantages(known, group_ids=[group for group, _ in ids], rollout_ids=ids, scale_by_std=False)
    advantages = turn_advantages(samples)
    assert [each.tolist() for each in advantages] == [
        pytest.approx([value] * len(sample)) for value, sample in zip(plain, samples, strict=True)
    ]


def test_a_turn_that_paths_share_is_earned_once_and_not_again() -> None:
    first = np.array([0, 1, 0, 1], dtype=np.uint8)
    shared = np.array([0, 1, 0, 0], dtype=np.uint8)
    main = row(4, "a", "g", prompt_length=1, loss_mask=first, token_rewards=np.array([0, 1.0, 0, 2.0]), reward=8.0)
    fork = replace(main, loss_mask=first - shared, trained_elsewhere=shared, token_rewards=np.array([0, 1.0, 0, 4.0]))
    other = row(2, "b", "g", prompt_length=1, loss_mask=first[:2], token_rewards=np.array([0, 32.0]), reward=16.0)
    advantages = turn_advantages([main, fork, other])
    # From the first turn on 8 + 1 + 2 + 4 and 48, from the second on 14 and 16, which is what the other has left.
    assert [each.tolist() for each in advantages] == [
        [0, (15 - 48) / 2, 0, (14 - 16) / 2],
        [0, 0, 0, (14 - 16) / 2],
        [0, (48 - 15) / 2],
    ]


def test_turns_of_no_group_and_rewards_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(InvalidSampleError, match="a sample has group_id None"):
        turn_advantages([row(2, "a", "g"), row(2, "b")])
    with pytest.raises(InvalidSampleError, match="token_rewards holds nan at token 1"):
        turn_advantages([row(2, "a", "g", token_rewards=np.array([0.0, np.nan]))])
