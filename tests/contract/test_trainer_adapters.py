"""The adapters of other trainers, against what their own code checks."""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from provider_support import add, call, completion, tokenizer

from strands_env.core import Environment, WeightVersionSpan
from strands_env.training import (
    InvalidSampleError,
    SampleStatus,
    TrainingSample,
    areal,
    prime_rl,
    skyrl,
    tinker,
    trl,
    verl,
)


def make(**changes: Any) -> TrainingSample:
    fields: dict[str, Any] = {
        "token_ids": np.arange(10, 16, dtype=np.int32),
        "prompt_length": 2,
        "loss_mask": np.array([0, 0, 1, 1, 0, 1], dtype=np.uint8),
        "logprobs": np.array([np.nan, np.nan, -0.1, -0.2, np.nan, -0.3]),
        "weight_versions": (
            WeightVersionSpan(version="3", start=2, end=4),
            WeightVersionSpan(version="4", start=5, end=6),
        ),
        "routed_experts": np.arange(5 * 2 * 2, dtype="<i4").tobytes(),
        "experts_shape": (2, 2),
        "reward": 0.5,
        "rollout_id": "r",
    }
    return TrainingSample(**{**fields, **changes})


FAILED = make(status=SampleStatus.FAILED, reward=None)
SHORT = make(
    token_ids=np.arange(4, dtype=np.int32),
    loss_mask=np.array([0, 0, 1, 0], dtype=np.uint8),
    logprobs=np.array([np.nan, np.nan, -0.4, np.nan]),
    weight_versions=(WeightVersionSpan(version="3", start=2, end=3),),
    routed_experts=None,
)


# ---- TRL -------------------------------------------------------------------------------------------------------------


def test_trl_gets_aligned_rows() -> None:
    output = trl.rollout_output([[make()], [SHORT, make()]])
    assert set(output) >= {"prompt_ids", "completion_ids", "logprobs"}
    assert output["prompt_ids"] == [[10, 11], [10, 11]]
    assert output["completion_ids"][0] == [12, 13, 14, 15]
    assert output["logprobs"][0] == [-0.1, -0.2, 0.0, -0.3]
    assert output["env_mask"][0] == [1, 1, 0, 1]


def test_trl_leaves_a_failed_rollout_out_of_the_statistics() -> None:
    output = trl.rollout_output([[FAILED]])
    assert output["env_mask"] == [[0, 0, 0, 0]]
    assert trl.environment_reward(["x"], strands_reward=output[trl.REWARD_FIELD]) == [None]


def test_trl_runs_all_prompts_in_order() -> None:
    seen = []

    async def run(prompt: str, trainer: str) -> list[TrainingSample]:
        seen.append((prompt, trainer))
        return [make(reward=float(prompt))]

    output = trl.make_rollout_func(run)(["1", "2"], "trainer")
    assert output[trl.REWARD_FIELD] == [1.0, 2.0]
    assert seen == [("1", "trainer"), ("2", "trainer")]


def test_trl_refuses_an_empty_completion() -> None:
    empty = make(
        token_ids=np.arange(2, dtype=np.int32), loss_mask=np.zeros(2, dtype=np.uint8), logprobs=None, reward=None
    )
    with pytest.raises(InvalidSampleError, match="empty completion"):
        trl.rollout_output([[empty]])


# ---- SkyRL -----------------------------------------------------------------------------------------------------------


def check_skyrl(output: dict[str, Any], prompts: int, step_wise: bool = False) -> None:
    """The rules of `validate_generator_output`."""
    rows = len(output["response_ids"])
    assert rows > 0
    assert step_wise or rows == prompts
    for name in ("prompt_token_ids", "loss_masks", "rewards", "rollout_logprobs", "stop_reasons"):
        assert len(output[name]) == rows
    for ids, mask, logprobs, reward in zip(
        output["response_ids"], output["loss_masks"], output["rollout_logprobs"], output["rewards"], strict=True
    ):
        assert len(ids) == len(mask) == len(logprobs)
        assert not isinstance(reward, list) or len(reward) == len(ids)
    assert len({isinstance(reward, list) for reward in output["rewards"]}) == 1
    if step_wise:
        ids, last = output["trajectory_ids"], output["is_last_step"]
        assert len(ids) == len(last) == rows
        assert last[-1]
        for here, after, is_last in zip(ids, ids[1:], last, strict=False):
            assert is_last == (here != after)


