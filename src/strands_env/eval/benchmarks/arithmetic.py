"""Arithmetic from a seed: no download, and small enough for the embedded model with a calculator."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from strands_env.core import Action
from strands_env.environments import CalculatorEnv
from strands_env.eval.run.benchmark import Benchmark, Row
from strands_env.rewards import NumberReward
from strands_sglang.backends.engine.smollm2 import SYSTEM_PROMPT, few_shot_messages

TASKS = 100  # number of tasks without a limit


class ArithmeticEnv(CalculatorEnv):
    """A calculator, and three worked examples in the history: enough for a model of 135 million parameters."""

    def get_history(self, action: Action) -> list[Any]:
        """The examples, in front of the conversation."""
        return [*few_shot_messages(), *action.task_context.conversation_history]


class ArithmeticEvaluator(Benchmark):
    """Arithmetic with a calculator, generated from a seed; runs on the embedded model."""

    benchmark_name = "arithmetic"
    has_local_rows = True
    default_sampling: ClassVar[Mapping[str, Any]] = {"max_new_tokens": 64, "temperature": 0.0}
    env_class = ArithmeticEnv
    env_options: ClassVar[Mapping[str, Any]] = {"max_tool_iters": 3}
    system_prompt = SYSTEM_PROMPT
    reward_class = NumberReward

    def count(self) -> int:
        """The limit, or `TASKS`."""
        return self.limit or TASKS

    def rows(self) -> Iterator[Row]:
        """Sums, differences and products; the same for the same seed."""
        rng = random.Random(self.seed)
        for number in range(self.count()):
            sign = rng.choice("+-*")
            small = sign == "*"
            first, second = rng.randint(11, 99 if small else 999), rng.randint(2, 12 if small else 99)
            value = {"+": first + second, "-": first - second, "*": first * second}[sign]
            yield {"id": f"{self.seed}-{number}", "expression": f"{first} {sign} {second}", "value": value}

    def action(self, row: Row, index: int) -> Action:
        """The question."""
        return self.task(row["id"], f"What is {row['expression']}?", str(row["value"]))
