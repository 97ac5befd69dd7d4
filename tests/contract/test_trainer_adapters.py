"""The adapters of other trainers, against what their own code checks."""

from __future__ import annotations

import copy
import sys
import types
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from provider_support import add, call, completion, tokenizer
from provider_support import tokenizer as vocabulary

from strands_env.core import End, Environment, TerminationReason, WeightVersionSpan
from strands_env.core.termination import UNKNOWN
from strands_env.training import (
    InvalidSampleError,
    TrainingSample,
    areal,
    prime_rl,
    skyrl,
    tinker,
    trl,
    verifiers,
    verl,
)
from strands_env.training.export import TrainerVersionError, written_for
from strands_sglang.trajectory.media import PlacedMedium

IMAGE = PlacedMedium(data="data:image/png;base64,AA==", digest="d", processor="p", grid=(1, 2, 2), offset=1, length=1)


def make(reward: float | None = 0.5, **changes: Any) -> TrainingSample:
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
        "reward": reward,
        "rollout_id": "r",
    }
    return TrainingSample(**{**fields, **changes})


@dataclass(frozen=True)
class TrajectoryID:
    """SkyRL's."""

    instance_id: str
    repetition_id: int


FAILED = make(end=UNKNOWN, reward=None)
SHORT = make(
    token_ids=np.arange(4, dtype=np.int32),
    loss_mask=np.array([0, 0, 1, 0], dtype=np.uint8),
    logprobs=np.array([np.nan, np.nan, -0.4, np.nan]),
    weight_versions=(WeightVersionSpan(version="3", start=2, end=3),),
    routed_experts=None,
)


# ---- TRL -------------------------------------------------------------------------------------------------------------


def test_trl_gets_aligned_rows_and_leaves_failures_out_of_the_statistics() -> None:
    output = trl.rollout_output([[make()], [SHORT, make()], [FAILED]])
    assert output["prompt_ids"] == [[10, 11]] * 3
    assert output["completion_ids"] == [[12, 13, 14, 15]] * 3
    assert output["logprobs"][0] == [-0.1, -0.2, 0.0, -0.3]
    assert output["env_mask"] == [[1, 1, 0, 1]] * 2 + [[0, 0, 0, 0]]
    assert trl.environment_reward([0] * 3, strands_reward=output[trl.REWARD_FIELD]) == [0.5, 0.5, None]


EMPTY = make(
    token_ids=np.arange(2, dtype=np.int32),
    loss_mask=np.zeros(2, dtype=np.uint8),
    logprobs=None,
    weight_versions=(),
    routed_experts=None,
    reward=None,
)


SILENT = make(
    token_ids=np.zeros(0, dtype=np.int32),
    prompt_length=0,
    loss_mask=np.zeros(0, dtype=np.uint8),
    logprobs=None,
    weight_versions=(),
    routed_experts=None,
    sampling_mask=None,
    reward=0.0,
    end=End(TerminationReason.MAX_TOKENS_REACHED),
)
"""A time-out before the first token: nothing to train, and a reward of 0 that is part of the baseline."""


def test_a_rollout_that_came_to_no_token_in_time_counts_in_its_group() -> None:
    output = trl.rollout_output([[make()], [SILENT], [FAILED]])
    assert (output[trl.REWARD_FIELD], output["env_mask"][1]) == ([0.5, 0.0, None], [0])
    rows = skyrl.generator_output([[make()], [SILENT], [FAILED]], group_ids=["a"] * 3)
    assert (rows["rewards"], rows["loss_masks"][1]) == ([0.5, 0.0, 0.25], [0])


@pytest.mark.parametrize("samples", [[], [EMPTY]])
def test_trl_gets_a_row_without_loss_for_a_rollout_without_tokens(samples: list[TrainingSample]) -> None:
    output = trl.rollout_output([samples])
    assert [len(row[0]) for row in (output["prompt_ids"], output["completion_ids"], output["logprobs"])] == [1, 1, 1]
    assert (output["env_mask"], output[trl.REWARD_FIELD]) == ([[0]], [None])


