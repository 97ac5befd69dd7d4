"""Examples of the documentation keep the contracts: their environments, and the proof of their rewards."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from strands_env.core import Action, Environment, RewardFunction, TaskContext
from strands_env.rewards.golds import gold_text
from strands_env.rewards.proof import RewardProof, prove_reward
from strands_env.testing import EnvironmentContract
from strands_env.testing.contracts import Contract


def check_examples(page: Mapping[str, Any], *, faulty: bool = False) -> None:
    """Try what a block of code defined; a reward that is shown for its fault must fail."""
    own = {name: value for name, value in page.items() if getattr(value, "__module__", "__main__") == page["__name__"]}
    for kind in own.values():
        if inspect.isclass(kind) and issubclass(kind, Environment):
            methods = {"make_env": lambda self, model_factory, kind=kind: kind(model_factory=model_factory)}
            suite = type("Suite", (EnvironmentContract,), methods)()
            for name in dir(suite):
                if name.startswith("test_"):
                    getattr(suite, name)()
    given = [item for value in page.values() for item in (value if isinstance(value, list) else [value])]
    tasks = [item for item in given if isinstance(item, Action) and gold_text(item) is not None]
    golds = [task.task_context.ground_truth for task in tasks] or ["4", "17", "-3"]
    tasks = tasks or [Action(message="?", task_context=TaskContext(id=gold, ground_truth=gold)) for gold in golds]
    found: list[RewardProof] = []
    for reward in rewards_of(own):
        Contract()._run(_prove(tasks, reward, found))
    for proof in found:
        assert (proof.ok or not proof.decides) is not faulty, proof.table()
    assert found or not faulty


async def _prove(tasks: list[Action], reward: Any, found: list[RewardProof]) -> None:
    found.append(await prove_reward(tasks, reward))


def rewards_of(own: Mapping[str, Any]) -> Iterator[Any]:
    for name, value in own.items():
        takes = list(inspect.signature(value).parameters) if inspect.isfunction(value) else None
        if inspect.isclass(value) and issubclass(value, RewardFunction) and not inspect.isabstract(value):
            if not any(p.default is p.empty for p in inspect.signature(value).parameters.values()):
                yield value()
        elif isinstance(value, RewardFunction) or (takes is not None and takes[:1] == ["action"] and len(takes) == 2):
            yield value
        elif isinstance(value, Environment) and value.reward_fn is not None:
            yield value.reward_fn
        elif takes == [] and name.endswith("factory") and isinstance(made := value(), Environment) and made.reward_fn:
            yield made.reward_fn
