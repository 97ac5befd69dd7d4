"""`CalculatorEnv`: arithmetic with a calculator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from strands_env.core import Environment
from strands_env.tools.calculator import calculator


class CalculatorEnv(Environment):
    """A tool, `calculator`. No state: an environment may run any number of steps at once."""

    default_system_prompt_path = Path(__file__).parents[1] / "prompts" / "calculator.md"

    def get_tools(self) -> list[Any]:
        """The calculator."""
        return [calculator]
