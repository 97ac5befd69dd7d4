"""How a worker makes what it runs: a dotted path and plain arguments, or anything that pickles."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from strands_env.core import Action, Environment, StepResult


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


class Runner:
    """Runs rollouts in a worker.

    Args:
        recipe: Makes the environment factory, once.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._factory = recipe.env_factory()
        parameters = inspect.signature(self._factory).parameters.values()
        self._takes_action = any(
            item.default is item.empty and item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)
            for item in parameters
        )

    async def rollout(self, action: Action) -> StepResult:
        """A whole episode in a fresh environment."""
        env = self._factory(action) if self._takes_action else self._factory()
        env = await env if inspect.isawaitable(env) else env
        if isinstance(env, Environment):
            return await env.rollout(action)
        try:
            await env.reset()
            result: StepResult = await env.step(action)
            return result
        finally:
            await env.cleanup()
