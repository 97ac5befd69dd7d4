"""Environment factories from names and plain values, so that any process can make them."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, cast

from strands_env.core import Action, Environment, ModelFactory
from strands_env.core.rollout import EnvFactory, make_environment, takes_action
from strands_env.eval.errors import EvalError
from strands_env.eval.run.benchmark import Benchmark
from strands_env.recipe.models import DeferredModels, make_model_factory
from strands_env.recipe.objects import HOOK, called, load_evaluator, load_object, load_reward
from strands_env.recipe.tasks import FunctionBenchmark

logger = logging.getLogger(__name__)


def make_env_factory(
    *,
    benchmark: str,
    env: str | None,
    env_config: Mapping[str, Any] | None = None,
    reward: str | None = None,
    model: Mapping[str, Any] | None = None,
    models: ModelFactory | None = None,
) -> EnvFactory:
    """The environment factory for names and plain values, so that any process can make it.

    Args:
        benchmark: Benchmark whose environment is taken when `env` is None.
        env: Hook: `module:function` (or `module` with `create_env_factory`) that takes a model factory, or the model's
            options where its argument is called `model_config`, and returns an environment factory; or an
            `Environment` class.
        env_config: Keyword arguments of the hook.
        reward: Scores instead of the environment's own reward; see `load_reward`.
        model: Options of `make_model_factory`.
        models: A model factory, instead of `model`.
    """

    def make_models() -> ModelFactory:
        return models or make_model_factory(**(model or {}))

    made = _env_factory(benchmark, env, dict(env_config or {}), model or {}, make_models)
    return made if reward is None else _Rewarded(made, load_reward(reward))


def _env_factory(
    benchmark: str,
    env: str | None,
    options: dict[str, Any],
    model: Mapping[str, Any],
    make_models: Callable[[], ModelFactory],
) -> EnvFactory:
    if env is not None:
        hook = load_object(env, HOOK)
        if isinstance(hook, type) and issubclass(hook, Environment):
            environment, models = hook, make_models()
            return _tried(
                f"the environment {env!r}", lambda: environment(model_factory=models, **options), when=bool(options)
            )
        if not callable(hook):
            raise EvalError(f"the environment hook {env!r} must be a function or an Environment class, got {hook!r}")
        first: Any = dict(model) if _takes_config(hook) else make_models()
        made: Any = called(f"the environment hook {env!r}", hook, first, **options)
        if inspect.iscoroutine(made):
            made.close()
            raise EvalError(f"the environment hook {env!r} must not be async: write 'def', and await in reset()")
        if not callable(made):
            name = type(made).__name__
            advice = f": write 'return lambda: {name}(...)'" if isinstance(made, Environment) else ""
            raise EvalError(
                f"the environment hook {env!r} must return a function that makes environments, got {made!r}{advice}"
            )
        return cast(EnvFactory, made)
    return _benchmark_environment(benchmark, options, make_models)


def _benchmark_environment(
    benchmark: str, options: dict[str, Any], make_models: Callable[[], ModelFactory]
) -> EnvFactory:
    evaluator = load_evaluator(benchmark)
    if not issubclass(evaluator, Benchmark):
        raise EvalError(f"{benchmark!r} has no environment of its own: name one (--env module:function)")
    if issubclass(evaluator, FunctionBenchmark):
        raise EvalError(f"{benchmark!r} only gives tasks and has no environment of its own: name one with --env")
    what = f"the environment of {benchmark!r}"
    factory = called(what, evaluator.environment, make_models(), **options)
    return _tried(what, cast(EnvFactory, factory), when=bool(options))


class _ModelNeededError(Exception):
    """The environment wants the model that is not loaded yet."""


def _refuse_to_load() -> NoReturn:
    raise _ModelNeededError


def takes_model(env: str | None) -> bool:
    """True if the hook takes a model factory, False if it takes the model's options."""
    return env is None or not _takes_config(load_object(env, HOOK))


def check_benchmark_environment(benchmark: str, options: Mapping[str, Any] | None) -> None:
    """Make a benchmark's own environment without a model, so that a missing package is reported before it is loaded."""
    try:
        _benchmark_environment(benchmark, dict(options or {}), lambda: DeferredModels(_refuse_to_load))
    except EvalError as error:
        if not isinstance(error.__cause__, _ModelNeededError):
            raise


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


def _tried(what: str, factory: EnvFactory, *, when: bool) -> EnvFactory:
    """The factory; where options were given, after a first environment: a wrong one would fail every sample alike."""
    if when and not takes_action(factory):
        try:
            made = factory()
            if inspect.iscoroutine(made):
                made.close()
        except (TypeError, ValueError) as error:
            logger.warning("what=<%s> | it raised", what, exc_info=True)
            raise EvalError(f"{what} cannot be made: {error} (--env-config; -v shows where)") from error
        except Exception as error:  # what it needs may only exist in a rollout
            logger.debug("what=<%s>, error=<%r> | it cannot be tried beforehand", what, error)
    return factory