def test_one_trl_rollout_that_raises_is_run_again_and_then_left_out() -> None:
    seen = []

    async def run(prompt: str, trainer: Any) -> list[TrainingSample]:
        assert trainer == "trainer"
        seen.append(prompt)
        if prompt == "bad" or (prompt == "late" and seen.count("late") < 2):
            raise ConnectionError("engine died")
        return [make(reward=float(len(prompt)), token_ids=np.arange(6, dtype=np.int32))]

    output = trl.make_rollout_func(run, retries=1)(["good!", "bad", "late"], "trainer")
    assert output[trl.REWARD_FIELD] == [5.0, None, 4.0]
    assert output["env_mask"][1] == [0]
    assert sorted(seen) == ["bad", "bad", "good!", "late", "late"]


def test_a_trl_batch_in_which_all_rollouts_raise_is_an_error() -> None:
    async def run(prompt: str, trainer: Any) -> list[TrainingSample]:
        raise TypeError("wrong configuration")

    with pytest.raises(ExceptionGroup, match="all 2 rollouts"):
        trl.make_rollout_func(run, retries=0)(["1", "2"], None)


# ---- SkyRL -----------------------------------------------------------------------------------------------------------


def test_skyrl_gets_one_row_a_prompt() -> None:
    output = skyrl.generator_output([[make(), SHORT], [FAILED]])
    assert output["stop_reasons"] == ["stop", "error"]
    assert output["loss_masks"][1] == [0, 0, 0, 0]
    assert output["rewards"] == [0.5, 0.5]


def test_skyrl_failures_get_the_mean_of_their_group() -> None:
    ids = [TrajectoryID("a", 0), TrajectoryID("a", 1), TrajectoryID("a", 2), TrajectoryID("b", 0), TrajectoryID("c", 0)]
    rollouts = [[make(reward=1.0)], [make(reward=0.0)], [FAILED], [make(reward=3.0)], []]
    output = skyrl.generator_output(rollouts, trajectory_ids=ids)
    assert output["rewards"] == [1.0, 0.0, 0.5, 3.0, 0.0]
    assert [sum(mask) for mask in output["loss_masks"]] == [3, 3, 0, 3, 0]
    assert skyrl.generator_output(rollouts, group_ids="xxxxx")["rewards"][2] == 4 / 3


def test_skyrl_refuses_a_rollout_whose_group_nothing_says() -> None:
    rollouts = [[make(reward=1.0, group_id="a")], [make(reward=1.0, group_id="a")], []]
    with pytest.raises(ValueError, match=r"rollouts \[2\] have no sample .* give group_ids or trajectory_ids"):
        skyrl.generator_output(rollouts)
    assert skyrl.generator_output(rollouts, group_ids="aaa")["rewards"] == [1.0, 1.0, 1.0]
    full = [*rollouts[:2], [replace(FAILED, group_id="a")]]
    assert skyrl.generator_output(full)["rewards"] == [1.0, 1.0, 1.0]
    with pytest.raises(ValueError, match="step_wise needs trajectory_ids"):
        skyrl.generator_output([[make()]], step_wise=True)


def test_skyrl_token_rewards_add_up_and_those_of_a_failure_sum_to_the_mean_of_its_group() -> None:
    scored = make(token_rewards=np.array([0, 0, 0, 0.25, 0, 0]))
    output = skyrl.generator_output([[scored], [FAILED], []], token_rewards=True)
    assert output["rewards"] == [[0.0, 0.25, 0.0, 0.5], [0.0, 0.0, 0.0, 0.75], [0.75]]


def test_skyrl_steps_of_a_failure_count_with_the_mean_of_its_group() -> None:
    ids = [TrajectoryID("a", 0), TrajectoryID("a", 1), TrajectoryID("a", 2)]
    output = skyrl.generator_output([[make(), SHORT], [FAILED, FAILED], []], trajectory_ids=ids, step_wise=True)
    assert output["rewards"] == [0.5] * 5
    assert output["is_last_step"] == [False, True, False, True, True]


