"""The neutral training sample: building, splitting, cutting, checking, storing."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import pytest
from provider_support import Replay, call, completion, tokenizer
from strands import Agent, tool

from strands_env.core import Action, Environment, RewardResult, StepResult, TerminationReason, WeightVersionSpan
from strands_env.core.models import sglang_model_factory
from strands_env.core.termination import ANSWERED, UNKNOWN, End
from strands_env.testing import ScriptedModel, reply
from strands_env.testing import call as scripted_call
from strands_env.training import (
    InvalidSampleError,
    SamplingMask,
    TrainingSample,
    collect_rollouts,
    load_samples,
    samples_from_model,
    samples_from_step,
    save_samples,
)
from strands_env.training.export import one_row
from strands_env.training.trl import rollout_output
from strands_sglang import SGLangModel
from strands_sglang.trajectory.media import PlacedMedium

IMAGE = PlacedMedium(data="data:image/png;base64,AA==", digest="d", processor="p", grid=(1, 2, 2), offset=1, length=1)


def make(**changes: Any) -> TrainingSample:
    fields: dict[str, Any] = {
        "token_ids": np.arange(6, dtype=np.int32),
        "prompt_length": 2,
        "loss_mask": np.array([0, 0, 1, 1, 0, 1], dtype=np.uint8),
        "logprobs": np.array([np.nan, np.nan, -0.1, -0.2, np.nan, -0.3]),
        "weight_versions": (
            WeightVersionSpan(version="a", start=2, end=4),
            WeightVersionSpan(version="b", start=5, end=6),
        ),
        "routed_experts": np.arange(5 * 2 * 2, dtype="<i4").tobytes(),
        "experts_shape": (2, 2),
        "sampling_mask": SamplingMask(
            ids=np.array([7, 8, 9, 5], dtype=np.int32), offsets=np.array([0, 0, 0, 2, 3, 3, 4], dtype=np.int64)
        ),
        "token_rewards": np.array([0.0, 0, 0, 0.5, 0, 1.0]),
        "reward": 1.0,
        "group_id": "g",
        "rollout_id": "r",
    }
    return TrainingSample(**{**fields, **changes})


def mask(ids: list[int], offsets: list[int]) -> SamplingMask:
    return SamplingMask(ids=np.array(ids, dtype=np.int32), offsets=np.array(offsets, dtype=np.int64))


def assert_same(one: TrainingSample, other: TrainingSample) -> None:
    """Two samples hold the same; NaN equals NaN."""
    np.testing.assert_equal(asdict(one), asdict(other))


@tool
def echo(text: str) -> str:
    """Say it again.

    Args:
        text: What to say.
    """
    return text


class EchoEnv(Environment):
    def get_tools(self) -> list[Any]:
        return [echo]


async def step(script: list[Any], **options: Any) -> Any:
    env = EchoEnv(model_factory=lambda: ScriptedModel(script), **options)
    return await env.step(Action(message="hello"))


# ---- tokens of stale weights -----------------------------------------------------------------------------------------


def versioned(**changes: Any) -> TrainingSample:
    """A reply that weights 3 began and 4 went on with, a tool's result, and a reply of weights 5."""
    spans = [("3", 2, 4), ("4", 4, 5), ("5", 6, 8)]
    fields: dict[str, Any] = {
        "token_ids": np.arange(8, dtype=np.int32),
        "loss_mask": np.array([0, 0, 1, 1, 1, 0, 1, 1], dtype=np.uint8),
        "weight_versions": tuple(WeightVersionSpan(version=name, start=a, end=b) for name, a, b in spans),
        **dict.fromkeys(("logprobs", "routed_experts", "experts_shape", "sampling_mask", "token_rewards")),
    }
    return make(**{**fields, **changes})


