"""The slime functions against fakes of slime's `Sample` and `GenerateState`, written from its contract."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import threading
import types
from typing import Any

import numpy as np
import pytest
from provider_support import call, completion
from slime_support import (
    PARAMS,
    AddEnv,
    Rig,
    Sample,
    TwoPaths,
    WaitingEnv,
    check,
    good_replies,
    rig,
    settle,
    waiting_call,
    with_top_p,
)

from strands_env.core import RewardResult
from strands_env.testing import ScriptedModel
from strands_env.training import slime
from strands_env.training.slime.shared_state import SESSION
from strands_sglang.testing import Reply

__all__ = ["rig"]


# ---- a rollout -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (slime.generate, "args sample sampling_params evaluation"),
        (slime.reward_func, "args sample kwargs"),
        (slime.reward_post_process, "args samples"),
        (slime.log_rollout, "rollout_id args samples rollout_extra_metrics rollout_time"),
        (slime.log_eval_rollout, "rollout_id args data extra_metrics"),
    ],
)
def test_the_signatures_are_slimes(function: Any, parameters: str) -> None:
    assert list(inspect.signature(function).parameters) == parameters.split()


async def test_a_rollout_fills_the_sample_with_what_was_sampled(rig: Rig) -> None:
    client = rig.serve(*good_replies(("7", "8")))
    sample = await rig.run()
    check(sample)
    assert sample.status is Sample.Status.COMPLETED
    assert sample.tokens[: len(client.prompts[1])] == client.prompts[1]
    assert len(client.prompts[0]) == len(sample.tokens) - sample.response_length
    assert sample.weight_versions == ["7", "8"]
    assert (sample.reward, sample.remove_sample) == (1.0, False)
    assert sample.non_generation_time > 0  # of the tool
    # Tokens of the environment have log-probability 0, and no others.
    assert [mask for mask in sample.loss_mask] == [int(value != 0.0) for value in sample.rollout_log_probs]
    assert "tool_response" in sample.response
    assert sample.prefix_cache_info.cached_tokens == 13
    assert sample.prefix_cache_info.total_prompt_tokens == sum(map(len, client.prompts))


async def test_sampling_params_are_never_changed_and_sent_without_what_is_unset(rig: Rig) -> None:
    client = rig.serve(*good_replies())
    params = copy.deepcopy(PARAMS) | {"custom_params": {"a": [1]}}
    before = copy.deepcopy(params)
    await slime.generate(rig.args, Sample(), params)
    assert params == before
    sent = client.requests[0].fields["sampling_params"]
    assert "stop" not in sent
    assert (sent["skip_special_tokens"], sent["no_stop_trim"]) == (False, True)


# ---- budget ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut_by", ["tool result", "length"])
async def test_a_rollout_that_is_cut_is_truncated(rig: Rig, cut_by: str) -> None:
    length = len(completion(call(1, 2)).ids) + 2
    client = rig.serve(*(good_replies() if cut_by == "tool result" else [completion("on and on", stop=False)]))
    sample = await rig.run(params={"max_new_tokens": length})
    assert (len(client.requests), sample.status) == (1, Sample.Status.TRUNCATED)
    assert sample.response_length <= length
    check(sample)


# ---- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replies", [[completion(call(1, 2))], []], ids=["in the second turn", "nothing sampled"])
async def test_a_broken_server_is_a_failed_sample_that_trains_nothing(rig: Rig, replies: list[Reply]) -> None:
    rig.serve(*replies, ConnectionError("gone"))
    sample = await rig.run()
    check(sample)
    assert (sample.status, sample.remove_sample, sample.reward) == (Sample.Status.FAILED, True, 0.0)
    assert sum(sample.loss_mask) == 0
    assert "gone" in sample.metadata["strands_env"]["error"]["message"]
    assert replies or (sample.response_length, sample.loss_mask) == (1, [0])  # slime can carry no empty one


async def test_an_abstaining_reward_removes_the_sample(rig: Rig) -> None:
    rig.options = {"reward_fn": lambda action, result: RewardResult(reward=None)}
    rig.serve(completion("3"))
    sample = await rig.run()
    assert (sample.remove_sample, sample.reward) == (True, 0.0)


# ---- abort and partial rollout ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ended_by", ["abort", "cancellation"])
async def test_a_running_tool_is_ended_and_cleaned_up(rig: Rig, ended_by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.environment = WaitingEnv
    monkeypatch.setattr(WaitingEnv, "cleaned", 0)
    monkeypatch.setattr(WaitingEnv, "waits", False)
    rig.serve(waiting_call())
    before = asyncio.all_tasks()
    running = asyncio.ensure_future(rig.run())
    while not WaitingEnv.waits:
        await asyncio.sleep(0.01)
    if ended_by == "abort":
        rig.state.aborted = True
        assert (await running).status is Sample.Status.ABORTED
    else:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert WaitingEnv.cleaned == 1
    await settle()
    assert asyncio.all_tasks() == before


async def suspended_rollout(rig: Rig) -> Sample:
    """A partial rollout that was aborted in its second turn, with two sampled tokens of it."""
    whole = completion("the answer is 3", version="1")

    def stopping(*request: Any) -> Reply:
        rig.state.aborted = True
        return Reply(ids=whole.ids[:2], finish="abort", weight_version="1")

    rig.args.partial_rollout = True
    rig.serve(completion(call(1, 2), version="1"), stopping, Reply(ids=whole.ids[2:], weight_version="2"))
    return await rig.run(Sample(session_id="partial"))


async def test_a_partial_rollout_goes_on_where_it_was(rig: Rig) -> None:
    sample = await suspended_rollout(rig)
    assert (sample.status, sample.reward) == (Sample.Status.ABORTED, None)
    assert sample.response
    assert sample.response_length == len(sample.loss_mask) == len(sample.rollout_log_probs) > 0
    requests = len(rig.client.requests)
    rig.state.aborted = False
    done = await rig.run(sample)
    assert done is sample
    check(done)
    assert done.status is Sample.Status.COMPLETED
    assert done.weight_versions == ["1", "1", "2"]
    assert len(rig.client.requests) == requests + 1
    assert done.tokens[: len(rig.client.prompts[-1])] == rig.client.prompts[-1]
    assert SESSION.suspended.take("partial") is None


async def test_tokens_from_before_the_resumption_can_be_masked(rig: Rig) -> None:
    rig.args.mask_offpolicy_in_partial_rollout = True
    sample = await suspended_rollout(rig)
    rig.state.aborted = False
    done = await rig.run(sample)
    resumed = len(rig.client.prompts[-1]) - (len(done.tokens) - done.response_length)
    assert sum(done.loss_mask[:resumed]) == 0
    assert sum(done.loss_mask[resumed:]) == done.response_length - resumed


async def test_a_requeued_sample_that_is_not_held_starts_over(rig: Rig) -> None:
    rig.serve(completion("3"))
    stale = Sample(tokens=[1, 2, 3], response="old", response_length=2, loss_mask=[1, 1], reward=5.0)
    sample = await rig.run(stale)
    check(sample)
    assert "old" not in sample.response
    assert sample.reward == 1.0


# ---- further data ----------------------------------------------------------------------------------------------------


async def test_session_affinity_follows_the_router_policy(rig: Rig) -> None:
    client = rig.serve(completion("3"), completion("3"))
    await rig.run()
    rig.args.router_policy = "consistent_hashing"
    await rig.run()
    keys = [request.fields["routing_key"] for request in client.requests]
    assert keys[0] != "session-of-this-sample"
    assert keys[1] == "session-of-this-sample"


def experts(rows: int) -> str:
    import base64

    return base64.b64encode(np.arange(rows * 2 * 2, dtype="<i4").tobytes()).decode()


@pytest.mark.parametrize("top_k", [2, 1])
async def test_missing_experts_fail_the_sample_but_keep_its_shape(rig: Rig, top_k: int) -> None:
    rig.args.use_rollout_routing_replay, rig.args.num_layers, rig.args.moe_router_topk = True, 2, top_k
    rig.serve(completion("3"))
    sample = await rig.run()
    assert sample.status is Sample.Status.FAILED
    assert sample.rollout_routed_experts.shape == (len(sample.tokens) - 1, 2, top_k)
    assert sample.rollout_routed_experts.any(axis=(0, 2)).all()  # no layer is all 0, as slime checks


async def test_top_p_data_follows_the_sampled_tokens(rig: Rig) -> None:
    rig.args.rollout_top_p = 0.9
    rig.serve(*map(with_top_p, good_replies()))
    sample = await rig.run(params={"custom_params": {"return_top_p_token_ids": True}})
    offsets = sample.rollout_top_p_token_offsets
    assert len(offsets) == sample.response_length + 1
    assert offsets[-1] == len(sample.rollout_top_p_token_ids)
    assert np.diff(offsets).tolist() == [2 * mask for mask in sample.loss_mask]
    assert rig.client.requests[0].fields["sampling_params"]["custom_params"] == {"return_top_p_token_ids": True}


@pytest.mark.parametrize("replies", [[completion("3")], [with_top_p(completion(call(1, 2))), completion("3")]])
async def test_missing_top_p_data_fails_the_sample_with_both_arrays(rig: Rig, replies: list[Reply]) -> None:
    rig.args.rollout_top_p = 0.9
    rig.serve(*replies)
    sample = await rig.run()
    assert sample.status is Sample.Status.FAILED
    assert "no top-p token ids" in sample.metadata["strands_env"]["error"]["message"]
    assert sample.rollout_top_p_token_ids == []
    assert len(sample.rollout_top_p_token_offsets) == sample.response_length + 1


async def test_several_paths_become_samples_of_one_rollout(rig: Rig) -> None:
    rig.args.strands_env_fanout = True
    rig.environment = TwoPaths
    rig.options["reward_fn"] = lambda action, result: RewardResult(reward=1.0, info={"checks": 2})
    rig.serve(completion("first"), completion("second"))
    given = Sample()
    samples = await rig.run(given)
    assert [type(sample) for sample in samples] == [Sample, Sample]
    assert samples[0] is given
    assert {sample.rollout_id for sample in samples} == {3}
    assert {sample.reward for sample in samples} == {1.0}
    assert sum(sum(sample.loss_mask) for sample in samples) == sum(
        len(completion(text).ids) for text in ("first", "second")
    )
    for sample in samples:
        check(sample)
    first, second = (sample.metadata["strands_env"] for sample in samples)
    for name in ("metrics", "reward_info"):
        first[name]["mine"] = 1
        assert "mine" not in second[name]
    assert samples[1].prefix_cache_info.total_prompt_tokens == 0


@pytest.mark.parametrize(("fanout", "status"), [(True, Sample.Status.FAILED), (False, Sample.Status.COMPLETED)])
async def test_facts_of_a_reward_that_cannot_be_copied_end_no_run(rig: Rig, fanout: bool, status: Any) -> None:
    rig.args.strands_env_fanout = fanout
    rig.environment = TwoPaths
    info = {"held": threading.Lock()}
    rig.options["reward_fn"] = lambda action, result: RewardResult(reward=1.0, info=info)
    rig.serve(completion("first"), completion("second"))
    samples = await rig.run()
    assert [sample.status for sample in (samples if fanout else [samples])] == [status]


async def test_evaluation_needs_no_training_data(rig: Rig) -> None:
    rig.args.use_rollout_routing_replay, rig.args.num_layers, rig.args.moe_router_topk = True, 2, 2
    rig.args.rollout_top_p = 0.9
    client = rig.serve(completion("3"))
    sample = await rig.run(evaluation=True)
    assert sample.status is Sample.Status.COMPLETED
    assert not client.requests[0].fields.get("return_routed_experts")


async def test_a_model_without_tokenizer_or_server_works(rig: Rig) -> None:
    rig.environment = lambda model_factory, **o: AddEnv(model_factory=lambda: ScriptedModel(["hi"]), **o)
    rig.state.tokenizer = None
    sample = await rig.run()
    check(sample)
    assert sample.response == "hi"


# ---- rewards ---------------------------------------------------------------------------------------------------------


def text_reward(action: Any, result: Any) -> float:
    return float(result.observation.final_response == action.task_context.ground_truth)


IMAGE_PROMPT = [
    {"role": "user", "content": [{"type": "image", "image": "one.png"}, {"type": "text", "text": "How many?"}]}
]


@pytest.mark.parametrize(
    ("given", "reward"),
    [
        (Sample(reward=0.5), 0.5),  # of the environment
        ([Sample(reward=0.5), Sample(reward=1.0)], [0.5, 1.0]),
        (Sample(response="3"), 1.0),
        (Sample(response="4"), 0.0),
        (Sample(response="3", prompt=IMAGE_PROMPT), 1.0),
    ],
)
async def test_reward_func_scores_text_where_the_environment_has_no_reward(rig: Rig, given: Any, reward: Any) -> None:
    rig.args.strands_env_reward = f"{__name__}.text_reward"
    assert await slime.reward_func(rig.args, given) == reward


async def test_reward_func_says_what_is_missing(rig: Rig) -> None:
    with pytest.raises(slime.SlimeConfigError, match="strands_env_reward"):
        await slime.reward_func(rig.args, Sample(response="3"))


EMPTY = types.SimpleNamespace()


def scored(reward: float, group: int, index: int, **changes: Any) -> Sample:
    return Sample(reward=reward, group_index=group, index=index, **changes)


NO_STD = {"grpo_std_normalization": False}


@pytest.mark.parametrize(
    ("args", "samples", "normalised"),
    [
        ({}, [scored(1, 0, 0), scored(1, 0, 1), scored(0, 1, 2), scored(0, 1, 3), scored(0, 1, 4)], [0.0] * 5),
        (NO_STD, [scored(1, 0, 0, rollout_id=0), scored(1, 0, 0, rollout_id=0), scored(0, 0, 1)], [0.5, 0.5, -0.5]),
        (NO_STD, [scored(1, 0, 0), scored(0, 0, 1), scored(0, 0, 2, remove_sample=True)], [0.5, -0.5, 0.0]),
        ({"advantage_estimator": "ppo"}, [scored(1, 0, 0), scored(3, 0, 1)], [1, 3]),
        (
            {**NO_STD, "n_samples_per_prompt": 2},
            [Sample(reward=r, group_index=None, index=i) for r, i in [(1, 0), (0, 1), (0, 1), (1, 2), (1, 3)]],
            [0.5, -0.5, -0.5, 0.0, 0.0],
        ),
        ({}, [Sample(reward=0.5, group_index=None, index=i) for i in (0, 1)], [0.0, 0.0]),
        (NO_STD, [scored(r, 0, i) for i, r in enumerate((1.0, 0.0, float("nan"), "good"))], [0.5, -0.5, 0.0, 0.0]),
        *((NO_STD, [scored(make(1), 0, 0), scored(make(0), 0, 1)], [0.5, -0.5]) for make in (np.float32, np.array)),
    ],
    ids=[
        *("unequal groups", "a split rollout counts once", "removed samples do not count", "no normalisation"),
        *("groups by slices", "no arguments and no groups", "a reward that is no number", "float32", "array"),
    ],
)
def test_rewards_are_normalised_by_group(args: dict[str, Any], samples: list[Sample], normalised: list[float]) -> None:
    raw, found = slime.reward_post_process(types.SimpleNamespace(**args), samples)
    assert (len(raw), found) == (len(samples), normalised)


@pytest.mark.parametrize(
    ("group", "kept"),
    [
        ([[scored(1, 0, 0), scored(1, 0, 0)], scored(1, 0, 1)], False),
        ([[scored(1, 0, 0), scored(1, 0, 0)], scored(0, 0, 1)], True),
        ([scored(np.float32(1), 0, 0), scored(np.float32(0), 0, 1)], True),
        ([scored(0, 0, i, remove_sample=True) for i in range(2)], False),
        ([scored(0, 0, 1), scored(float("nan"), 0, 2), scored("good", 0, 3)], False),
        ([[], scored(1, 0, 0)], False),
    ],
)
def test_the_filter_keeps_groups_whose_rollouts_differ(group: list[Any], kept: bool) -> None:
    assert bool(slime.check_reward_nonzero_std(types.SimpleNamespace(reward_key=None), group)) is kept


# ---- logging ---------------------------------------------------------------------------------------------------------


async def test_the_logger_writes_metrics_and_conversations(rig: Rig, tmp_path: Any) -> None:
    rig.args.strands_env_log_dir = str(tmp_path)
    rig.serve(*good_replies())
    sample = await rig.run()
    assert slime.log_rollout(5, rig.args, [[sample]], {}, 1.5) is False
    line = json.loads((tmp_path / "rollout.jsonl").read_text())
    assert line["rollout_id"] == 5
    assert line["metrics"]["reward"] == 1.0
    assert line["metrics"]["tool_calls"] == 1
    assert line["metrics"]["prefix_cache_hit_rate"] > 0
    assert line["samples"][0]["response"] == sample.response