def test_skyrl_does_not_train_a_rollout_whose_experts_are_missing() -> None:
    output = skyrl.generator_output([[make()], [replace(make(reward=9.0), routed_experts=None)]], routed_experts=True)
    assert np.array(output["rollout_expert_indices"]).shape == (2, 5, 2, 2)
    assert (output["loss_masks"][1], output["rewards"]) == ([0, 0, 0, 0], [0.5, 0.5])
    with pytest.raises(InvalidSampleError, match="no rollout of the batch"):
        skyrl.generator_output([[SHORT]], routed_experts=True)


# ---- verl ------------------------------------------------------------------------------------------------------------


def test_verl_cuts_everything_together(caplog: pytest.LogCaptureFixture) -> None:
    output = verl.agent_loop_output([make()], prompt_length=1, response_length=3)
    assert "raise rollout.prompt_length" in caplog.text
    assert output["prompt_ids"] == [11]
    assert output["response_ids"] == [12, 13, 14]
    assert output["response_mask"] == [1, 1, 0]
    assert output["response_logprobs"] == [-0.1, -0.2, 0.0]
    assert output["routed_experts"].shape == (3, 2, 2)
    assert output["routed_experts"][0].tolist() == [[4, 5], [6, 7]]
    assert output["extra_fields"] == {"status": "truncated", "min_global_steps": 3, "max_global_steps": 3}


@pytest.mark.parametrize(("samples", "length"), [([FAILED], 4), ([], 1)], ids=["failed", "without tokens"])
def test_verl_gets_a_row_without_loss(samples: list[TrainingSample], length: int) -> None:
    output = verl.agent_loop_output(samples, prompt_length=8, response_length=8, experts_shape=(2, 2))
    assert [len(output[name]) for name in ("response_ids", "response_logprobs")] == [length, length]
    assert (output["response_mask"], output["reward_score"]) == ([0] * length, 0.0)
    assert output["extra_fields"]["status"] == "failed"
    assert output["routed_experts"].shape == (len(output["prompt_ids"]) + length - 1, 2, 2)


@dataclass
class TokenOutput:
    """verl's answer."""

    token_ids: list[int]
    log_probs: list[float] | None = None
    routed_experts: Any = None
    stop_reason: str | None = None
    extra_fields: dict[str, Any] = field(default_factory=dict)


