"""CalculatorEnv and MathEnv."""

from __future__ import annotations

import pytest

from strands_env.core import Action, RewardResult, TaskContext, TerminationReason
from strands_env.environments import CalculatorEnv, MathEnv
from strands_env.testing import ScriptedModel, call
from strands_env.tools import calculator


def scripted() -> ScriptedModel:
    return ScriptedModel([call("calculator", expression="2^10"), "The answer is 1024."])


async def test_the_agent_calculates() -> None:
    result = await CalculatorEnv(model_factory=scripted).step(Action(message="What is 2^10?"))
    assert result.termination_reason is TerminationReason.TASK_COMPLETE
    assert result.observation.final_response == "The answer is 1024."
    (block,) = result.observation.messages[2]["content"]
    assert block["toolResult"]["content"] == [{"text": "1024"}]
    assert result.observation.metrics["per_tool_metrics"]["calculator"]["successes"] == 1


async def test_an_error_of_the_calculator_is_a_tool_result() -> None:
    env = CalculatorEnv(model_factory=lambda: ScriptedModel([call("calculator", expression="1/0"), "It is undefined."]))
    result = await env.step(Action(message="What is 1/0?"))
    assert result.termination_reason is TerminationReason.TASK_COMPLETE
    (block,) = result.observation.messages[2]["content"]
    assert (block["toolResult"]["status"], block["toolResult"]["content"]) == (
        "error",
        [{"text": "Error: division by zero"}],
    )


def test_there_is_a_default_system_prompt() -> None:
    assert "calculator" in (CalculatorEnv(model_factory=scripted).system_prompt or "")
    assert CalculatorEnv(model_factory=scripted, system_prompt="mine").system_prompt == "mine"


async def test_math_env_takes_a_reward_function_and_tools() -> None:
    def reward(action: Action, result: object) -> RewardResult:
        return RewardResult(reward=0.5)

    env = MathEnv(model_factory=scripted, reward_fn=reward)
    result = await env.step(Action(message="What is 2^10?", task_context=TaskContext(ground_truth="1024")))
    assert result.reward.reward == 0.5
    assert env.get_tools() == [calculator]
    assert MathEnv(model_factory=scripted, reward_fn=None, tools=[]).get_tools() == []


async def test_math_env_verifies_by_default() -> None:
    pytest.importorskip("math_verify")
    env = MathEnv(model_factory=lambda: ScriptedModel([r"It is \boxed{1024}."]))
    result = await env.step(Action(message="What is 2^10?", task_context=TaskContext(ground_truth="1024")))
    assert result.reward.reward == 1.0
