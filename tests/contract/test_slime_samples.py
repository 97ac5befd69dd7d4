"""slime's sample after a rollout: masks of single paths, rewards, budgets, top-p data, prompts, the log."""

from __future__ import annotations

import asyncio
import copy
import json
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from provider_support import add, call, completion, tokenizer
from slime_support import AddEnv, Rig, Sample, TwoPaths, as_slime_flattens, check, good_replies, rig, with_top_p
from strands import Agent, tool
from strands.agent import AgentResult
from strands.telemetry import EventLoopMetrics
from strands.types.tools import ToolContext

from strands_env.core import RewardResult
from strands_env.training import slime
from strands_env.training.slime.hooks import rollout_metrics
from strands_sglang.testing import Reply

__all__ = ["rig"]

EMPTY = types.SimpleNamespace()

# ---- one path --------------------------------------------------------------------------------------------------------


class Fork(AddEnv):
    """Two second turns after one first reply: two paths that share sampled tokens."""

    async def interact(self, agent: Agent, action: Any) -> Any:
        await self.invoke(agent, action.prompt)
        kept = copy.deepcopy(agent.messages)
        await self.invoke(agent, "A?")
        agent.messages[:] = kept
        return await self.invoke(agent, "B?")


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        ({}, {}),
        ({"evaluation": True, "sample": Sample(session_id=None)}, {"strands_env_fanout": True}),
        ({}, {"partial_rollout": True}),
        ({}, {"group_rm": True}),
    ],
    ids=["no fan-out", "evaluation", "partial rollout", "group rewards"],
)
async def test_one_path_trains_every_token_sampled_on_it(rig, options, changes):
    rig.environment = Fork
    for name, value in changes.items():
        setattr(rig.args, name, value)
    rig.serve(*map(completion, ("one", "two", "three")))
    sample = await rig.run(**options)
    check(sample)
    assert "three" in sample.response
    assert sum(sample.loss_mask) == len(completion("one").ids) + len(completion("three").ids)


@pytest.mark.parametrize("first", range(4), ids=["one path", "two paths", "failed", "no room"])
async def test_slime_can_flatten_a_batch_with_fan_out(rig: Rig, first: int) -> None:
    rig.args.strands_env_fanout = True
    rig.serve(completion("one"))
    results = [await rig.run(Sample(index=0))]
    rig.environment = TwoPaths
    rig.serve(completion("one"), completion("two"))
    results.append(await rig.run(Sample(index=1)))
    rig.serve(ConnectionError("gone"))
    results.append(await rig.run(Sample(index=2)))
    results.append(await rig.run(Sample(index=3), params={"max_new_tokens": 0}))
    results.insert(0, results.pop(first))
    samples = as_slime_flattens([results])
    assert sorted(sample.rollout_id for sample in samples) == [0, 1, 1, 2, 3]
    for sample in samples:
        check(sample)


class Asking(AddEnv):
    """A tool asks the agent's model; nothing it answers is trained."""

    def get_tools(self) -> list[Any]:
        @tool(context="tool_context")
        async def ask(tool_context: ToolContext) -> str:
            """Ask a model."""
            return str(await Agent(model=tool_context.agent.model, callback_handler=None).invoke_async("what?"))

        return [ask]


async def test_slime_is_given_agents_alone_each_with_its_role(rig: Rig) -> None:
    rig.args.strands_env_fanout, rig.environment = True, Asking
    rig.serve(*map(completion, ('<tool_call>{"name": "ask", "arguments": {}}</tool_call>', "read", "done")))
    (sample,) = await rig.run(Sample(index=0))
    check(sample)
    notes = sample.metadata["strands_env"]
    assert (notes["agent_name"], notes["role"], notes["parent"]) == ("agent", "main", None)
    assert rollout_metrics(rig.args, [sample])["untrained_tokens"] == len(completion("read").ids)


class Untrained(AddEnv):
    def is_trained(self, trajectory: Any) -> bool:
        return False