class ServerManager:
    """verl's `server_manager`, from a script of texts, answers and errors."""

    def __init__(self, script: list[Any], **answers: Any) -> None:
        self.script = list(script)
        self.answers = answers
        self.requests: list[dict[str, Any]] = []

    async def generate(self, *, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> TokenOutput:
        self.requests.append({"request_id": request_id, "prompt_ids": prompt_ids, **sampling_params})
        entry = self.script.pop(0)
        if isinstance(entry, Exception):
            raise entry
        if isinstance(entry, TokenOutput):
            return entry
        ids = list(completion(entry).ids)
        steps = {"extra_fields": {"global_steps": len(self.requests)}}
        return TokenOutput(ids, [-0.5] * len(ids), **{"stop_reason": "completed", **steps, **self.answers})


class AddEnv(Environment):
    """Adds."""

    def __init__(self, model_factory: Any) -> None:
        super().__init__(model_factory=model_factory, reward_fn=lambda action, result: 1.0)

    def get_tools(self) -> list[Any]:
        return [add]


ROW = {"raw_prompt": [{"role": "user", "content": "1 + 2?"}], "reward_model": {"ground_truth": "3"}}


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strands_env.training.driver.RETRY_PAUSE", 0.0)
    monkeypatch.setattr("strands_env.training.verl._experts_shape", lambda path: None)


async def rollout(
    manager: ServerManager,
    make_environment: Any = AddEnv,
    *,
    row: Any = ROW,
    tokenizer: Any = None,
    response_length: int = 256,
    sampling_params: Any = None,
    routed_experts: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """A rollout in verl's agent loop, as far as it is used."""
    limits = {"prompt_length": 64, "response_length": response_length}
    loop = types.SimpleNamespace(
        server_manager=manager,
        tokenizer=tokenizer or vocabulary(),
        rollout_config=types.SimpleNamespace(enable_rollout_routing_replay=routed_experts, **limits),
        config=types.SimpleNamespace(
            actor_rollout_ref=types.SimpleNamespace(model=types.SimpleNamespace(path="dense"))
        ),
    )
    return await verl.run_rollout(loop, make_environment, sampling_params or {}, row, **options)


@pytest.mark.parametrize("script", [[ConnectionError("died")] * 2, [call(1, 2), ConnectionError("died")] * 2])
async def test_a_verl_rollout_whose_engine_fails_is_a_row_without_loss(script: list[Any]) -> None:
    manager = ServerManager(script)
    output = await rollout(manager, retries=1)
    assert sum(output["response_mask"]) == 0
    assert len(output["response_ids"]) == len(output["response_mask"]) == len(output["response_logprobs"]) > 0
    assert output["extra_fields"]["status"] == "failed"
    assert manager.script == []


async def test_a_verl_rollout_whose_engine_fails_once_is_run_again() -> None:
    manager = ServerManager([call(1, 2), ConnectionError("died"), call(1, 2), "3"])
    output = await rollout(manager)
    assert (output["extra_fields"]["status"], output["reward_score"]) == ("completed", 1.0)
    assert sum(output["response_mask"]) == sum(len(completion(text).ids) for text in (call(1, 2), "3"))
    assert len({request["request_id"] for request in manager.requests}) == 2


@pytest.mark.parametrize("reason", ["stop", "completed", None])
async def test_a_verl_reply_may_end_with_another_token_than_the_tokenizer_says(reason: str | None) -> None:
    other = copy.deepcopy(tokenizer())
    other.eos_token = "<|endoftext|>"
    assert other.eos_token_id != tokenizer().eos_token_id
    manager = ServerManager([call(1, 2), "3"], stop_reason=reason)
    output = await rollout(manager, tokenizer=other)
    assert (len(manager.requests), output["extra_fields"]["status"]) == (2, "completed")


@pytest.mark.parametrize("reason", ["length", "completed"])
async def test_a_verl_reply_that_was_cut_is_truncated(reason: str) -> None:
    ids = list(completion("one two three", stop=False).ids)
    manager = ServerManager([TokenOutput(ids, [-0.5] * len(ids), stop_reason=reason)])
    output = await rollout(manager)
    assert output["extra_fields"]["status"] == "truncated"
    assert output["response_mask"] == [1] * len(ids)


async def test_a_verl_reply_that_was_aborted_goes_on() -> None:
    ids = list(completion("3").ids)
    part = TokenOutput(ids[:1], [-0.5], stop_reason="aborted", extra_fields={"global_steps": 4})
    rest = TokenOutput(ids[1:], [-0.5] * (len(ids) - 1), stop_reason="stop", extra_fields={"global_steps": 5})
    output = await rollout(ServerManager([part, rest]))
    assert (output["response_ids"], output["extra_fields"]["status"]) == (ids, "completed")
    assert output["extra_fields"] == {"status": "completed", "min_global_steps": 4, "max_global_steps": 5}


async def test_verl_is_told_the_session_the_parameters_and_what_is_left_of_the_response() -> None:
    manager = ServerManager([call(1, 2), "3"])
    output = await rollout(manager, response_length=60, sampling_params={"temperature": 0.5})
    first, second = manager.requests
    assert first["max_tokens"] == 60
    assert second["max_tokens"] < 60 - len(completion(call(1, 2)).ids)
    assert first["request_id"] == second["request_id"]
    assert (first["temperature"], first["logprobs"]) == (0.5, True)
    whole = [*first["prompt_ids"], *output["response_ids"]]
    assert whole[: len(second["prompt_ids"])] == second["prompt_ids"]
    assert output["extra_fields"]["max_global_steps"] == 2


async def test_a_verl_response_that_tool_results_fill_is_truncated() -> None:
    used = len(completion(call(1, 2)).ids)
    manager = ServerManager([call(1, 2), "3"])
    output = await rollout(manager, response_length=used + 3)
    assert (len(manager.requests), output["extra_fields"]["status"]) == (1, "truncated")
    assert (len(output["response_ids"]), sum(output["response_mask"])) == (used, used)


async def test_verl_gets_the_experts_of_every_token_but_the_last() -> None:
    experts = np.arange(400 * 4, dtype=np.uint8).reshape(400, 2, 2)
    manager = ServerManager([call(1, 2), "3"], routed_experts=experts)
    output = await rollout(manager, routed_experts=True)
    cut = len(manager.requests[0]["prompt_ids"]) - len(output["prompt_ids"])
    total = len(output["prompt_ids"]) + len(output["response_ids"])
    # One call's rows begin where the call before ended, so all are those of their positions; the prompt was cut.
    assert output["routed_experts"].tolist() == experts[cut : cut + total - 1].tolist()


async def test_a_failed_verl_rollout_has_experts_where_all_must_have_them() -> None:
    failed = [ConnectionError("died")]
    output = await rollout(ServerManager(failed), routed_experts=True, experts_shape=(3, 4), retries=0)
    assert output["routed_experts"].shape == (1, 3, 4)
    with pytest.raises(InvalidSampleError, match="give experts_shape"):
        await rollout(ServerManager(failed), routed_experts=True, retries=0)


async def test_a_verl_prompt_may_be_a_list_of_texts_but_not_of_images() -> None:
    def row(*parts: dict[str, str]) -> dict[str, Any]:
        return {"raw_prompt": [{"role": "user", "content": list(parts)}]}

    text = {"type": "text", "text": "1 + 2?"}
    as_text, as_list = ServerManager(["3"]), ServerManager(["3"])
    await rollout(as_text)
    await rollout(as_list, row=row(text))
    assert as_list.requests[0]["prompt_ids"] == as_text.requests[0]["prompt_ids"]
    with pytest.raises(ValueError, match="expected text or an image"):
        await rollout(ServerManager([]), row=row({"type": "image"}, text))


# ---- verifiers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_verifiers_nodes_train_every_token_in_whatever_order_the_paths_come(order: tuple[int, int]) -> None:
    one = make()
    other = make(
        token_ids=np.array([10, 11, 12, 13, 24, 25], dtype=np.int32),
        loss_mask=np.array([0, 0, 0, 0, 0, 1], dtype=np.uint8),
        trained_elsewhere=np.array([0, 0, 1, 1, 0, 0], dtype=np.uint8),
        logprobs=np.array([np.nan] * 5 + [-0.3]),
    )
    nodes = verifiers.message_nodes([(one, other)[place] for place in order], advantage=2.0)
    assert [(node["mask"], node["logprobs"], node["advantages"]) for node in nodes[:2]] == [
        ([False, False], [], None),
        ([True, True], [-0.1, -0.2], [2.0, 2.0]),
    ]
    assert sum(sum(node["mask"]) for node in nodes) == 4


def test_a_verifiers_node_of_which_two_paths_train_parts_has_both_parts() -> None:
    parts = [
        make(
            loss_mask=np.array([0, 0, *mine, 0, 0], dtype=np.uint8),
            trained_elsewhere=np.array([0, 0, *others, 0, 0], dtype=np.uint8),
        )
        for mine, others in (((0, 1), (1, 0)), ((1, 0), (0, 1)))
    ]
    nodes = verifiers.message_nodes(parts)
    assert [(node["mask"], node["logprobs"]) for node in nodes if node["sampled"]] == [([True, True], [-0.1, -0.2])]


# ---- prime-rl, AReaL, tinker -----------------------------------------------------------------------------------------


def test_prime_rl_fields_cover_the_full_length() -> None:
    row = prime_rl.training_sample(without_experts(make()), env_name="math", temperature=1.0, advantage=2.0)
    assert row["mask"] == [False, False, True, True, False, True]
    assert row["logprobs"] == [0.0, 0.0, -0.1, -0.2, 0.0, -0.3]
    assert row["advantages"] == [0.0, 0.0, 2.0, 2.0, 0.0, 2.0]
    assert {len(row[name]) for name in ("token_ids", "mask", "logprobs", "temperatures", "advantages")} == {6}


def test_prime_rl_refuses_routed_experts() -> None:
    with pytest.raises(InvalidSampleError, match="routed experts"):
        prime_rl.training_sample(make(), env_name="math", temperature=1.0)


def test_areal_has_a_version_for_every_sampled_token() -> None:
    pytest.importorskip("torch")
    row = areal.tensor_dict(make())
    assert row["versions"].tolist() == [[-1, -1, 3, 3, -1, 4]]
    assert row["loss_mask"].tolist() == [[0, 0, 1, 1, 0, 1]]
    assert {tuple(row[name].shape) for name in row if name != "rewards"} == {(1, 6)}
    assert row["rewards"].tolist() == [0.5]
    assert areal.tensor_dict(FAILED) is None
    with pytest.raises(InvalidSampleError, match="token 2 is trained and has no weight version"):
        areal.tensor_dict(make(weight_versions=()))
    named = replace(make(), weight_versions=(WeightVersionSpan(version="default", start=2, end=6),))
    with pytest.raises(InvalidSampleError, match=r"versions are numbers.*'default'.*version_of="):
        areal.tensor_dict(named)
    assert areal.tensor_dict(named, version_of=lambda version: 0) is not None
    with pytest.raises(InvalidSampleError, match=r"int32, and a weight version is 1700000000000: give version_of="):
        areal.tensor_dict(named, version_of=lambda version: 1700000000000)


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


# ---- a teacher -------------------------------------------------------------------------------------------------------

TAUGHT = make(
    teacher_logprobs=np.array([np.nan, np.nan, -1.0, -2.0, -3.0, -4.0]),
    teacher_top_ids=np.array([[-1, -1], [-1, -1], [12, 7], [8, 13], [14, 1], [15, 2]], dtype=np.int32),
    teacher_top_logprobs=np.array(
        [[np.nan, np.nan], [np.nan, np.nan], [-1.0, -3.0], [-0.5, -2.0], [-3.0, -3.5], [-4.0, -4.5]], dtype=np.float32
    ),
)


def test_tinker_takes_the_reverse_kl_off_the_advantages_of_trained_tokens() -> None:
    inputs = tinker.loss_inputs(TAUGHT, advantage=2.0, kl_penalty_coef=0.5)
    # 2 - 0.5 * (sampled - teacher), as incorporate_kl_penalty of tinker-cookbook 0.6.1
    assert inputs["advantages"].tolist() == pytest.approx([0, 2 - 0.45, 2 - 0.9, 0, 2 - 1.85])
    plain = tinker.loss_inputs(TAUGHT, advantage=2.0)
    assert plain["advantages"].tolist() == [0, 2, 2, 0, 2]
    with pytest.raises(InvalidSampleError, match="no log-probabilities of the teacher: score it with"):
        tinker.loss_inputs(make(), advantage=2.0, kl_penalty_coef=0.5)


def test_tinkers_soft_targets_are_the_teachers_distribution_on_trained_tokens() -> None:
    targets = tinker.soft_targets(TAUGHT, 2)
    assert targets["target_tokens"].tolist() == [[0, 0], [12, 7], [8, 13], [14, 1], [15, 2]]
    assert targets["weights"].sum(axis=1).tolist() == pytest.approx([0, 1, 1, 0, 1])
    assert targets["weights"][1, 0] / targets["weights"][1, 1] == pytest.approx(np.exp(2.0))
    with pytest.raises(InvalidSampleError, match="not scored with top_k=1"):
        tinker.soft_targets(replace(TAUGHT, teacher_top_ids=None), 1)


def test_prime_rl_and_verifiers_get_reference_logprobs() -> None:
    row = prime_rl.training_sample(without_experts(TAUGHT), env_name="math", temperature=1.0)
    assert row["ref_logprobs"] == [0.0, 0.0, -1.0, -2.0, -3.0, -4.0]
    assert prime_rl.training_sample(without_experts(make()), env_name="math", temperature=1.0)["ref_logprobs"] is None
    nodes = verifiers.message_nodes([TAUGHT])
    assert [node["reference_logprobs"] for node in nodes] == [None, [-1.0, -2.0], None, [-4.0]]


# ---- other versions of a trainer -------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ImportError, AttributeError, TypeError, ValueError, KeyError])
def test_a_trainer_whose_interface_changed_is_named_with_both_versions(error: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("strands_env.training.export.metadata.version", lambda package: "9.9")
    with (
        pytest.raises(TrainerVersionError, match=r"tinker 9\.9 does not take .*gone.* written for tinker 0\.38\.0"),
        written_for("tinker"),
    ):
        raise error("gone")
    monkeypatch.setattr("strands_env.training.export.metadata.version", lambda package: "0.38.0")
    with pytest.raises(error, match="gone"), written_for("tinker"):
        raise error("gone")


def test_a_trainer_that_is_not_installed_is_named_with_the_version_to_install() -> None:
    wanted = r"needs the package prime-rl: pip install prime-rl==559b44772"
    with pytest.raises(ImportError, match=wanted), written_for("prime-rl"):
        raise ImportError("no module")


def test_a_field_that_a_loaded_trainer_lacks_is_named(monkeypatch: Any) -> None:
    module = types.ModuleType("prime_rl.transports.rollouts.types")

    class Sample:
        __struct_fields__ = ("token_ids", "mask", "logprobs", "temperatures", "env_name")

    module.TrainingSample = Sample  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(TrainerVersionError, match=r"no \['advantages', 'ref_logprobs'\] in TrainingSample.*559b44772"):
        prime_rl.training_sample(without_experts(make()), env_name="math", temperature=1.0)


def without_experts(sample: TrainingSample) -> TrainingSample:
    return replace(sample, routed_experts=None, experts_shape=None)


EVERY_ADAPTER = pytest.mark.parametrize(
    "convert",
    [
        lambda sample: trl.rollout_output([[sample]]),
        lambda sample: skyrl.generator_output([[sample]]),
        lambda sample: verl.agent_loop_output([sample], prompt_length=8, response_length=8),
        lambda sample: prime_rl.training_sample(without_experts(sample), env_name="x", temperature=1.0),
        lambda sample: tinker.loss_inputs(sample, advantage=1.0),
        areal.tensor_dict,
        lambda sample: verifiers.message_nodes([sample]),
    ],
)


@EVERY_ADAPTER
def test_a_trained_token_without_logprob_never_becomes_zero(convert: Any) -> None:
    pytest.importorskip("torch")
    broken = replace(make(), logprobs=np.array([np.nan, np.nan, -0.1, np.nan, np.nan, -0.3]))
    with pytest.raises(InvalidSampleError, match="token 3"):
        convert(broken)


@EVERY_ADAPTER
def test_images_never_vanish(convert: Any) -> None:
    pytest.importorskip("torch")
    with pytest.raises(InvalidSampleError, match="2 images, which cannot be given to this trainer"):
        convert(replace(make(), media=(IMAGE,) * 2))


@EVERY_ADAPTER
def test_a_loss_weight_is_given_or_refused(convert: Any) -> None:
    pytest.importorskip("torch")
    weighed = replace(make(), loss_weight=0.25)
    try:
        converted = convert(weighed)
    except InvalidSampleError as error:
        assert "loss weight 0.25, which cannot be given to this trainer" in str(error)
    else:
        assert str(converted) != str(convert(make()))


def test_weights_of_prime_rl_and_of_tinkers_soft_targets() -> None:
    taught = replace(TAUGHT, loss_weight=0.25)
    row = prime_rl.training_sample(without_experts(taught), env_name="math", temperature=1.0)
    assert row["rl_weights"] == [0.25 * trained for trained in row["mask"]]
    totals = tinker.soft_targets(taught, 2)["weights"].sum(axis=1).tolist()
    assert totals == pytest.approx(row["rl_weights"][1:])


def test_advantages_of_tokens_reach_those_that_are_trained() -> None:
    of_tokens = np.arange(6.0)
    weighed = replace(without_experts(make()), loss_weight=0.5)
    row = prime_rl.training_sample(weighed, env_name="math", temperature=1.0, advantage=of_tokens)
    assert row["advantages"] == [0.0, 0.0, 2.0, 3.0, 0.0, 5.0]
    assert tinker.loss_inputs(weighed, advantage=of_tokens)["advantages"].tolist() == [0.0, 1.0, 1.5, 0.0, 2.5]
    for wrong in (of_tokens[1:], of_tokens[:, None]):
        with pytest.raises(ValueError, match=r"has shape \(.*, expected a number, or one for each of 6 tokens"):
            tinker.loss_inputs(weighed, advantage=wrong)
