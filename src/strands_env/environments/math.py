r"""`MathEnv`: mathematical problems, a calculator, and a reward for the right `\boxed{...}` answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from strands_env.core import Environment
from strands_env.tools.calculator import calculator

_DEFAULT: Any = object()


class MathEnv(Environment):
    """Reasoning with a calculator at hand.

    Args:
        reward_fn: Scores the answer; `MathRewardFunction()` if not given (extra `math`), None for no reward.
        tools: The tools; the calculator if None, an empty list for reasoning alone.
    """

    default_system_prompt_path = Path(__file__).with_name("prompts") / "math.md"

    def __init__(self, *, reward_fn: Any = _DEFAULT, tools: list[Any] | None = None, **options: Any) -> None:
        if reward_fn is _DEFAULT:
            from strands_env.rewards import MathRewardFunction

            reward_fn = MathRewardFunction()
        super().__init__(reward_fn=reward_fn, **options)
        self.tools = [calculator] if tools is None else list(tools)

    def get_tools(self) -> list[Any]:
        """The tools that were chosen."""
        return self.tools
