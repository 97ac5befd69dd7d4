"""`RolloutTree`: what samples share is held once, and rows and tree train the same tokens."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from strands_env.training import RolloutTree, TrainingSample
from strands_sglang.trajectory.media import PlacedMedium


def sample(runs: list[tuple[list[int], str]], **fields: Any) -> TrainingSample:
    """Runs of ids: `p` a prompt, `t` trained here, `e` sampled here and trained by another sample."""
    kinds = "".join(kind * len(ids) for ids, kind in runs)
    ids = np.array([id for part, _ in runs for id in part], dtype=np.int32)
    elsewhere = np.array([kind == "e" for kind in kinds], dtype=np.uint8)
    logprobs = np.where([kind == "p" for kind in kinds], np.nan, -(ids + 1.0) / 64)
    return TrainingSample(
        token_ids=ids,
        prompt_length=len(runs[0][0]) if runs else 0,
        loss_mask=np.array([kind == "t" for kind in kinds], dtype=np.uint8),
        trained_elsewhere=elsewhere if elsewhere.any() else None,
        logprobs=logprobs,
        reward=1.0,
        **fields,
    )


def assert_rows(tree: RolloutTree, samples: list[TrainingSample]) -> None:
    for row, own in zip(tree.rows(), samples, strict=True):
        for name in ("token_ids", "loss_mask", "logprobs", "trained_elsewhere"):
            given, expected = getattr(row, name), getattr(own, name)
            assert (given is None and expected is None) or np.array_equal(given, expected, equal_nan=name == "logprobs")
        row.validate()


def forest(seed: int) -> list[TrainingSample]:
    """The samples of a random forest of turns, as an export makes them: the first that holds a token trains it."""
    rng = random.Random(seed)
    ids = lambda: [rng.randrange(3) for _ in range(rng.randint(1, 4))]  # noqa: E731 - few ids, so that runs coincide
    turns: list[tuple[int | None, list[int], list[int]]] = []
    for number in range(rng.randint(1, 9)):
        turns.append((rng.choice([None, *range(number)]) if number else None, ids(), ids()))
    inner, owned, samples = {parent for parent, _, _ in turns}, set(), []
    for leaf in (number for number in range(len(turns)) if number not in inner):
        path, turn = [], leaf
        while turn is not None:
            path.append(turn)
            turn = turns[turn][0]
        runs: list[tuple[list[int], str]] = []
        for turn in reversed(path):
            runs += [(turns[turn][1], "p"), (turns[turn][2], "e" if turn in owned else "t")]
            owned.add(turn)
        samples.append(sample(runs, agent_name=f"agent-{leaf}"))
    return samples


def loss_terms(ids: list[int], parents: list[int], mask: list[int]) -> Counter[tuple[int, ...]]:
    """What a trainer that sees only the tokens before one would sum up: each trained token behind its prefix."""
    terms: Counter[tuple[int, ...]] = Counter()
    for place, trained in enumerate(mask):
        prefix, before = [], place
        while trained and before >= 0:
            prefix.append(ids[before])
            before = parents[before]
        if trained:
            terms[tuple(prefix)] += 1
    return terms


@pytest.mark.parametrize("seed", range(60))
def test_a_random_forest_has_the_same_loss_in_rows_and_tree(seed: int) -> None:
    samples = forest(seed)
    tree = RolloutTree.of(samples)
    assert_rows(tree, samples)
    flat = {name: values.tolist() for name, values in tree.arrays().items()}
    rows = sum(
        (loss_terms(s.token_ids.tolist(), list(range(-1, len(s) - 1)), s.loss_mask.tolist()) for s in samples),
        Counter(),
    )
    assert loss_terms(flat["token_ids"], flat["parents"], flat["loss_mask"]) == rows
    assert len(tree) == len(flat["parents"]) <= sum(map(len, samples))
    assert all(node.parent is None or node.parent < index for index, node in enumerate(tree.nodes))
    for place, before in enumerate(flat["parents"]):
        assert flat["positions"][place] == (0 if before < 0 else flat["positions"][before] + 1)


def test_shared_turns_are_one_node_in_whatever_order_the_samples_come() -> None:
    first = sample([([1, 2], "p"), ([3, 4], "t"), ([5], "p"), ([6], "t")])
    other = sample([([1, 2], "p"), ([3, 4], "e"), ([7, 8], "p"), ([9], "t")], agent_name="helper")
    short = sample([([1], "p")])
    for samples in ([first, other, short], [short, other, first]):
        tree = RolloutTree.of(samples)
        assert_rows(tree, samples)
        assert len(tree) == 9 and [node.sampled for node in tree.nodes].count(True) == 3
        assert sum(int(node.loss_mask.sum()) for node in tree.nodes) == 4
    assert tree.rows()[0].reward == 1.0 and RolloutTree.of([]).rows() == []


def test_tokens_that_two_samples_train_and_images_that_differ_are_not_shared() -> None:
    twice = [sample([([1], "p"), ([3, 4], "t")]) for _ in range(2)]
    assert [len(node) for node in RolloutTree.of(twice).nodes] == [1, 2, 2]
    pictures = [
        replace(
            sample([([1, 0, 0, 2], "p"), ([number], "t")]),
            media=(PlacedMedium(data="", digest=digest, processor="p", offset=1, length=2, grid=None),),
        )
        for number, digest in enumerate(("a", "b", "a"))
    ]
    assert [len(node) for node in RolloutTree.of(pictures).nodes] == [1, 3, 1, 1, 3, 1]
    assert_rows(RolloutTree.of(pictures), pictures)
