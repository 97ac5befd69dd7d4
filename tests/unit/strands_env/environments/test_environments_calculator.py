"""CalculatorEnv and MathEnv."""

from __future__ import annotations

import pytest

from strands_env.core import Action, TaskContext, TerminationReason
from strands_env.environments import CalculatorEnv, MathEnv
from strands_env.testing import ScriptedModel, call
from strands_env.tools import calculator


def scripted() -> ScriptedModel:
    return ScriptedModel([call("calculator", expression="2^10"), "The answer is 1024."])


@pytest.mark.parametrize(
    ("expression", "status", "text"), [("2^10", "success", "1024"), ("1/0", "error", "Error: division by zero")]
)
async def test_the_agent_calculates(expression: str, status: str, text: str) -> None:
    script = [call("calculator", expression=expression), "So it is."]
    env = CalculatorEnv(model_factory=lambda: ScriptedModel(script))
    assert "calculator" in (env.system_prompt or "")
    result = await env.step(Action(message="What is it?"))
    assert result.termination_reason is TerminationReason.TASK_COMPLETE
    (block,) = result.observation.messages[2]["content"]
    assert (block["toolResult"]["status"], block["toolResult"]["content"]) == (status, [{"text": text}])


async def test_math_env_takes_a_reward_function_and_tools() -> None:
    env = MathEnv(model_factory=scripted, reward_fn=lambda action, result: 0.5)
    result = await env.step(Action(message="What is 2^10?", task_context=TaskContext(ground_truth="1024")))
    assert result.reward.reward == 0.5
    assert env.get_tools() == [calculator]
    assert MathEnv(model_factory=scripted, reward_fn=None, tools=[]).get_tools() == []


async def test_math_env_verifies_by_default() -> None:
    pytest.importorskip("math_verify")
    env = MathEnv(model_factory=lambda: ScriptedModel([r"It is \boxed{1024}."]))
    result = await env.step(Action(message="What is 2^10?", task_context=TaskContext(ground_truth="1024")))
    assert result.reward.reward == 1.0
