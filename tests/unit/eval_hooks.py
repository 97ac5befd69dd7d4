"""Hooks and data sets that the command line loads by name."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

from strands import tool

from strands_env.core import Action, Environment, TaskContext
from strands_env.eval import Evaluator
from strands_env.testing import ScriptedModel, call


def create_env_factory(model_factory: Any, *, reward: float = 1.0) -> Any:
    return lambda: Environment(model_factory=model_factory, reward_fn=lambda action, result: reward)


def two_digits(model_factory: Any) -> Any:
    def reward(action: Action, result: Any) -> float:
        text = result.observation.final_response or ""
        return float(sum(character.isdigit() for character in text) >= 2)

    return lambda: Environment(model_factory=model_factory, reward_fn=reward)


def with_key(model_factory: Any, *, api_key: str) -> Any:
    assert api_key == "hunter2"
    return create_env_factory(model_factory)


def with_config(model_config: dict[str, Any]) -> Any:
    return lambda: Environment(
        model_factory=lambda: ScriptedModel([model_config["backend"]]), reward_fn=lambda action, result: 1.0
    )


class PlainEnv(Environment):
    """An environment without a hook."""


def abstaining(model_factory: Any) -> Any:
    return lambda: Environment(model_factory=model_factory, reward_fn=lambda action, result: None)


def unscorable(model_factory: Any) -> Any:
    return lambda: Environment(model_factory=model_factory, reward_fn=lambda action, result: 1 / 0)


def sometimes_unscorable(model_factory: Any) -> Any:
    return lambda: Environment(
        model_factory=model_factory,
        reward_fn=lambda action, result: 1 / (action.task_context.id != "t0_0"),
    )


def broken_metrics(model_factory: Any) -> Any:
    class BrokenMetrics(Environment):
        def compute_metrics(self, *counters: Any, **named: Any) -> dict[str, Any]:
            raise RuntimeError("no such table")

    return lambda: BrokenMetrics(model_factory=model_factory, reward_fn=lambda action, result: 1.0)


def broken_setup(model_factory: Any) -> Any:
    class BrokenSetup(Environment):
        async def reset(self) -> None:
            raise TypeError(f"no box {id(self)}")

    return lambda: BrokenSetup(model_factory=model_factory)


def broken_tool(model_factory: Any) -> Any:
    @tool
    def broken() -> int:
        """Divide."""
        return int(1 / 0)

    class BrokenTool(Environment):
        def get_tools(self) -> list[Any]:
            return [broken]

    return lambda: BrokenTool(
        model_factory=lambda: ScriptedModel([call("broken"), "Done."]), reward_fn=lambda action, result: 1.0
    )


def three_tasks() -> list[Action]:
    """Three tasks."""
    return [Action(message=f"q{i}", task_context=TaskContext(id=f"t{i}", ground_truth=str(i))) for i in range(3)]


class EvaluatorClass(Evaluator):
    benchmark_name = "mine"

    def load_dataset(self) -> list[Action]:
        return three_tasks()


NOT_A_FUNCTION = 3


def failing(model_factory: Any) -> Any:
    def factory() -> Environment:
        raise ConnectionError("no sandbox")

    return factory


async def async_tasks() -> list[Action]:
    return three_tasks()


async def streamed_tasks() -> AsyncIterator[Action]:
    for action in three_tasks():
        yield action


async def raising_stream() -> AsyncIterator[Action]:
    yield three_tasks()[0]
    raise RuntimeError("boom")


def raising_tasks() -> Iterator[Action]:
    yield three_tasks()[0]
    raise RuntimeError("boom")


def texts() -> list[str]:
    return ["a"]


def no_tasks() -> list[Action]:
    return []


def number() -> int:
    return 3


def raising_hook(model_factory: Any) -> Any:
    raise KeyError("x")


def hook_of_nothing(model_factory: Any) -> Any:
    return None


def losing_one(model_factory: Any) -> Any:
    """Loses the second sample of the first task; the others score 0 for the first task and 1 for the rest."""

    class Losing(Environment):
        async def step(self, action: Action, **options: Any) -> Any:
            if action.task_context.id == "t0_1":
                raise ConnectionError("down")
            return await super().step(action, **options)

    return lambda: Losing(
        model_factory=model_factory, reward_fn=lambda action, result: float(action.task_context.id[:2] != "t0")
    )


def interrupting(model_factory: Any, *, number: int, times: int) -> Any:
    """Sends its own process signals in its first rollout, each handled before the next."""

    class Interrupting(Environment):
        async def step(self, action: Action, **options: Any) -> Any:
            for _ in range(times if action.task_context.id == "t0_0" else 0):
                os.kill(os.getpid(), number)
                await asyncio.sleep(0.01)
            return await super().step(action, **options)

    return lambda: Interrupting(model_factory=model_factory, reward_fn=lambda action, result: 1.0)


class OwnMetrics(EvaluatorClass):
    """Has metrics of its own, and changes one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, metrics_fns=[lambda results: {"prompts_seen": len(results)}], **options)

    def compute_metrics(self, results: Any = None) -> dict[str, float]:
        return {**super().compute_metrics(results), "pass@1": 0.125, "unknown": float("nan")}


class RaisingMetrics(EvaluatorClass):
    def compute_metrics(self, results: Any = None) -> dict[str, float]:
        raise ZeroDivisionError("no prompts")


class Surprising(EvaluatorClass):
    def load_dataset(self) -> list[Action]:
        raise RuntimeError("surprise")


def exiting_tasks() -> Iterator[Action]:
    yield three_tasks()[0]
    sys.exit(0)
