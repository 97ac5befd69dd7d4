"""The environment of the ReTool-style example: mathematics with Python at hand, in a sandbox.

`python retool_env.py` tries the sandbox and the reward on this machine.
"""

from __future__ import annotations

import asyncio
from typing import Any

from strands_env.core import (
    Action,
    Environment,
    Observation,
    RewardFunction,
    RewardResult,
    StepResult,
    TaskContext,
    TerminationReason,
)
from strands_env.environments import CodeSandboxEnv
from strands_env.rewards.math_reward import MathRewardFunction
from strands_env.sandbox import BubblewrapSandbox, SandboxLimits, SandboxSlots

SYSTEM_PROMPT = """\
You solve mathematics problems. Reason step by step, and use execute_code to run Python wherever a calculation, a search
or a check is safer than doing it in your head; print what you want to see. When you are sure, end with the answer in
\\boxed{}."""

SLOTS = SandboxSlots(64)
"""Sandboxes that run at the same time in one rollout process; further rollouts wait for their turn."""


class ToolUseShaping(RewardFunction):
    """The reward of slime's own example: 1 for a right answer, else -1 and up to -0.6 the more the tool was used.

    A wrong answer gets `min(-0.6, -1 + (iterations - 2) / 2 * 0.1)`, which keeps a model that cannot solve the problem
    yet from giving up the tool (slime, examples/strands_sglang).
    """

    def __init__(self) -> None:
        self._math = MathRewardFunction()

    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        """Score an answer; an abstention stays one."""
        scored = await self._math.compute(action=action, step_result=step_result)
        if scored.reward is None or scored.reward > 0:
            return scored
        iterations = step_result.observation.metrics.get("tool_iters", 0)
        return RewardResult(reward=min(-0.6, -1.0 + (iterations - 2) / 2 * 0.1), info=scored.info)


def make_env(*, model_factory: Any, args: Any, options: dict[str, Any]) -> Environment:
    """A fresh environment for one rollout; slime's config file names this function as `strands_env_factory`.

    Args:
        model_factory: Makes the model of the rollout.
        args: slime's arguments.
        options: `strands_env_options` of the config file: `tool_use_shaping`, and arguments of `Environment`, such as
            `max_tool_iters`.
    """
    options = dict(options)
    reward_fn = ToolUseShaping() if options.pop("tool_use_shaping", False) else MathRewardFunction()
    return CodeSandboxEnv(
        model_factory=model_factory,
        system_prompt=SYSTEM_PROMPT,
        reward_fn=reward_fn,
        limits=SandboxLimits(),
        slots=SLOTS,
        **{"max_tool_iters": 16, "step_timeout": 1800.0, "reward_timeout": 60.0, **options},
    )


async def check() -> None:
    """Run code in a sandbox and score its output. Raises, with a remedy, where either does not work."""
    async with BubblewrapSandbox() as sandbox:
        printed = (await sandbox.run_python("print(2**10)")).to_text()
    result = StepResult(
        observation=Observation(messages=[{"role": "assistant", "content": [{"text": f"\\boxed{{{printed}}}"}]}]),
        termination_reason=TerminationReason.TASK_COMPLETE,
    )
    action = Action(message="2 to the power of 10?", task_context=TaskContext(ground_truth="1024"))
    reward = (await MathRewardFunction().compute(action=action, step_result=result)).reward
    if reward != 1.0:
        raise RuntimeError(f"the sandbox printed {printed!r}, which has reward {reward!r} where 1.0 is right")


if __name__ == "__main__":
    asyncio.run(check())
