"""Environment factories from names and plain values, so that any process can make them."""

from __future__ import annotations

import inspect
from typing import Any, cast

from strands_env.core import Action, Environment, ModelFactory
from strands_env.core.rollout import EnvFactory, make_environment, takes_action
from strands_env.eval.errors import EvalError
from strands_env.eval.run.benchmark import Benchmark
from strands_env.options import EvalOptions
from strands_env.recipe.models import make_model_factory
from strands_env.recipe.objects import HOOK, call_user, load_evaluator, load_object, load_reward
from strands_env.recipe.tasks import FunctionBenchmark


def make_env_factory(options: EvalOptions, models: ModelFactory | None = None) -> EnvFactory:
    """The environment factory for options, so that any process can make it.

    Args:
        options: Of them `env`, the hook: `module:function` (or `module` with `create_env_factory`) that takes a model
            factory, or the model's options where its argument is called `model_config`, and returns an environment
            factory; or an `Environment` class. `env_config` has its keyword arguments. Without a hook the environment
            is that of `benchmark`. `reward` scores instead of the environment's own; see `load_reward`.
        models: A model factory, instead of that of the options.
    """
    env, benchmark, arguments = options.env, options.benchmark, dict(options.env_config or {})
    hook: Any = None if env is None else load_object(env, HOOK)
    if env is not None and _takes_config(hook):  # it makes its models itself
        env_factory = call_user(f"the environment hook {env!r}", hook, options.model(), **arguments)
    else:
        policy = models or make_model_factory(options)
        if env is None:
            evaluator = load_evaluator(str(benchmark))
            if not issubclass(evaluator, Benchmark):
                raise EvalError(f"{benchmark!r} has no environment of its own: name one (--env module:function)")
            if issubclass(evaluator, FunctionBenchmark):
                raise EvalError(
                    f"{benchmark!r} only gives tasks and has no environment of its own: name one with --env"
                )
            env_factory = call_user(f"the environment of {benchmark!r}", evaluator.environment, policy, **arguments)
        elif isinstance(hook, type) and issubclass(hook, Environment):
            environment = hook
            env_factory = lambda: environment(model_factory=policy, **arguments)  # noqa: E731 - one of several ways to get it
        elif callable(hook):
            env_factory = call_user(f"the environment hook {env!r}", hook, policy, **arguments)
        else:
            raise EvalError(f"the environment hook {env!r} must be a function or an Environment class, got {hook!r}")
    if inspect.iscoroutine(env_factory):
        env_factory.close()
        raise EvalError(f"the environment hook {env!r} must not be async: write 'def', and await in reset()")
    if not callable(env_factory):
        name = type(env_factory).__name__
        advice = f": write 'return lambda: {name}(...)'" if isinstance(env_factory, Environment) else ""
        raise EvalError(
            f"the environment hook {env!r} must return a function that makes environments, got {env_factory!r}{advice}"
        )
    factory = cast(EnvFactory, env_factory)
    return factory if options.reward is None else _Rewarded(factory, load_reward(options.reward))


def takes_model(env: str | None) -> bool:
    """True if the hook takes a model factory, False if it takes the model's options."""
    return env is None or not _takes_config(load_object(env, HOOK))


class _Rewarded:
    """A factory whose environments have another reward function."""

    def __init__(self, factory: EnvFactory, reward_fn: Any) -> None:
        self.inner = factory
        self._takes_action = takes_action(factory)
        self.reward_fn = reward_fn

    async def __call__(self, action: Action) -> Environment:
        env: Environment = await make_environment(self.inner, action, self._takes_action)
        env.reward_fn = self.reward_fn
        return env


def _takes_config(hook: Any) -> bool:
    try:
        return list(inspect.signature(hook).parameters)[:1] == ["model_config"]
    except (TypeError, ValueError):  # a built-in without a signature
        return False