def test_tokens_of_older_weights_leave_the_loss_one_by_one() -> None:
    sample = versioned(metadata={"x": 1})
    masks = {least: sample.masked(min_version=least) for least in range(3, 7)}
    assert [each.loss_mask.tolist()[2:] for each in masks.values()] == [
        [1, 1, 1, 0, 1, 1],
        [0, 0, 1, 0, 1, 1],
        [0, 0, 0, 0, 1, 1],
        [0, 0, 0, 0, 0, 0],
    ]
    assert [each.masked_share for each in masks.values()] == [0.0, 0.4, 0.6, 1.0]
    assert masks[3] is sample
    assert all(each.validate().is_scored for each in masks.values())
    assert_same(masks[4].masked(min_version=5), masks[5])
    assert (masks[6].is_usable, masks[6].metadata) == (False, {"x": 1, "masked_tokens": 5})
    assert sample.masked(min_version=1, version_of=lambda name: int(name) - 3).loss_mask.sum() == 3


def test_what_another_path_trains_is_stale_on_this_one_too() -> None:
    """Exported alone, a path trains it."""
    shared = np.array([0, 0, 1, 1, 1, 0, 0, 0], dtype=np.uint8)
    sample = versioned(trained_elsewhere=shared, loss_mask=versioned().loss_mask - shared)
    masked = sample.masked(min_version=4)
    assert (masked.masked_share, one_row([masked]).loss_mask.tolist()) == (0.0, [0, 0, 0, 0, 1, 0, 1, 1])


def test_a_token_of_unknown_age_is_refused_only_where_it_is_trained() -> None:
    unknown = (WeightVersionSpan(version="5", start=2, end=5), WeightVersionSpan(version=None, start=6, end=8))
    with pytest.raises(InvalidSampleError, match="token 6 is trained and has no weight version"):
        versioned(weight_versions=unknown).masked(min_version=3)
    with pytest.raises(
        InvalidSampleError,
        match=r"are numbers here, and one is 'a': publish .* version_of=",
    ):
        make().masked(min_version=3)
    failed = make(end=UNKNOWN, reward=None)
    assert failed.masked(min_version=3) is failed


# ---- building --------------------------------------------------------------------------------------------------------


async def test_a_step_becomes_one_sample_with_its_tokens_and_reward() -> None:
    result = await step([scripted_call("echo", text="x"), "done"], reward_fn=lambda action, result: 0.5)
    (sample,) = samples_from_step(result, group_id="g", rollout_id="r")
    tokens = result.observation.tokens
    assert sample.token_ids.tolist() == tokens.token_ids
    assert sample.loss_mask.tolist() == tokens.loss_mask
    assert sample.prompt_length == tokens.prompt_length
    assert (sample.reward, sample.group_id, sample.rollout_id) == (0.5, "g", "r")
    assert sample.end == result.end == ANSWERED
    assert sample.is_usable


@pytest.mark.parametrize(
    ("script", "options", "reason", "outcome"),
    [
        ([reply("cut", stop_reason="max_tokens")], {}, "max_tokens_reached", "policy"),
        ([scripted_call("echo", text="x"), "never"], {"max_tool_iters": 1}, "max_tool_iterations_reached", "policy"),
        ([scripted_call("echo", text="x"), ConnectionError("gone")], {}, "connection_error", "infrastructure"),
    ],
)
async def test_a_sample_has_the_end_of_its_episode(script: list[Any], options: Any, reason: str, outcome: str) -> None:
    (sample,) = samples_from_step(result := await step(script, **options))
    assert sample.end is result.end
    assert (sample.end.reason, sample.end.outcome, sample.end.error is None) == (reason, outcome, outcome == "policy")


async def test_a_failed_rollout_has_no_reward_and_is_not_usable() -> None:
    result = await step([scripted_call("echo", text="x"), ConnectionError("gone")])
    result.reward = RewardResult(reward=1.0)
    (sample,) = samples_from_step(result)
    assert sample.reward is None
    assert not sample.is_usable


SLOW = [scripted_call("echo", text="x"), "never"]


