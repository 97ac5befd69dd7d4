"""`CalculatorEnv`: arithmetic with a calculator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from strands_env.core import Environment
from strands_env.tools.calculator import calculator

__path__: list[str] = []  # submodules of upstream: strands_sglang.compat


class CalculatorEnv(Environment):
    """One tool, `calculator`. No state: an environment may run any number of steps at once."""

    default_system_prompt_path = Path(__file__).with_name("prompts") / "calculator.md"

    def get_tools(self) -> list[Any]:
        """The calculator."""
        return [calculator]
