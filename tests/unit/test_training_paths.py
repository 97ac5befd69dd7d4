"""One path of a rollout for trainers that take one sequence: it trains every token that was sampled on it."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from provider_support import Replay, completion, tokenizer
from strands import Agent

from strands_env.core import Action, Environment
from strands_env.training import TrainingSample, load_samples, samples_from_step, save_samples
from strands_env.training.export import one_path
from strands_sglang import SGLangModel
from tests.unit.test_training_sample import assert_same

REPLIES = ("one", "branch A", "the long final answer of branch B, which has most tokens")


class ForkEnv(Environment):
    """A conversation with two second turns: two paths that share the first reply."""

    async def interact(self, agent: Agent, action: Any) -> Any:
        await self.invoke(agent, action.prompt)
        kept = copy.deepcopy(agent.messages)
        await self.invoke(agent, "A?")
        agent.messages[:] = kept
        return await self.invoke(agent, "B?")


async def fork(replies: tuple[str, ...] = REPLIES) -> list[TrainingSample]:
    client = Replay([completion(text) for text in replies])
    env = ForkEnv(
        model_factory=lambda: SGLangModel(client=client, tokenizer=tokenizer()), reward_fn=lambda action, result: 1.0
    )
    return samples_from_step(await env.rollout(Action(message="q")))


def count(*texts: str) -> int:
    return sum(len(completion(text).ids) for text in texts)


async def test_together_the_paths_train_every_token_once() -> None:
    first, second = await fork()
    assert first.rollout_id == second.rollout_id
    assert (first.trained_tokens, second.trained_tokens) == (count(*REPLIES[:2]), count(REPLIES[2]))
    assert first.trained_elsewhere is None
    assert int(second.trained_elsewhere.sum()) == count(REPLIES[0])
    second.validate(logprobs_required=True)


async def test_the_path_that_stands_for_a_rollout_trains_all_its_sampled_tokens() -> None:
    samples = await fork()
    chosen = one_path(samples)
    assert np.array_equal(chosen.token_ids, samples[1].token_ids)
    assert chosen.trained_tokens == count(REPLIES[0], REPLIES[2])
    assert chosen.trained_elsewhere is None
    chosen.validate(logprobs_required=True)
    assert samples[1].trained_tokens == count(REPLIES[2]), "the given sample is as before"


async def test_the_path_is_chosen_by_what_it_would_train() -> None:
    replies = ("a long reply which both of the paths share", "x", "a bit longer")
    first, second = await fork(replies)
    assert first.trained_tokens > second.trained_tokens
    assert np.array_equal(one_path([second, first]).token_ids, second.token_ids)


async def test_a_cut_and_a_file_keep_what_is_trained_elsewhere(tmp_path: Any) -> None:
    second = (await fork())[1]
    cut = second.truncated(second.prompt_length + 1)
    assert len(cut.trained_elsewhere) == len(cut)
    pytest.importorskip("pyarrow")
    save_samples([second], tmp_path / "samples.parquet")
    assert_same(load_samples(tmp_path / "samples.parquet")[0], second)


async def test_a_token_is_not_trained_here_and_elsewhere() -> None:
    second = (await fork())[1]
    mask = second.loss_mask | second.trained_elsewhere
    with pytest.raises(ValueError, match="trained here and elsewhere"):
        TrainingSample(
            token_ids=second.token_ids,
            prompt_length=second.prompt_length,
            loss_mask=mask,
            trained_elsewhere=second.trained_elsewhere,
        ).validate()
