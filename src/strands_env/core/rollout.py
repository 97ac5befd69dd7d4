"""One whole rollout: make the environment, run the episode, keep the deadline."""

from __future__ import annotations

import asyncio
import inspect
import warnings
import weakref
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext, suppress
from typing import Any, TypeAlias

from .deadline import EpisodeProgress, keep_error, run_shielded, run_with_timeout
from .environment import Environment
from .identity import identify_reward
from .jsonable import name_of, shown
from .seeds import FIELD, RolloutSeed
from .termination import Phase
from .types import Action, StepResult

CLEANUP_SECONDS = 60.0
"""Seconds for the cleanup of a mere look-alike of an environment; an `Environment` has a `cleanup_timeout`."""

_TASK = ("action", "task")
EnvFactory: TypeAlias = Callable[..., Any]
"""Makes an environment for a sample: sync or async, with the action as its argument or without one."""


class LocalExecutor:
    """Runs rollouts on the caller's event loop, each with the seed that its action carries.

    Args:
        env_factory: Makes a fresh environment for every rollout.
        on_environment: Called with the description of the first environment, before its rollout.

    Raises:
        TypeError: `env_factory` needs more arguments than the action.
    """

    def __init__(
        self,
        env_factory: EnvFactory,
        on_environment: Callable[[dict[str, Any]], Awaitable[None]] | None = None,
    ) -> None:
        self._factory = env_factory
        self._takes_action = takes_action(env_factory)
        self._on_environment = on_environment
        self._describing = asyncio.Lock()
        self._last: Callable[[], Any] = lambda: None

    async def rollout(self, action: Action, *, timeout: float | None = None) -> StepResult:
        """Make an environment and run it: setup, loop, reward, and always cleanup.

        Args:
            timeout: Seconds for everything before the cleanup.

        Raises:
            EpisodeTimeoutError: They passed; the error says in which phase.
            WorkCancelledError: The environment cancelled itself.
            RuntimeError: It raised something other than an `Exception`, such as `SystemExit`.
        """
        progress = EpisodeProgress()
        return await run_with_timeout(self._run(action, progress), timeout, progress)

    async def describe(self, action: Action | None) -> dict[str, Any] | None:
        """The description of an environment that is not run: one made for this action, or for any.

        None where it needs an action and there is none, or cannot be made: a rollout says why, if one is left to run.
        """
        if self._takes_action and action is None:
            return None
        action = action or Action(message="")
        seed = _seed_of(action)
        try:
            with nullcontext() if seed is None else seed.active():
                env = await make_environment(self._factory, action, self._takes_action)
                return describe(env, action if self._takes_action else None)
        except (Exception, SystemExit):
            return None

    async def close(self) -> None:
        """Nothing to free: environments are cleaned up after every rollout."""

    async def _run(self, action: Action, progress: EpisodeProgress) -> StepResult:
        """The environment's own `rollout`, or `reset`, `step` and always `cleanup` where it has none."""
        result: StepResult
        seed = _seed_of(action)
        with nullcontext() if seed is None else seed.active():
            env = await self._make(action)
            if self._on_environment is not None:
                async with self._describing:
                    if self._on_environment is not None:
                        await self._on_environment(describe(env, action if self._takes_action else None))
                        self._on_environment = None
            rollout = getattr(env, "rollout", None)
            if issubclass(type(env), Environment) or (rollout and inspect.iscoroutinefunction(rollout)):
                progress.phase = Phase.LOOP
                with progress.active():
                    result = await env.rollout(action)
            else:  # an object that only looks like an environment
                try:
                    await env.reset()
                    progress.phase = Phase.LOOP
                    result = await env.step(action)
                finally:
                    progress.phase = Phase.CLEANUP
                    failure = await keep_error(run_shielded(env.cleanup(), CLEANUP_SECONDS, Phase.CLEANUP))
                if failure is not None:
                    result.cleanup_error = failure
        if seed is not None and isinstance(result, StepResult):  # anything else is refused by who asked for it
            result.is_seeded = seed.is_used
        return result

    async def _make(self, action: Action) -> Any:
        try:
            env = await make_environment(self._factory, action, self._takes_action)
            if not hasattr(env, "step") and not hasattr(env, "rollout"):
                raise TypeError(
                    f"env_factory must make an Environment, got {env!r:.100}: write 'lambda: Environment(...)'"
                )
            if self._last() is env:
                warnings.warn(
                    f"env_factory {name_of(self._factory)} makes the same {type(env).__name__} for all: rollouts share "
                    "its state; make a new one in it, as in 'lambda: MyEnv(...)'",
                    stacklevel=2,
                )
            with suppress(TypeError):  # it has slots
                self._last = weakref.ref(env)
            return env
        except Exception as error:
            with suppress(AttributeError, TypeError):  # the exception has slots
                error.where = Phase.SETUP  # type: ignore[attr-defined]  # for the record: no agent loop was running
            raise


def _seed_of(action: Action) -> RolloutSeed | None:
    value = getattr(action.task_context, FIELD, None)
    return RolloutSeed(value) if type(value) is int else None


def takes_action(env_factory: EnvFactory) -> bool:
    """True for a factory that takes the action; `TypeError` if it is not callable or needs other arguments."""
    if not callable(env_factory):
        raise TypeError(f"env_factory must be a function that makes an environment, got {env_factory!r}")
    try:
        parameters = list(inspect.signature(env_factory).parameters.values())
    except (TypeError, ValueError):  # a built-in without a signature
        return False
    by_place = [each for each in parameters if each.kind not in (each.KEYWORD_ONLY, each.VAR_KEYWORD)]
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [each for each in parameters if each.default is each.empty and each.kind not in variadic]
    if len(needed) > 1 or any(each not in by_place for each in needed):
        names = ", ".join(each.name for each in needed)
        raise TypeError(
            f"env_factory is called with the action or without arguments, but {name_of(env_factory).rpartition('.')[2]}"
            f" takes ({names}): write 'lambda: Environment(...)', with your class and its arguments"
        )
    # Without required arguments it may be a class with options, unless the name of the first tells.
    first = next(iter(by_place), None)
    is_meant = first is not None and (first.kind is first.VAR_POSITIONAL or first.name in _TASK)
    return bool(needed) or is_meant


async def make_environment(env_factory: EnvFactory, action: Action, with_action: bool) -> Any:
    """Call a factory, sync or async."""
    env = env_factory(action) if with_action else env_factory()
    return await env if inspect.isawaitable(env) else env


def describe(env: Any, action: Action | None = None) -> dict[str, Any]:
    """The parts of an environment that decide its results, as far as they can be seen from outside, as JSON values.

    `action` is the task of an environment that was made for it alone: all but its model stands under `task` then.
    """
    factory = getattr(env, "model_factory", None)
    model = getattr(factory, "config", None)
    description: dict[str, Any] = {"model": dict(model)} if isinstance(model, Mapping) else {}
    if issubclass(type(env), Environment):  # a mock only says that it is one
        parts = {
            "class": name_of(type(env)),
            "system_prompt": env.system_prompt,
            "max_tool_iters": env.max_tool_iters,
            "max_tool_calls": env.max_tool_calls,
            "max_total_tokens": env.max_total_tokens,
            **{name: value for name, value in env.limits.set_ones("tokens").items() if name != "max_trajectory_tokens"},
            "reward_fn": None if env.reward_fn is None else name_of(env.reward_fn),
            "reward": None if env.reward_fn is None else identify_reward(env.reward_fn),
        }
        description |= parts if action is None else {"task": {"id": action.task_context.id, **parts}}
    safe: dict[str, Any] = shown(description)
    return safe
