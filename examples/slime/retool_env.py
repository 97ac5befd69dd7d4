"""The environment of the ReTool-style example: mathematics with Python at hand, in a sandbox."""

from __future__ import annotations

from typing import Any

from strands_env.core import Environment
from strands_env.environments import CodeSandboxEnv
from strands_env.rewards.math_reward import MathRewardFunction
from strands_env.tools.sandbox import SandboxLimits, SandboxSlots

SYSTEM_PROMPT = """\
You solve mathematics problems. Reason step by step, and use execute_code to run Python wherever a calculation, a search
or a check is safer than doing it in your head; print what you want to see. When you are sure, end with the answer in
\\boxed{}."""

SLOTS = SandboxSlots(64)
"""Sandboxes that run at the same time in one rollout process; further rollouts wait for their turn."""


def make_env(*, model_factory: Any, args: Any, options: dict[str, Any]) -> Environment:
    """A fresh environment for one rollout; slime's config file names this function as `strands_env_factory`.

    Args:
        model_factory: Makes the model of the rollout.
        args: slime's arguments.
        options: `strands_env_options` of the config file: arguments of `Environment`, such as `max_tool_iters`.
    """
    return CodeSandboxEnv(
        model_factory=model_factory,
        system_prompt=SYSTEM_PROMPT,
        reward_fn=MathRewardFunction(),
        limits=SandboxLimits(),
        slots=SLOTS,
        **{"max_tool_iters": 16, "step_timeout": 1800.0, "reward_timeout": 60.0, **options},
    )