def test_skyrl_gets_one_row_a_prompt() -> None:
    output = skyrl.generator_output([[make(), SHORT], [FAILED]])
    check_skyrl(output, 2)
    assert output["stop_reasons"] == ["stop", "error"]
    assert output["loss_masks"][1] == [0, 0, 0, 0]
    assert output["rewards"] == [0.5, 0.0]


def test_skyrl_steps_of_a_rollout_stay_together() -> None:
    output = skyrl.generator_output([[make(), SHORT], [SHORT]], trajectory_ids=["a", "b"], step_wise=True)
    check_skyrl(output, 2, step_wise=True)
    assert output["is_last_step"] == [False, True, True]


def test_skyrl_token_rewards_add_up() -> None:
    scored = make(token_rewards=np.array([0, 0, 0, 0.25, 0, 0]))
    output = skyrl.generator_output([[scored], [FAILED]], token_rewards=True)
    check_skyrl(output, 2)
    assert output["rewards"][0] == [0.0, 0.25, 0.0, 0.5]


def test_skyrl_experts_are_per_token() -> None:
    output = skyrl.generator_output([[make()]], routed_experts=True)
    assert np.array(output["rollout_expert_indices"][0]).shape == (5, 2, 2)


def test_skyrl_options_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="trajectory_ids"):
        skyrl.generator_output([[make()]], step_wise=True)


# ---- verl ------------------------------------------------------------------------------------------------------------


def test_verl_cuts_everything_together() -> None:
    output = verl.agent_loop_output([make()], prompt_length=1, response_length=3)
    assert output["prompt_ids"] == [11]
    assert output["response_ids"] == [12, 13, 14]
    assert output["response_mask"] == [1, 1, 0]
    assert output["response_logprobs"] == [-0.1, -0.2, 0.0]
    assert output["routed_experts"].shape == (3, 2, 2)
    assert output["routed_experts"][0].tolist() == [[4, 5], [6, 7]]
    assert output["extra_fields"] == {"status": "truncated", "min_global_steps": 3, "max_global_steps": 3}


def test_verl_does_not_train_a_failure() -> None:
    output = verl.agent_loop_output([FAILED], prompt_length=8, response_length=8)
    assert output["response_mask"] == [0, 0, 0, 0]
    assert output["reward_score"] == 0.0


@dataclass
class TokenOutput:
    """verl's answer."""

    token_ids: list[int]
    log_probs: list[float] | None = None
    stop_reason: str | None = None
    extra_fields: dict[str, Any] = field(default_factory=dict)


class ServerManager:
    """verl's `server_manager`, from a script."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = list(texts)
        self.requests: list[dict[str, Any]] = []

    async def generate(self, *, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> TokenOutput:
        self.requests.append({"request_id": request_id, "prompt_ids": prompt_ids, **sampling_params})
        ids = list(completion(self.texts.pop(0)).ids)
        return TokenOutput(ids, [-0.5] * len(ids), "completed", {"global_steps": len(self.requests)})


class AddEnv(Environment):
    """Adds."""

    def __init__(self, model_factory: Any) -> None:
        super().__init__(model_factory=model_factory, reward_fn=lambda action, result: 1.0)

    def get_tools(self) -> list[Any]:
        return [add]


def fake_verl(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of `verl.experimental.agent_loop.agent_loop` that the class uses."""

    class AgentLoopBase:
        def __init__(self, *, server_manager: Any) -> None:
            self.server_manager, self.tokenizer = server_manager, tokenizer()
            self.rollout_config = types.SimpleNamespace(prompt_length=64, response_length=256)

    module = types.ModuleType("verl.experimental.agent_loop.agent_loop")
    vars(module).update(AgentLoopBase=AgentLoopBase, AgentLoopOutput=types.SimpleNamespace, AgentLoopMetrics=dict)
    for name in ("verl", "verl.experimental", "verl.experimental.agent_loop"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)


