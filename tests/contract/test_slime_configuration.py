"""A wrong configuration of slime's rollouts ends the run instead of failing every rollout for ever."""

from __future__ import annotations

import asyncio
import copy
import types
from typing import Any

import pytest
from provider_support import completion
from slime_support import AddEnv, Rig, Sample, WaitingEnv, rig, waiting_call

from strands_env.core import Environment
from strands_env.training import driver, slime
from strands_sglang.testing import Reply

__all__ = ["rig"]

ADD_ENV = f"{AddEnv.__module__}.{AddEnv.__qualname__}"


class StrictEnv(AddEnv):
    """An environment that refuses some options by value."""

    def __init__(self, *, level: int = 1, **options: Any) -> None:
        if level < 0:
            raise ValueError(f"level must not be negative, got {level}")
        super().__init__(**options)


NOT_CALLABLE = 3


async def async_factory(model_factory: Any) -> Environment:
    return AddEnv(model_factory=model_factory)


def no_environment(model_factory: Any) -> Any:
    return "environment"


def wants_more(model_factory: Any, sandbox: Any) -> Any:
    return AddEnv(model_factory=model_factory)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strands_env_factory": ADD_ENV, "strands_env_options": {"max_tool_itres": 3}}, "max_tool_itres"),
        ({"strands_env_factory": ADD_ENV, "strands_env_options": {"max_tool_iters": -1}}, "-1"),
        ({"strands_env_factory": f"{__name__}.StrictEnv", "strands_env_options": {"level": -1}}, "level must not"),
        ({"strands_env_factory": f"{__name__}.async_factory"}, "plain function"),
        ({"strands_env_factory": f"{__name__}.no_environment"}, "expected an Environment"),
        ({"strands_env_factory": f"{__name__}.wants_more"}, "sandbox"),
        ({"strands_env_factory": f"{__name__}.NOT_CALLABLE"}, "is not a callable object"),
        ({"strands_env_tool_parser": "no_such_parser"}, "no_such_parser"),
        ({"strands_env_model_options": {"no_such_option": 1}}, "no_such_option"),
        ({"strands_env_model_options": {"return_logprob": False}}, "return_logprob"),
        ({"strands_env_factory": None}, "no environment"),
        ({"strands_env_factory": "no.such.module"}, "cannot import"),
        ({"strands_env_factroy": "x"}, "strands_env_factroy"),
        ({"apply_chat_template": True}, "leave out --apply-chat-template"),
        ({"strands_env_options": "max_tool_iters"}, "strands_env_options: input should be a valid dictionary"),
        ({"strands_env_log_messages": "many"}, "strands_env_log_messages: input should be a valid integer"),
        ({"strands_env_max_failures": -1}, "greater than or equal to 0, got -1"),
        ({"strands_env_max_suspension": "nan"}, "greater than or equal to 0"),
        ({"strands_env_fanout": "false"}, "strands_env_fanout: input should be a valid boolean"),
        ({"use_rollout_routing_replay": True}, "--num-layers"),
        ({"strands_env_fanout": True, "partial_rollout": True}, "--partial-rollout takes one sample of a rollout"),
        ({"strands_env_fanout": True, "group_rm": True}, "--group-rm takes one sample of a rollout"),
        ({"eval_reward_key": "accuracy"}, "--eval-reward-key needs --reward-key"),
        ({"log_reward_category": "kind"}, "--log-reward-category needs --reward-key"),
    ],
)
async def test_a_wrong_configuration_ends_the_run(rig: Rig, changes: dict[str, Any], message: str) -> None:
    rig.serve(completion("3"))
    for name, value in changes.items():
        setattr(rig.args, name, value)
    with pytest.raises(slime.SlimeConfigError, match=message):
        await rig.run()


async def test_a_type_error_of_one_task_later_on_is_a_failed_sample(rig: Rig) -> None:
    rig.serve(completion("3"))
    await rig.run()
    rig.options = {"no_such_option": 1}
    assert (await rig.run()).status is Sample.Status.FAILED


async def test_printed_prompts_of_evaluation_data_are_refused(rig: Rig) -> None:
    rig.args.eval_datasets = [types.SimpleNamespace(name="aime", apply_chat_template=True)]
    rig.serve(completion("3"), completion("3"))
    with pytest.raises(slime.SlimeConfigError, match="'aime'"):
        await rig.run(evaluation=True)
    assert (await rig.run()).status is Sample.Status.COMPLETED