@pytest.mark.parametrize("fanout", [True, False])
async def test_a_rollout_of_which_no_path_is_trained_is_not_lost(rig: Rig, fanout: bool) -> None:
    rig.args.strands_env_fanout, rig.environment = fanout, Untrained
    rig.serve(completion("4"))
    result = await rig.run(Sample(index=0, label="4"))
    sample = result[0] if fanout else result
    check(sample)
    assert (sample.status, sample.reward, sample.remove_sample) == (Sample.Status.COMPLETED, 1.0, False)
    assert sum(sample.loss_mask) == 0


async def test_without_fan_out_lost_paths_are_said_once(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    sys.modules["strands_env.training.slime.settings"].warn_once.cache_clear()
    rig.environment = TwoPaths
    rig.serve(*map(completion, ("one", "two", "three", "four")))
    samples = [await rig.run(Sample(index=index)) for index in range(2)]
    assert [isinstance(sample, Sample) for sample in samples] == [True, True]
    sampled = sum(len(completion(text).ids) for text in ("one", "two", "three", "four"))
    trained = sum(sum(sample.loss_mask) for sample in samples)
    metrics = rollout_metrics(rig.args, samples)
    assert 0 < metrics["untrained/other_paths"] == pytest.approx(1 - trained / sampled)
    assert metrics["untrained/off_policy"] == 0.0
    assert sum("strands_env_fanout" in record.message for record in caplog.records) == 1


# ---- rewards ---------------------------------------------------------------------------------------------------------

SCORED: list[Any] = []


def exact(action: Any, result: Any) -> float:
    SCORED.append(result.observation.final_response)
    return float(result.observation.final_response == action.task_context.ground_truth)


def abstains(action: Any, result: Any) -> RewardResult:
    return RewardResult(reward=None)


async def test_reward_func_scores_the_final_answer_alone(rig: Rig) -> None:
    rig.options = {}
    rig.args.strands_env_reward = f"{__name__}.exact"
    rig.serve(*good_replies())
    sample = await rig.run()
    assert sample.reward is None
    assert "tool_response" in sample.response
    assert await slime.reward_func(rig.args, sample) == 1.0


async def test_reward_func_scores_a_rollout_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "SCORED", [])
    rig.options, rig.environment = {}, TwoPaths
    rig.args.strands_env_fanout = True
    rig.args.strands_env_reward = f"{__name__}.exact"
    rig.args.strands_env_proof_seconds = 0
    rig.serve(completion("4"), completion("3"))
    samples = await rig.run()
    assert await slime.reward_func(rig.args, samples) == [1.0, 1.0]
    assert SCORED == ["3"]


def only_three(action: Any, result: Any) -> Any:
    """Exact, but it cannot score the label 4 and pays anything for the label 5."""
    label, answer = action.task_context.ground_truth, result.observation.final_response
    return {"4": None, "5": 1.0}.get(label, float(answer == label))


def given_data(rig: Rig, folder: Path, labels: Sequence[str]) -> list[dict[str, Any]]:
    rows = [{"prompt": [{"role": "user", "content": "What is 1 + 2?"}], "label": label} for label in labels]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    vars(rig.args).update(prompt_data=str(folder / "data.jsonl"), input_key="prompt", label_key="label")
    return rows