async def test_a_verl_agent_loop_runs_an_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_verl(monkeypatch)
    manager = ServerManager([call(1, 2), "3"])
    loop = verl.make_agent_loop(AddEnv)(server_manager=manager)
    row = {"raw_prompt": [{"role": "user", "content": "1 + 2?"}], "reward_model": {"ground_truth": "3"}}
    output = await loop.run({"temperature": 1.0, "top_p": 1.0}, **row)
    first, second = manager.requests
    assert first["request_id"] == second["request_id"]
    assert (first["temperature"], first["logprobs"]) == (1.0, True)
    whole = [*first["prompt_ids"], *output.response_ids]
    assert whole[: len(second["prompt_ids"])] == second["prompt_ids"]
    assert len(output.response_ids) == len(output.response_mask) == len(output.response_logprobs)
    assert sum(output.response_mask) == sum(len(completion(text).ids) for text in (call(1, 2), "3"))
    assert (output.reward_score, output.extra_fields["max_global_steps"]) == (1.0, 2)
    assert set(output.metrics) == {"generate_sequences", "tool_calls", "compute_score"}


# ---- prime-rl, AReaL, tinker -----------------------------------------------------------------------------------------


def test_prime_rl_fields_cover_the_full_length() -> None:
    row = prime_rl.training_sample(make(), env_name="math", advantage=2.0)
    assert row["mask"] == [False, False, True, True, False, True]
    assert row["logprobs"] == [0.0, 0.0, -0.1, -0.2, 0.0, -0.3]
    assert row["advantages"] == [0.0, 0.0, 2.0, 2.0, 0.0, 2.0]
    assert {len(row[name]) for name in ("token_ids", "mask", "logprobs", "temperatures", "advantages")} == {6}


def test_areal_has_a_version_for_every_sampled_token() -> None:
    pytest.importorskip("torch")
    row = areal.tensor_dict(make())
    assert row["versions"].tolist() == [[-1, -1, 3, 3, -1, 4]]
    assert row["loss_mask"].tolist() == [[0, 0, 1, 1, 0, 1]]
    assert {tuple(row[name].shape) for name in row if name != "rewards"} == {(1, 6)}
    assert row["rewards"].tolist() == [0.5]


def test_areal_refuses_a_trained_token_without_version() -> None:
    pytest.importorskip("torch")
    with pytest.raises(InvalidSampleError, match="token 2 is trained and has no weight version"):
        areal.tensor_dict(make(weight_versions=()))


def test_tinker_inputs_are_shifted_by_one() -> None:
    inputs = tinker.loss_inputs(make(), advantage=2.0)
    assert inputs["target_tokens"].tolist() == [11, 12, 13, 14, 15]
    assert inputs["mask"].tolist() == [0, 1, 1, 0, 1]
    assert inputs["advantages"].tolist() == [0, 2, 2, 0, 2]
    assert inputs["logprobs"].tolist() == pytest.approx([0, -0.1, -0.2, 0, -0.3])


def test_a_tinker_datum_is_made_of_the_real_types() -> None:
    pytest.importorskip("tinker")
    datum = tinker.datum(make(), advantage=1.0)
    assert datum.model_input.to_ints() == [10, 11, 12, 13, 14]
    assert datum.loss_fn_inputs["target_tokens"].data == [11, 12, 13, 14, 15]
    assert datum.loss_fn_inputs["advantages"].dtype == "float32"


@pytest.mark.parametrize(
    "convert",
    [
        lambda sample: trl.rollout_output([[sample]]),
        lambda sample: skyrl.generator_output([[sample]]),
        lambda sample: verl.agent_loop_output([sample], prompt_length=8, response_length=8),
        lambda sample: prime_rl.training_sample(sample, env_name="x"),
        lambda sample: tinker.loss_inputs(sample, advantage=1.0),
    ],
)
def test_a_trained_token_without_logprob_never_becomes_zero(convert: Any) -> None:
    broken = replace(make(), logprobs=np.array([np.nan, np.nan, -0.1, np.nan, np.nan, -0.3]))
    with pytest.raises(InvalidSampleError, match="token 3"):
        convert(broken)
