"""How a worker makes its environments: a dotted path and plain arguments, or anything that pickles."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from strands_env.core.garbage import tune_garbage_collection
from strands_env.core.jsonable import call_name, name_of
from strands_env.core.rollout import LocalExecutor


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """An environment factory that can be made in another process.

    Attributes:
        make: `module:function` or a function that pickles; called in the worker with `arguments`, it returns the
            environment factory (sync or async; with the action as argument or without).
        arguments: Keyword arguments that pickle.
    """

    make: str | Callable[..., Any]
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.make, str):
            module, mark, name = self.make.partition(":")
            if not (module and mark and name):
                raise ValueError(f"an environment factory is named 'module:function', got {self.make!r}")
        elif not callable(self.make):
            raise TypeError(f"make must be 'module:function' or a function, got {self.make!r}")

    @property
    def name(self) -> str:
        """The call of `make` as text."""
        return call_name(self.make if isinstance(self.make, str) else name_of(self.make), keywords=self.arguments)

    def env_factory(self) -> Callable[..., Any]:
        """Make the environment factory, here."""
        make: Any = self.make
        if isinstance(make, str):
            module, _, name = make.partition(":")
            make = importlib.import_module(module)
            for part in name.split("."):
                make = getattr(make, part)
        made: Callable[..., Any] = make(**self.arguments)
        return made


def make_runner(recipe: Recipe, on_environment: Callable[[dict[str, Any]], Awaitable[None]]) -> LocalExecutor:
    """What runs rollouts in a worker, as it would in the process of the evaluator.

    Args:
        recipe: Makes the environment factory, once.
        on_environment: Called with the description of the first environment.
    """
    env_factory = recipe.env_factory()
    tune_garbage_collection()  # the process is ours
    return LocalExecutor(env_factory, on_environment)