@pytest.mark.parametrize("place", ["environment", "reward_func"])
@pytest.mark.parametrize("seconds", [30, 0])
async def test_tasks_that_fail_the_proof_are_named_once_and_trained(
    place: str, seconds: int, rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = given_data(rig, tmp_path, "3457")
    rig.args.strands_env_proof_seconds = seconds
    if place == "environment":
        rig.options = {"reward_fn": only_three}
    else:
        rig.options, rig.args.strands_env_reward = {}, f"{__name__}.only_three"
    rewards, removed = [], []
    for index, row in enumerate([*rows, rows[1]]):
        rig.serve(*good_replies())
        sample = await rig.run(Sample(index=index, group_index=index, **row))
        rewards.append(await slime.reward_func(rig.args, sample))
        removed.append(sample.remove_sample)
        check(sample)
    assert (removed, rewards) == ([False, True, False, False, True], [1.0, 0.0, 1.0, 0.0, 0.0])
    told = [record.getMessage() for record in caplog.records if "proof" in record.getMessage()]
    assert len(told) == (seconds > 0) and (not told or "failed=<2>" in told[0])


async def test_a_reward_too_slow_for_its_proof_holds_up_one_call_only(
    rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[str] = []

    async def slow(action: Any, result: Any) -> float:
        if result.observation.metrics:  # of a rollout, not of a proof
            return 1.0
        tried.append(action.task_context.ground_truth)
        await asyncio.sleep(3600)
        return 0.0

    given_data(rig, tmp_path, "3")
    rig.options, rig.args.strands_env_proof_seconds = {"reward_fn": slow}, 0.05
    for label in ("3", "4"):
        rig.serve(*good_replies())
        assert (await rig.run(Sample(label=label))).reward == 1.0
    assert tried == ["3"]
    assert len([record for record in caplog.records if "nothing is proven" in record.getMessage()]) == 1


async def test_rollouts_share_one_proof(rig: Rig, tmp_path: Path) -> None:
    tried: list[str] = []

    async def exact(action: Any, result: Any) -> float:
        tried.append(result.observation.final_response or "")
        await asyncio.sleep(0)
        return float(result.observation.final_response == action.task_context.ground_truth)

    given_data(rig, tmp_path, "3")
    rig.options = {"reward_fn": exact}
    rig.serve(*(reply for _ in range(5) for reply in good_replies()))
    await rig.run(Sample(index=9), evaluation=True)
    assert "I do not know" not in tried  # an evaluation proves nothing
    await asyncio.gather(*(rig.run(Sample(index=index)) for index in range(4)))
    assert tried.count("I do not know") == 2


async def test_a_run_whose_tasks_all_fail_ends(rig: Rig, tmp_path: Path) -> None:
    given_data(rig, tmp_path, "12345678")
    rig.options = {"reward_fn": lambda a, r: float(a.task_context.ground_truth in (r.observation.final_response or ""))}
    for _ in range(2):
        with pytest.raises(slime.SlimeConfigError, match="all 8 tasks that were tried fail the proof"):
            await rig.run(Sample(label="3"))


async def test_reward_func_keeps_rollouts_of_a_list_apart(rig: Rig) -> None:
    rig.args.strands_env_reward = f"{__name__}.exact"
    samples = [Sample(index=0, response="3"), Sample(index=1, response="4"), Sample(index=2, reward=0.5)]
    assert await slime.reward_func(rig.args, samples) == [1.0, 0.0, 0.5]


async def test_an_abstention_of_reward_func_removes_every_sample_of_the_rollout(rig: Rig) -> None:
    rig.args.strands_env_reward = f"{__name__}.abstains"
    samples = [Sample(index=0), Sample(index=0)]
    assert await slime.reward_func(rig.args, samples) == [0.0, 0.0]
    assert [sample.remove_sample for sample in samples] == [True, True]


def raises(action: Any, result: Any) -> float:
    raise ZeroDivisionError(action.task_context.ground_truth)


async def test_a_reward_func_that_always_fails_ends_the_run_but_no_evaluation(rig: Rig) -> None:
    rig.options = {}
    rig.args.strands_env_reward = f"{__name__}.raises"
    rig.args.strands_env_max_failures = 3
    rig.serve(completion("3"))
    evaluated = await rig.run(evaluation=True)
    for _ in range(4):
        assert await slime.reward_func(rig.args, evaluated) == 0.0
    samples = [Sample(index=index, response="3") for index in range(3)]
    assert await slime.reward_func(rig.args, samples[:2]) == [0.0, 0.0]
    assert [sample.remove_sample for sample in samples] == [True, True, False]
    rig.args.strands_env_reward = f"{__name__}.exact"
    assert await slime.reward_func(rig.args, Sample(index=9, response="3")) == 1.0  # the count begins again
    rig.args.strands_env_reward = f"{__name__}.raises"
    assert await slime.reward_func(rig.args, samples[:2]) == [0.0, 0.0]
    with pytest.raises(slime.FailureStreakError, match=r"3 rollouts in a row failed.*ZeroDivisionError in reward"):
        await slime.reward_func(rig.args, samples[2])


async def test_evaluation_has_its_own_reward_key(rig: Rig) -> None:
    rig.args.reward_key, rig.args.eval_reward_key = "score", "accuracy"
    rig.serve(completion("3"), completion("3"), ConnectionError("gone"))
    both = {"score", "accuracy"}  # slime's metrics read `reward_key` in evaluations, too
    assert (await rig.run(evaluation=True)).reward == dict.fromkeys(both, 1.0)
    assert (await rig.run()).reward == {"score": 1.0}
    assert (await rig.run(evaluation=True)).reward == dict.fromkeys(both, 0.0)
    rig.options = {}
    rig.args.strands_env_reward = f"{__name__}.exact"
    rig.serve(completion("3"))
    assert await slime.reward_func(rig.args, await rig.run(evaluation=True)) == dict.fromkeys(both, 1.0)


async def test_an_end_that_is_not_scored_is_removed(rig: Rig) -> None:
    class CompleteOnly(AddEnv):
        def is_scored(self, reason: Any) -> bool:
            return reason.value == "task_complete"

    rig.environment = CompleteOnly
    rig.serve(completion("on and on", stop=False))
    sample = await rig.run()
    assert (sample.status, sample.remove_sample, sample.reward) == (Sample.Status.TRUNCATED, True, 0.0)


async def test_an_environment_that_samples_nothing_fails_and_sees_the_metadata_without_our_notes(rig: Rig) -> None:
    seen = []

    class Silent(AddEnv):
        async def interact(self, agent: Agent, action: Any) -> Any:
            seen.append(action.task_context.metadata)
            message: Any = {"role": "assistant", "content": [{"text": "3"}]}
            return AgentResult(stop_reason="end_turn", message=message, metrics=EventLoopMetrics(), state=None)

    rig.environment = Silent
    rig.serve()
    sample = await rig.run(Sample(metadata={"mine": 1, "strands_env": {"error": 1}}))
    check(sample)
    assert (sample.status, sample.remove_sample, seen) == (Sample.Status.FAILED, True, [{"mine": 1}])
    assert "sampled no tokens" in sample.metadata["strands_env"]["error"]["message"]


# ---- budgets and limits ----------------------------------------------------------------------------------------------


async def test_each_path_has_a_budget_and_all_together_have_one(rig: Rig) -> None:
    class Asking(AddEnv):
        def get_tools(self) -> list[Any]:
            @tool
            async def ask(text: str) -> str:
                """Ask a helper.

                Args:
                    text: The question.
                """
                helper = Agent(model=self.model_for("helper"), callback_handler=None)
                return str(await helper.invoke_async(text))

            return [ask]

    rig.environment = Asking
    asking = completion('<tool_call>{"name": "ask", "arguments": {"text": "hello"}}</tool_call>')
    client = rig.serve(asking, completion("x " * 20), completion("done"))
    await rig.run(params={"max_new_tokens": 300})
    rooms = [request.fields["sampling_params"]["max_new_tokens"] for request in client.requests]
    assert rooms[:2] == [300, 300]
    assert rooms[2] == 300 - (len(client.prompts[2]) - len(client.prompts[0]))

    client = rig.serve(asking, completion("x " * 20), completion("done"))
    rig.args.strands_env_max_sampled_tokens = 320
    await rig.run(params={"max_new_tokens": 300})
    rooms = [request.fields["sampling_params"]["max_new_tokens"] for request in client.requests]
    assert rooms[1] == min(300, 320 - len(asking.ids))
    assert rooms[2] <= 320 - len(asking.ids) - len(completion("x " * 20).ids)


async def test_a_least_length_shrinks_with_the_budget(rig: Rig) -> None:
    client = rig.serve(*good_replies())
    await rig.run()
    used = len(client.prompts[1]) - len(client.prompts[0])
    client = rig.serve(*good_replies())
    await rig.run(params={"max_new_tokens": used + 2, "min_new_tokens": 5}, evaluation=True)
    last = client.requests[1].fields["sampling_params"]
    assert (last["min_new_tokens"], last["max_new_tokens"]) == (2, 2)


async def test_no_budget_at_all_is_truncated(rig: Rig) -> None:
    client = rig.serve(completion("3"))
    sample = await rig.run(params={"max_new_tokens": 0})
    check(sample)
    assert (sample.status, sample.remove_sample, sum(sample.loss_mask)) == (Sample.Status.TRUNCATED, False, 0)
    assert sample.reward == 1.0  # of the reward function: it counts in its group
    assert client.requests == []


async def test_the_size_of_micro_batches_cuts_no_rollout(rig: Rig) -> None:
    rig.args.rollout_max_context_len, rig.args.context_parallel_size, rig.args.max_tokens_per_gpu = None, 2, 100
    rig.args.use_dynamic_batch_size = True
    rig.serve(completion("3"))
    assert (await rig.run()).status is Sample.Status.COMPLETED


# ---- further data ----------------------------------------------------------------------------------------------------


async def test_top_p_data_that_nobody_asked_for_is_not_looked_at(rig: Rig) -> None:
    rig.serve(with_top_p(completion(call(1, 2))), completion("3"))
    sample = await rig.run()
    assert (sample.status, sample.rollout_top_p_token_ids) == (Sample.Status.COMPLETED, None)


async def test_a_sampling_mask_that_the_options_ask_for_is_asked_of_the_server(rig: Rig) -> None:
    rig.args.strands_env_model_options = {"return_sampling_mask": True}
    made = completion("3")
    client = rig.serve(Reply(ids=made.ids, meta={"output_token_sampling_mask": [[token] for token in made.ids]}))
    assert (await rig.run()).status is Sample.Status.COMPLETED
    assert client.requests[0].fields["return_sampling_mask"] is True


async def test_an_abort_before_the_first_token_has_no_top_p_data(rig: Rig) -> None:
    rig.args.rollout_top_p = 0.9
    nothing = Reply(ids=[], finish="abort", meta={"top_p_token_ids": "", "top_p_token_offsets": ""})
    rig.serve(nothing, with_top_p(completion("3")))
    assert (await rig.run()).status is Sample.Status.COMPLETED


async def test_calls_and_results_of_tools_in_the_data_become_history(rig: Rig) -> None:
    function = {"name": add.tool_name, "arguments": '{"a": 1, "b": 2}'}
    prompt = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "1 + 2?"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": function}]},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "content": "It is 3."},
        {"role": "user", "content": "And again?"},
    ]
    client = rig.serve(completion("3"))
    sample = await rig.run(Sample(prompt=prompt))
    assert sample.status is Sample.Status.COMPLETED
    assert sample.response_length == sum(sample.loss_mask)
    text = tokenizer().decode(client.prompts[0])
    parts = ("Be short.", '"a": 1', "<tool_response>3<", "It is 3.", "And again?")
    assert [part in text for part in parts] == [True] * 5


@pytest.mark.parametrize(
    "prompt",
    [
        [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
        [{"role": "assistant", "content": None}, {"role": "user", "content": "q"}],
        [{"role": "user", "content": "q"}, {"role": "tool", "content": "3"}, {"role": "user", "content": "q"}],
    ],
    ids=["ends with the assistant", "empty message", "result without call"],
)
async def test_a_prompt_that_cannot_be_understood_is_a_failed_sample(rig: Rig, prompt: Any) -> None:
    rig.serve(completion("3"))
    assert (await rig.run(Sample(prompt=prompt))).status is Sample.Status.FAILED


# ---- the log ---------------------------------------------------------------------------------------------------------


def strict_json(line: str) -> Any:
    def refuse(name: str) -> Any:
        raise ValueError(name)

    return json.loads(line, parse_constant=refuse)


def test_a_mean_over_nothing_is_null_in_the_log(tmp_path: Any) -> None:
    args = types.SimpleNamespace(strands_env_log_dir=str(tmp_path))
    slime.log_rollout(1, args, [], {}, None)
    line = strict_json((tmp_path / "rollout.jsonl").read_text())
    assert (line["metrics"]["reward"], line["metrics"]["rollouts"]) == (None, 0)


def test_the_log_counts_conversations_by_rollout(tmp_path: Any) -> None:
    args = types.SimpleNamespace(strands_env_log_dir=str(tmp_path), strands_env_log_messages="2")
    samples = [[Sample(index=0, response="a"), Sample(index=0)], [Sample(index=1, response="b")], [Sample(index=2)]]
    slime.log_rollout(1, args, samples, {}, 1.0)
    line = strict_json((tmp_path / "rollout.jsonl").read_text())
    assert [row["response"] for row in line["samples"]] == ["a", "b"]


@pytest.mark.parametrize(
    "sample",
    [
        Sample(weight_versions=None),  # type: ignore[arg-type]
        Sample(metadata={"strands_env": {"metrics": None}}),
        Sample(metadata={"strands_env": {"metrics": {"tool_calls": None}}}),
        Sample(metadata={"strands_env": "mine"}),
        types.SimpleNamespace(reward=1.0),
    ],
    ids=["no versions", "no metrics", "metric None", "other metadata", "bare sample"],
)
def test_the_log_takes_samples_of_others(tmp_path: Any, sample: Any) -> None:
    args = types.SimpleNamespace(strands_env_log_dir=str(tmp_path))
    assert slime.log_rollout(1, args, [sample], {}, 1.0) is False
    assert slime.log_eval_rollout(1, args, {"aime": {"samples": [sample]}}, {}) is False
    assert len((tmp_path / "rollout.jsonl").read_text().splitlines()) == 1
    assert len((tmp_path / "eval_aime.jsonl").read_text().splitlines()) == 1


def test_a_slash_in_the_name_of_evaluation_data_is_no_folder(tmp_path: Any) -> None:
    args = types.SimpleNamespace(strands_env_log_dir=str(tmp_path))
    slime.log_eval_rollout(1, args, {"math/aime": [Sample()]}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["eval_math_aime.jsonl"]


class WandbRun:
    """The run that slime has opened."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.logged: list[dict[str, Any]] = []
        self.steps: list[tuple[str, str]] = []

    def define_metric(self, name: str, *, step_metric: str) -> None:
        self.steps.append((name, step_metric))

    def log(self, values: dict[str, Any]) -> None:
        if self.error is not None:
            raise self.error
        self.logged.append(values)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Opens a run of W&B, whose calls the test makes itself."""

    def open_run(run: WandbRun) -> WandbRun:
        monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(run=run))
        return run

    return open_run


def test_the_run_of_wandb_that_slime_has_opened_gets_the_step(opened: Any) -> None:
    run = opened(WandbRun())
    slime.log_rollout(7, types.SimpleNamespace(use_wandb=True), [Sample(reward=1.0)], {}, 1.0)
    assert run.logged[0]["strands/step"] == 7
    assert run.logged[0]["strands/rollout/reward"] == 1.0
    assert run.steps == [("strands/*", "strands/step")]


def test_a_lost_network_does_not_end_the_training(opened: Any) -> None:
    opened(WandbRun(OSError("no network")))
    assert slime.log_rollout(7, types.SimpleNamespace(use_wandb=True), [Sample(reward=1.0)], {}, 1.0) is False


async def test_a_sample_that_is_run_again_counts_only_the_last_run(rig: Rig) -> None:
    rig.serve(completion(call(1, 2)), ConnectionError("gone"))
    sample = await rig.run()
    sample.non_generation_time = 5.0
    client = rig.serve(completion("3"))
    again = await rig.run(sample)
    assert again.prefix_cache_info.total_prompt_tokens == len(client.prompts[0])
    assert again.non_generation_time == 0.0
    assert (again.status, again.remove_sample) == (Sample.Status.COMPLETED, False)
