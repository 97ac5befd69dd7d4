"""One path of a rollout for trainers that take one sequence: it trains every token that was sampled on it."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest
from provider_support import Replay, completion, tokenizer
from strands import Agent

from strands_env.core import Action, Environment, RewardResult, StepResult
from strands_env.rewards import TurnReward
from strands_env.training import TrainingSample, load_samples, samples_from_step, save_samples
from strands_env.training.export import one_path, token_level_rewards
from strands_sglang import SGLangModel
from tests.unit.strands_env.training.test_training_sample import assert_same

REPLIES = ("one", "branch A", "the long final answer of branch B, which has most tokens")


class ForkEnv(Environment):
    """A conversation with two second turns: two paths that share the first reply."""

    async def interact(self, agent: Agent, action: Any) -> Any:
        await self.invoke(agent, action.prompt)
        kept = copy.deepcopy(agent.messages)
        await self.invoke(agent, "A?")
        agent.messages[:] = kept
        return await self.invoke(agent, "B?")


class InTurn(TurnReward):
    """Turn n is worth n + 1."""

    def compute_turn(self, turn: Any, action: Any, step_result: Any) -> float:
        return turn.index + 1.0


async def rollout(replies: tuple[str, ...], reward_fn: Any, env_class: type[Environment]) -> StepResult:
    client = Replay([completion(text) for text in replies])
    model_factory = partial(SGLangModel, client=client, tokenizer=tokenizer())
    return await env_class(model_factory=model_factory, reward_fn=reward_fn).rollout(Action(message="q"))


async def fork(replies: tuple[str, ...] = REPLIES) -> list[TrainingSample]:
    return samples_from_step(await rollout(replies, lambda action, result: 1.0, ForkEnv))


class ReturnEnv(Environment):
    """Two branches, of which the first goes on at last: its turns are not in a row."""

    async def interact(self, agent: Agent, action: Any) -> Any:
        await self.invoke(agent, action.prompt)
        kept = copy.deepcopy(agent.messages)
        await self.invoke(agent, "A?")
        first = copy.deepcopy(agent.messages)
        agent.messages[:] = kept
        await self.invoke(agent, "B?")
        agent.messages[:] = first
        return await self.invoke(agent, "more?")


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


@pytest.mark.parametrize("is_saved", [False, True])
@pytest.mark.parametrize(("env_class", "replies"), [(ForkEnv, REPLIES), (ReturnEnv, ("one", "A", "B!", "more of A"))])
async def test_rewards_of_turns_on_a_branched_history_go_to_the_tokens_of_their_replies(
    env_class: type[Environment], replies: tuple[str, ...], is_saved: bool
) -> None:
    result = await rollout(replies, InTurn(aggregate="sum"), env_class)
    result = StepResult.from_json(result.to_json()) if is_saved else result
    samples = samples_from_step(result)
    decode = tokenizer().decode
    found: dict[float, str] = {}
    for sample in samples:  # together, every reward lies once on tokens that are trained: the last one of its reply
        for place in np.flatnonzero(sample.token_rewards * sample.loss_mask):
            value = float(sample.token_rewards[place])
            assert value not in found
            begins = max(i for i in range(place + 1) if i == 0 or not sample.loss_mask[i - 1])
            found[value] = decode(sample.token_ids[begins : place + 1].tolist())
    assert {value: text[: len(reply)] for (value, text), reply in zip(sorted(found.items()), replies, strict=True)} == {
        turn + 1.0: reply for turn, reply in enumerate(replies)
    }
    # A trainer that takes one path has the rewards of all turns on it, shared ones too.
    chosen = one_path(samples)
    assert sum(token_level_rewards(chosen)) == pytest.approx(
        chosen.reward + sum(chosen.token_rewards[chosen.loss_mask == 1])
    )
    assert chosen.token_rewards[chosen.loss_mask == 1].sum() in (1.0 + 3.0, 1.0 + 2.0 + 4.0)


async def test_rewards_of_turns_that_no_reply_has_are_refused_and_can_be_left_out() -> None:
    result = await rollout(REPLIES, lambda action, result: RewardResult(reward=1.0, turn_rewards={3: 1.0}), ForkEnv)
    with pytest.raises(ValueError, match="turn 3 has a reward, but the step has only 3 turns"):
        samples_from_step(result)
    assert [sample.reward for sample in samples_from_step(result, placement=None)] == [1.0, 1.0]


async def test_where_replies_and_calls_do_not_correspond_the_rollout_is_kept(caplog: Any) -> None:
    result = await rollout(REPLIES, InTurn(), ForkEnv)
    del result.observation.messages[-1]
    samples = samples_from_step(result)
    assert [(sample.reward, sample.token_rewards.any()) for sample in samples] == [(2.0, False)] * 2
    assert "rewards of turns are left out" in caplog.text


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