@pytest.mark.parametrize(
    "sample",
    [
        Sample(prompt="What is it?", multimodal_inputs={"images": ["picture"], "videos": None}),
        Sample(prompt=[{"role": "user", "content": [{"type": "image", "image": "x.png"}]}]),
        Sample(multimodal_inputs={"images": object()}),  # without a length
    ],
    ids=["beside the prompt", "in a message", "without a length"],
)
async def test_images_are_refused_instead_of_lost(rig: Rig, sample: Sample) -> None:
    rig.serve(completion("3"))
    with pytest.raises(slime.SlimeConfigError, match="image"):
        await rig.run(sample)


@pytest.mark.parametrize(
    ("inputs", "status"),
    [(["image"], Sample.Status.FAILED), ({"images": None, "videos": []}, Sample.Status.COMPLETED)],
    ids=["not to be read", "empty"],
)
async def test_other_multimodal_inputs_are_no_matter_of_configuration(rig: Rig, inputs: Any, status: Any) -> None:
    rig.serve(completion("3"))
    assert (await rig.run(Sample(multimodal_inputs=inputs))).status is status


# ---- failures in a row -----------------------------------------------------------------------------------------------


def broken(error: Exception) -> Any:
    def make(**options: Any) -> Environment:
        raise error

    return make


FAILS, EVALUATES, OFFLINE, GOES_WELL = "no sandbox", "no sandbox, in an evaluation", "gone", "3"


@pytest.mark.parametrize(
    ("limit", "rollouts", "message"),
    [
        (3, [FAILS] * 3, r"3 rollouts .* RuntimeError .*no sandbox.*max_failures"),
        (2, [OFFLINE, OFFLINE], "ConnectionError in model"),
        (2, [FAILS, OFFLINE], r"2 rollouts .* ConnectionError"),
        (None, [FAILS] * 64, "64 rollouts"),
        (2, [OFFLINE, GOES_WELL, OFFLINE], None),
        (0, [FAILS] * 70, None),
        (2, [EVALUATES] * 4 + [FAILS], None),
    ],
    ids=["factory", "model", "both", "by default", "a good one between", "no limit", "evaluations do not count"],
)
async def test_too_many_failures_in_a_row_end_the_run(
    rig: Rig, limit: int | None, rollouts: list[str], message: str | None
) -> None:
    rig.args.strands_env_max_failures = limit
    rig.serve(
        *(ConnectionError("gone") if each == OFFLINE else completion("3") for each in rollouts if each in "gone3")
    )

    async def run(each: str) -> Sample.Status:
        rig.environment = broken(RuntimeError("no sandbox")) if each.startswith(FAILS) else AddEnv
        status: Sample.Status = (await rig.run(evaluation=each == EVALUATES)).status
        return status

    statuses = [await run(each) for each in (rollouts[:-1] if message else rollouts)]
    assert [status is Sample.Status.COMPLETED for status in statuses] == [
        each == GOES_WELL for each in rollouts[: len(statuses)]
    ]
    if message:
        with pytest.raises(slime.FailureStreakError, match=message) as caught:
            await run(rollouts[-1])
        assert caught.value.count == len(rollouts)
        assert await run(FAILS) is Sample.Status.FAILED  # the count starts again once it was reported


async def test_a_run_that_ends_leaves_the_sample_as_it_was(rig: Rig) -> None:
    rig.args.strands_env_max_failures = 1
    rig.serve(ConnectionError("gone"))
    sample = Sample(tokens=[1, 2], response="old", metadata={"mine": 1})
    before = copy.deepcopy(sample)
    with pytest.raises(slime.FailureStreakError):
        await rig.run(sample)
    assert sample == before


async def test_limits_without_room_for_one_token_end_the_run(rig: Rig) -> None:
    rig.args.strands_env_max_failures = 2
    rig.args.rollout_max_context_len, rig.args.eval_max_context_len = 10, 400  # less than any prompt, and enough
    rig.serve(completion("3"))
    assert (await rig.run()).status is Sample.Status.TRUNCATED
    assert (await rig.run(evaluation=True)).status is Sample.Status.COMPLETED
    with pytest.raises(slime.FailureStreakError, match=r"no room for a single token.*rollout_max_context_len"):
        await rig.run()