@pytest.mark.parametrize(
    ("script", "delay", "runs", "reason", "reward"),
    [
        (SLOW, 0.0, 1, "timeout", 0.0),  # a tool that hangs after the first reply
        (SLOW, 60.0, 1, "timeout", 0.0),  # not even a first token
        ([ConnectionError("gone")] * 3, 0.0, 3, None, None),
        (["done"], 0.0, 1, "reward_error", None),  # its reward function fails
    ],
    ids=["slow", "silent", "lost", "ungraded"],
)
async def test_slow_rollouts_are_trained_and_not_run_again(
    script: list[Any], delay: float, runs: int, reason: str | None, reward: float | None
) -> None:
    count = 0

    class Hanging(EchoEnv):
        def get_tools(self) -> list[Any]:
            @tool
            async def echo(text: str) -> str:
                """Never return."""
                await asyncio.sleep(60)
                return text

            return [echo]

    def score(action: Action, result: StepResult) -> float:
        if result.observation.final_response is not None:
            raise ConnectionError("no judge")
        return 0.0

    async def run() -> list[TrainingSample]:
        nonlocal count
        count += 1
        make_model = partial(ScriptedModel, script, delay=delay)
        env = Hanging(model_factory=make_model, reward_fn=score, step_timeout=0.5)
        return samples_from_step(await env.rollout(Action(message="q")))

    (samples,) = await collect_rollouts([run], retries=2, pause=0.0)
    assert count == runs
    assert [(sample.end.reason, sample.reward) for sample in samples] == ([] if reason is None else [(reason, reward)])
    for sample in samples:
        sample.validate()
        assert (sample.trained_tokens > 0) == (delay == 0.0)
        assert one_row([sample]).is_scored == (reward is not None)


async def test_a_rollout_that_sampled_nothing_gives_no_sample() -> None:
    assert samples_from_step(await step([ConnectionError("gone")])) == []


async def test_turn_rewards_land_on_the_last_token_of_their_turn() -> None:
    result = await step([scripted_call("echo", text="x"), "done"])
    result.reward = RewardResult(reward=1.0, turn_rewards={0: 0.25, 1: 0.75})
    (sample,) = samples_from_step(result)
    ends = {spans[-1][1] - 1 for spans in result.observation.tokens.turn_spans.values()}
    assert set(np.flatnonzero(sample.token_rewards).tolist()) == ends
    assert sample.token_rewards.sum() == pytest.approx(1.0)


class Frozen(EchoEnv):
    """An agent with a helper that is not trained."""

    def get_tools(self) -> list[Any]:
        model = self.model_for("helper", trainable=False, model_factory=lambda: ScriptedModel(["helped"]))

        @tool
        async def ask(text: str) -> str:
            """Ask the helper.

            Args:
                text: What to ask.
            """
            return str(await Agent(model=model, callback_handler=None).invoke_async(text))

        return [ask]


async def frozen_step() -> Any:
    env = Frozen(model_factory=lambda: ScriptedModel([scripted_call("ask", text="x"), "done"]))
    return await env.step(Action(message="hello"))


async def test_agents_that_are_not_trained_are_left_out() -> None:
    result = await frozen_step()
    assert {item.agent_name for item in result.trajectories} == {"agent", "helper"}
    assert [sample.agent_name for sample in samples_from_step(result)] == ["agent"]


async def test_a_rollout_of_which_no_path_is_trained_keeps_its_reward_and_is_not_run_again() -> None:
    class Delegating(EchoEnv):
        def is_trained(self, trajectory: Any) -> bool:
            return trajectory.role == "subagent"

    async def run() -> Any:
        env = Delegating(model_factory=lambda: ScriptedModel(["done"]), reward_fn=lambda action, result: 0.25)
        results.append(await env.step(Action(message="hello")))
        return samples_from_step(results[-1])

    results: list[Any] = []
    rollouts = await collect_rollouts([run], pause=0)
    assert len(results) == 1
    row = rollout_output(rollouts)
    assert row["strands_reward"] == [0.25] and row["env_mask"] == [[0]]
    rollouts[0][0].validate(logprobs_required=True)


def branching_model() -> SGLangModel:
    replies = [completion(text, version="7") for text in ("first", "second", "third")]
    return SGLangModel(client=Replay(replies), tokenizer=tokenizer())


async def test_discarded_completions_are_left_out() -> None:
    model = branching_model()
    messages: Any = [{"role": "user", "content": [{"text": "same"}]}]
    state = {"event_loop_cycle_id": "cycle"}
    for _ in range(2):
        async for _event in model.stream(messages, invocation_state=state):
            pass
    assert [path.is_discarded for path in model.trajectories] == [False, True]
    assert len(samples_from_model(model)) == 1


