"""Hooks and data sets that the command line loads by name."""

from __future__ import annotations

from typing import Any

from strands_env.core import Action, Environment, TaskContext
from strands_env.eval import Evaluator
from strands_env.testing import ScriptedModel


def create_env_factory(model_factory: Any, *, reward: float = 1.0) -> Any:
    return lambda: Environment(model_factory=model_factory, reward_fn=lambda action, result: reward)


def with_config(model_config: dict[str, Any]) -> Any:
    return lambda: Environment(
        model_factory=lambda: ScriptedModel([model_config["backend"]]), reward_fn=lambda action, result: 1.0
    )


class PlainEnv(Environment):
    """An environment without a hook."""


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