async def test_failures_of_rollouts_that_began_before_a_success_do_not_count(rig: Rig) -> None:
    rig.args.strands_env_max_failures = 3
    may_fail = asyncio.Event()

    class Broken(AddEnv):
        async def reset(self) -> None:
            await may_fail.wait()
            raise RuntimeError("no sandbox")

    good, rig.environment = rig.environment, Broken
    together = [asyncio.ensure_future(rig.run()) for _ in range(10)]
    await asyncio.sleep(0)
    rig.environment = good
    rig.serve(completion("3"))
    await rig.run()
    may_fail.set()
    assert {sample.status for sample in await asyncio.gather(*together)} == {Sample.Status.FAILED}


@pytest.mark.parametrize("good", [True, False], ids=["it goes well", "it fails"])
async def test_failures_wait_for_what_runs_beside_them(rig: Rig, good: bool) -> None:
    rig.args.strands_env_max_failures = 2
    may_end = asyncio.Event()

    class Slow(AddEnv):
        async def reset(self) -> None:
            await may_end.wait()

    rig.environment = Slow
    rig.serve(completion("3") if good else ConnectionError("gone"))
    slow = asyncio.ensure_future(rig.run())
    await asyncio.sleep(0)
    rig.environment = broken(RuntimeError("no sandbox"))
    assert {(await rig.run()).status for _ in range(4)} == {Sample.Status.FAILED}
    may_end.set()
    if good:
        assert (await slow).status is Sample.Status.COMPLETED
    else:
        with pytest.raises(slime.FailureStreakError, match="5 rollouts"):
            await slow


async def test_a_timeout_of_a_suspended_rollout_does_not_count(rig: Rig) -> None:
    rig.args.strands_env_max_failures = 1
    rig.args.partial_rollout = True

    def stop(*request: Any) -> Any:
        rig.state.aborted = True
        return Reply(ids=completion("abc def").ids[:1], finish="abort")

    rig.serve(stop, TimeoutError("the deadline of the step passed"))
    sample = await rig.run()
    assert sample.status is Sample.Status.ABORTED
    rig.state.aborted = False
    done = await rig.run(sample)
    assert done.metadata["strands_env"]["termination_reason"] == "timeout"


async def test_the_time_of_a_suspension_is_not_the_policys(rig: Rig) -> None:
    rig.args.partial_rollout = True
    rig.environment = WaitingEnv
    rig.options = {"step_timeout": 4.0, "reward_fn": lambda action, result: 0.0}

    def stop(*request: Any) -> Any:
        rig.state.aborted = True
        return Reply(ids=waiting_call().ids[:1], finish="abort")

    client = rig.serve(stop, Reply(ids=waiting_call().ids[1:]))
    sample = await rig.run()
    assert sample.status is Sample.Status.ABORTED
    rig.state.aborted = False
    done = await rig.run(sample)
    assert (done.status, done.remove_sample) == (Sample.Status.FAILED, True)
    assert done.metadata["strands_env"]["termination_reason"] == "timeout" and len(client.requests) == 2


async def test_a_failed_rollout_is_tried_again_in_a_fresh_environment(rig: Rig, monkeypatch: Any) -> None:
    monkeypatch.setattr(driver, "RETRY_PAUSE", 0.0)
    rig.args.strands_env_retries = 2
    client = rig.serve(ConnectionError("gone"), completion("3"), completion("4"))
    assert (await rig.run()).status is Sample.Status.COMPLETED
    assert len(client.requests) == 2
    rig.serve(*[ConnectionError("gone")] * 3)
    sample = await rig.run()
    assert (sample.status, sample.remove_sample) == (Sample.Status.FAILED, True)


async def test_a_time_out_is_not_tried_again(rig: Rig) -> None:
    rig.args.strands_env_retries = 2
    rig.environment = WaitingEnv
    rig.options = {"step_timeout": 0.3, "reward_fn": lambda action, result: 0.5}
    client = rig.serve(waiting_call())
    sample = await rig.run()
    assert (sample.status, sample.remove_sample, sample.reward) == (Sample.Status.TRUNCATED, False, 0.5)
    assert sum(sample.loss_mask) == len(waiting_call().ids)  # what was sampled by then is trained
    assert len(client.requests) == 1


def test_a_group_with_too_few_usable_rollouts_is_not_trained(rig: Rig) -> None:
    group = [Sample(index=index, reward=float(index == 3)) for index in range(4)]
    group[0].remove_sample = group[2].remove_sample = True
    _, advantages = slime.reward_post_process(rig.args, group)
    assert [value != 0.0 for value in advantages] == [False, True, False, True]
    rig.args.strands_env_min_usable = 3
    assert slime.reward_post_process(rig.args, group)[1] == [0.0] * 4
    assert slime.check_reward_nonzero_std(rig.args, group) is False