async def test_a_model_without_token_data_is_refused() -> None:
    with pytest.raises(TypeError, match="no token data"):
        samples_from_model(ScriptedModel(["x"], token_data=False))


async def test_weight_versions_are_spans_over_the_whole_sequence() -> None:
    client = Replay([completion(call(1, 2), version="1"), completion("3", version="2")])
    env = EchoEnv(model_factory=sglang_model_factory(tokenizer=tokenizer(), client=client))
    (sample,) = samples_from_step(await env.step(Action(message="1+2?")))
    assert [span.version for span in sample.weight_versions] == ["1", "2"]
    sampled = [place for span in sample.weight_versions for place in range(span.start, span.end)]
    assert sampled == [place for place, mask in enumerate(sample.loss_mask) if mask]


# ---- cutting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [2, 3, 4, 5])
def test_a_cut_takes_the_same_from_every_array(length: int) -> None:
    cut = make().truncated(length).validate(logprobs_required=True)
    assert len(cut.token_ids) == len(cut.loss_mask) == len(cut.logprobs) == len(cut.token_rewards) == length
    assert cut.experts_array().shape == (length - 1, 2, 2)
    assert len(cut.sampling_mask.offsets) == length + 1
    assert len(cut.sampling_mask.ids) == cut.sampling_mask.offsets[-1]
    assert max(span.end for span in cut.weight_versions) <= length if cut.weight_versions else length == 2
    assert cut.end == End(TerminationReason.MAX_TOKENS_REACHED)


def test_a_cut_keeps_a_failure_a_failure() -> None:
    assert make(end=UNKNOWN, reward=None).truncated(4).end is UNKNOWN


def test_a_cut_inside_the_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="prompt alone has 2"):
        make().truncated(1)


def test_a_sample_that_fits_is_not_cut() -> None:
    sample = make()
    assert sample.truncated(6) is sample


# ---- checking --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_ids": np.arange(6)}, "int32"),
        ({"token_ids": np.array([0, 1, -2, 3, 4, 5], dtype=np.int32)}, "-2, expected ids from 0"),
        ({"prompt_length": 9}, "prompt_length is 9 of 6"),
        ({"loss_mask": np.array([0, 0, 1], dtype=np.uint8)}, "loss_mask has 3 values for 6"),
        ({"loss_mask": np.array([0, 1, 1, 1, 0, 1], dtype=np.uint8)}, "1 inside the prompt, at token 1"),
        ({"loss_mask": np.array([0, 0, 2, 1, 0, 1], dtype=np.uint8)}, "0 and 1 only"),
        ({"logprobs": np.zeros(5)}, "logprobs has 5 values for 6"),
        ({"logprobs": np.array([np.nan, np.nan, 0.5, -0.2, np.nan, -0.3])}, "log-probability 0.5"),
        ({"logprobs": np.array([np.nan, np.nan, -0.5, np.nan, np.nan, -0.3])}, "token 3 is trained"),
        ({"logprobs": None}, "no log-probability"),
        ({"token_rewards": np.zeros(7)}, "token_rewards has 7 values"),
        (
            {"weight_versions": (WeightVersionSpan(version="a", start=2, end=9),)},
            r"span \[2, 9\) must lie between 2 and 6",
        ),
        ({"weight_versions": (WeightVersionSpan(version="a", start=2, end=4),) * 2}, "must lie between 4 and 6"),
        ({"routed_experts": b"1234"}, r"5 rows of int32\[2, 2\], got 4 bytes"),
        ({"routed_experts": b"123", "experts_shape": None}, r"5 rows of int32\[\], got 3 bytes"),
        ({"reward": float("nan")}, "missing reward is None"),
        ({"reward": "1"}, "reward is '1'"),
        ({"reward": True}, "reward is True"),
        ({"end": UNKNOWN}, "lost rollout has reward"),
        ({"loss_mask": np.array([0, 0, 1, 1, 0, 1])}, "loss_mask must be uint8 in one dimension"),
        ({"loss_mask": np.zeros((6, 2), dtype=np.uint8)}, "loss_mask must be uint8 in one dimension"),
        ({"trained_elsewhere": np.zeros(6)}, "trained_elsewhere must be uint8 in one dimension"),
        ({"logprobs": np.zeros((6, 1))}, "logprobs must be float64 in one dimension"),
        ({"token_rewards": np.array([0, 0, np.nan, 0, 0, 0])}, "token_rewards holds nan at token 2"),
        ({"token_rewards": np.array([0, 0, 0, 0, -np.inf, 0])}, "token_rewards holds -inf at token 4"),
        ({"weight_versions": (WeightVersionSpan(version="a", start=0, end=6),)}, r"\[0, 6\) must lie between 2"),
        ({"sampling_mask": mask([7, 8, 9, 5], [0, 0, 0, 2, 3, 3])}, "sampling_mask.offsets has 6 values, expected 7"),
        *(
            ({"sampling_mask": mask(kept, offsets)}, f"must rise from 0 to {len(kept)}, got ")
            for kept, offsets in [
                ([7, 8, 9, 5], [1, 1, 1, 2, 3, 3, 4]),
                ([7, 8, 9, 5], [0, 0, 3, 2, 3, 3, 4]),
                ([7], [0, 0, 0, 2, 3, 3, 4]),
                ([7, 8, 9, 5, 6], [0, 0, 0, 2, 3, 3, 4]),
            ]
        ),
        (
            {"sampling_mask": mask([7, 8, 9], [0, 0, 0, 2, 3, 3, 3])},
            "token 5 is trained and has an empty sampling mask",
        ),
    ],
)
def test_validation_names_the_first_contradiction(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSampleError, match=message):
        make(**changes).validate(logprobs_required=True)


