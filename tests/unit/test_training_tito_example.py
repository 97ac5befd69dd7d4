"""The pieces of `examples/tito_vs_retokenized` that its claim rests on."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "tito_vs_retokenized"


@pytest.fixture(scope="module")
def example() -> Any:
    """The modules of the example, which import each other by name."""
    import importlib

    sys.path.insert(0, str(EXAMPLE))
    try:
        yield {name: importlib.import_module(name) for name in ("task", "rollouts", "grpo", "report")}
    finally:
        sys.path.remove(str(EXAMPLE))


@pytest.fixture(scope="module")
def tokenizer(example: Any) -> Any:
    return example["task"].make_tokenizer(400)


def sample_of(example: Any, tokenizer: Any, dropout: float, seed: int = 0) -> Any:
    """A conversation with its model turns tokenised with that dropout."""
    from strands_env.training import TrainingSample

    task = example["task"]
    rng = random.Random(seed)
    noisy = task.DropoutTokenizer(tokenizer, dropout, rng)
    ids: list[int] = []
    mask: list[int] = []
    for text, sampled in task.conversation(task.make_problem(rng)):
        piece = noisy.encode(text) if sampled else tokenizer.encode(text, add_special_tokens=False)
        ids += piece
        mask += [int(sampled)] * len(piece)
    return TrainingSample(
        token_ids=np.array(ids, dtype=np.int32),
        prompt_length=mask.index(1),
        loss_mask=np.array(mask, dtype=np.uint8),
        logprobs=np.where(np.array(mask) == 1, -1.0, np.nan),
        reward=1.0,
    )


def test_without_dropout_the_noisy_tokenizer_is_the_tokenizer(example: Any, tokenizer: Any) -> None:
    task = example["task"]
    noisy = task.DropoutTokenizer(tokenizer, 0.0, random.Random(0))
    for seed in range(20):
        for text, _ in task.conversation(task.make_problem(random.Random(seed))):
            assert noisy.encode(text) == tokenizer.encode(text, add_special_tokens=False)


def test_dropout_gives_other_tokens_of_the_same_text_and_is_seeded(example: Any, tokenizer: Any) -> None:
    noisy = [sample_of(example, tokenizer, 0.3, seed=1).token_ids.tolist() for _ in range(2)]
    exact = sample_of(example, tokenizer, 0.0, seed=1).token_ids.tolist()
    assert noisy[0] == noisy[1] != exact


def test_retokenising_what_a_tokenizer_would_write_changes_nothing(example: Any, tokenizer: Any) -> None:
    sample = sample_of(example, tokenizer, 0.0)
    again = example["rollouts"].retokenized(sample, tokenizer)
    assert again.token_ids.tolist() == sample.token_ids.tolist()
    assert again.loss_mask.tolist() == sample.loss_mask.tolist()
    assert again.prompt_length == sample.prompt_length


def test_retokenising_a_drifted_rollout_keeps_the_text_and_loses_the_tokens(example: Any, tokenizer: Any) -> None:
    sample = sample_of(example, tokenizer, 0.3)
    again = example["rollouts"].retokenized(sample, tokenizer)
    assert tokenizer.decode(again.token_ids.tolist()) == tokenizer.decode(sample.token_ids.tolist())
    assert again.token_ids.tolist() != sample.token_ids.tolist()
    assert again.logprobs is None
    trained = [ids[mask == 1].tolist() for ids, mask in ((s.token_ids, s.loss_mask) for s in (sample, again))]
    assert tokenizer.decode(trained[0]) == tokenizer.decode(trained[1])


def test_an_update_raises_what_was_rewarded(example: Any, tokenizer: Any) -> None:
    from dataclasses import replace

    import torch

    grpo = example["grpo"]
    model = example["task"].make_model(tokenizer, 0)
    good, bad = (
        replace(sample_of(example, tokenizer, 0.0, seed), reward=reward, rollout_id=str(seed), logprobs=None)
        for seed, reward in ((1, 1.0), (2, 0.0))
    )

    def likelihood(sample: Any) -> float:
        with torch.no_grad():
            logprobs, mask = grpo.token_logprobs(model, [sample], 0)
        return float((logprobs * mask).sum())

    before = likelihood(good) - likelihood(bad)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorded = [replace(sample, logprobs=np.zeros(len(sample))) for sample in (good, bad)]
    grpo.update(model, optimizer, [good, bad], recorded, pad=0)
    assert likelihood(good) - likelihood(bad) > before


def test_the_interval_is_students(example: Any) -> None:
    mean, half = example["report"].interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.303 / 3**0.5, rel=1e-3)


def test_arms_are_paired_by_seed(example: Any) -> None:
    runs = [{"arm": arm, "seed": seed} for arm, seed in (("a", 2), ("b", 2), ("a", 3), ("a", 0), ("b", 0))]
    found = [(run["seed"], run["arm"]) for run in example["report"].complete(runs)]
    assert found == [(0, "a"), (0, "b"), (2, "a"), (2, "b")]
