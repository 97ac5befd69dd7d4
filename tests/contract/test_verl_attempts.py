"""verl's agent loop: what is run again, what is a row without loss, and what ends the run with a sentence."""

from __future__ import annotations

from typing import Any

import pytest
from provider_support import call, tokenizer

from strands_env.core import Environment, RewardResult
from strands_sglang import ToolParserError
from tests.contract.test_trainer_adapters import AddEnv, ServerManager, no_pause, rollout

__all__ = ["no_pause"]


def failing(*errors: Exception) -> tuple[Any, list[Exception]]:
    """A `make_environment` that raises these first, and what it has still to raise."""
    left = list(errors)

    def make_environment(model_factory: Any) -> AddEnv:
        if left:
            raise left.pop(0)
        return AddEnv(model_factory=model_factory)

    return make_environment, left


async def test_an_environment_that_cannot_be_made_once_is_made_again() -> None:
    make_environment, _ = failing(ConnectionError("no sandbox"), ConnectionError("no sandbox"))
    output = await rollout(ServerManager([call(1, 2), "3"]), make_environment)
    assert (output["extra_fields"]["status"], output["reward_score"]) == ("completed", 1.0)


async def test_an_environment_that_cannot_be_made_is_a_row_without_loss() -> None:
    make_environment, left = failing(*[ConnectionError("no sandbox")] * 3)
    output = await rollout(ServerManager(["3"]), make_environment)
    assert (output["extra_fields"]["status"], output["response_mask"], output["num_turns"]) == ("failed", [0], 0)
    assert left == []


@pytest.mark.parametrize("error", [NameError("wrong code"), TypeError("wrong code")])
async def test_an_environment_that_is_wrongly_written_ends_the_run_after_the_last_attempt(error: Exception) -> None:
    make_environment, left = failing(*[error] * 3)
    with pytest.raises(type(error), match="wrong code"):
        await rollout(ServerManager(["3"]), make_environment)
    assert left == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tool_paser": "x"}, "tool_paser"),
        ({"tool_parser": "hermess"}, "did you mean 'hermes'"),
        ({"sampling_params": {}}, "sampling_params"),
    ],
)
async def test_wrong_model_options_end_the_run(options: dict[str, Any], message: str) -> None:
    manager = ServerManager([])
    with pytest.raises((TypeError, ToolParserError), match=message):
        await rollout(manager, model_options=options)
    assert manager.requests == []


async def test_an_environment_without_a_reward_ends_the_run_instead_of_training_nothing() -> None:
    with pytest.raises(ValueError, match="no reward function"):
        await rollout(ServerManager(["3"]), lambda model_factory: Environment(model_factory=model_factory))


class OwnReward(Environment):
    """Scores its steps itself, but not those that a limit cut short."""

    async def step(self, action: Any, **options: Any) -> Any:
        result = await super().step(action, **options)
        if not result.termination_reason.is_limit:
            result.reward = RewardResult(reward=0.5)
        return result


async def test_an_environment_with_a_reward_of_its_own_may_leave_a_rollout_out() -> None:
    outputs = [await rollout(ServerManager(["3"]), OwnReward, response_length=room) for room in (256, 1)]
    assert [output["reward_score"] for output in outputs] == [0.5, 0.0]
    assert [sum(output["response_mask"]) > 0 for output in outputs] == [True, False]


USER = {"role": "user", "content": "1 + 2?"}


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ([], "must end with a user message"),
        ([{"role": "system", "content": "Add."}], "must end with a user message"),
        ([USER, {"role": "assistant", "content": "3"}], "must end with a user message"),
        ([{"role": "function", "content": "3"}, USER], "role 'function'"),
        ([{"content": "3"}, USER], "role None"),
        ([USER, {"role": "tool", "content": "3"}, USER], "answers no call"),
        ([USER, {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}, USER], "tool_calls"),
    ],
)
async def test_a_prompt_that_cannot_be_understood_is_refused(messages: list[Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        await rollout(ServerManager([]), row={"raw_prompt": messages})


async def test_a_developer_message_is_a_system_prompt() -> None:
    prompts = []
    for role in ("system", "developer"):
        manager = ServerManager(["3"])
        await rollout(manager, row={"raw_prompt": [{"role": role, "content": "Add."}, USER]})
        prompts.append(manager.requests[0]["prompt_ids"])
    assert prompts[0] == prompts[1]
    assert "Add." in tokenizer().decode(prompts[0])