# ---- storing ---------------------------------------------------------------------------------------------------------


def test_samples_survive_parquet(tmp_path: Any) -> None:
    pytest.importorskip("pyarrow")
    plain = TrainingSample(
        token_ids=np.array([1], dtype=np.int32), prompt_length=1, loss_mask=np.zeros(1, dtype=np.uint8)
    )
    samples = [
        make(
            metadata={"a": [1, {"b": None}]},
            media=(IMAGE,),
            loss_weight=0.25,
        ),
        plain,
    ]
    assert save_samples(samples, tmp_path / "deep" / "samples.parquet") == 2
    loaded = load_samples(tmp_path / "deep" / "samples.parquet")
    for one, other in zip(samples, loaded, strict=True):
        assert_same(one, other)


def test_a_failed_write_leaves_the_old_file(tmp_path: Any) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "samples.parquet"
    save_samples([make()], path)
    with pytest.raises(TypeError):
        save_samples([make(metadata={"x": object()})], path)
    assert len(load_samples(path)) == 1
    assert [item.name for item in tmp_path.iterdir()] == ["samples.parquet"]


def test_another_parquet_file_is_refused(tmp_path: Any) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    parquet.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    with pytest.raises(ValueError, match="save_samples"):
        load_samples(tmp_path / "other.parquet")


@pytest.mark.parametrize("cut", [None, 0, 4, 100])
def test_a_file_that_is_no_parquet_is_refused_in_one_sentence(tmp_path: Any, cut: int | None) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "samples.parquet"
    save_samples([make()], path)
    path.write_bytes(b"{}\n" * 20 if cut is None else path.read_bytes()[:cut])
    with pytest.raises(ValueError, match=r"is not a complete Parquet file, .* save_samples\(\) wrote$"):
        load_samples(path)


def test_only_samples_are_stored(tmp_path: Any) -> None:
    pytest.importorskip("pyarrow")
    with pytest.raises(TypeError, match=r"samples\[1\] is 1, expected a TrainingSample"):
        save_samples([make(), 1], tmp_path / "samples.parquet")  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"samples\[0\] is \[TrainingSample"):
        save_samples([[make()]], tmp_path / "samples.parquet")  # type: ignore[list-item]
    assert list(tmp_path.iterdir()) == []
