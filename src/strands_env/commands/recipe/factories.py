"""Benchmarks, rewards, models and environments from plain values, so that any process can make them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from strands_env.commands.recipe.names import EVALUATOR, HOOK, load_object, path_of_reward
from strands_env.commands.recipe.task_files import DataBenchmark, benchmark_of, name_errors
from strands_env.core import Action, Environment, ModelFactory
from strands_env.core.backends import BACKENDS, model_factory_from_args
from strands_env.core.rollout import EnvFactory, make_environment, takes_action
from strands_env.core.scoring import as_reward_function
from strands_env.eval import Evaluator, get_benchmark, list_benchmarks
from strands_env.eval.errors import EvalError
from strands_env.eval.options import DATA, EvalOptions
from strands_env.eval.registry import has_prefix
from strands_sglang.command_line import what_to_install
from strands_sglang.exceptions import BackendError, StrandsSGLangError


def benchmark_of_data(path: str) -> str:
    """The benchmark that reads these data where none is named: a folder of container tasks, or the rows of a file."""
    folder = Path(path)
    # `tasks.txt` is written by `strands-env check --data TASKS -o FOLDER`.
    names = ("tasks.txt", "task.toml", "*/task.toml", "tasks/*/task.toml")
    is_tasks = folder.is_dir() and any(any(folder.glob(name)) for name in names)
    return "harbor" if is_tasks else DATA


def load_evaluator(name: str) -> type[Evaluator]:
    """A registered benchmark, or the one at `module:attribute`.

    The attribute is an `Evaluator` class, or a function that returns the tasks.
    """
    if name == DATA:
        return DataBenchmark
    if has_prefix(name) or name in list_benchmarks() or (":" not in name and "." not in name):
        return get_benchmark(name)
    value = load_object(name, EVALUATOR)
    if isinstance(value, type) and issubclass(value, Evaluator):
        return value
    if not callable(value):
        raise EvalError(f"{name!r} must be an Evaluator class or a function that returns tasks, got {value!r}")
    return benchmark_of(name, value)


def load_reward(name: str) -> Any:
    """A reward function by name: one of `REWARDS`, or the one at `module:attribute`.

    The attribute is a reward function, a plain function of action and result, or a class made without arguments.
    """
    reward = load_object(path_of_reward(name), "reward")
    what = f"the reward {name!r}"
    if inspect.isclass(reward):
        reward = call_user(what, reward)
    try:
        as_reward_function(reward)
    except TypeError as error:
        raise EvalError(f"{what}: {error}") from error
    return reward


def call_user(what: str, function: Any, *args: Any, **options: Any) -> Any:
    """Call a user's function, naming it in its errors."""
    with name_errors(what, EvalError, ModuleNotFoundError):
        try:
            return function(*args, **options)
        except NotImplementedError as error:
            raise EvalError(str(error)) from error


# ---- models ----------------------------------------------------------------------------------------------------------


class DeferredModels:
    """A model factory that loads its model when it is first called or asked for an attribute.

    So mistakes in an environment are reported before the seconds or minutes that loading a model takes.
    """

    def __init__(self, load: Callable[[], ModelFactory]) -> None:
        self._load = load

    @cached_property
    def _outcome(self) -> ModelFactory | Exception:
        try:
            return self._load()
        except Exception as error:  # loading takes minutes: a second try would only repeat it
            return error

    def load(self) -> ModelFactory:
        """The model factory itself; raises the error of loading, also when asked again."""
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    def __call__(self) -> Any:
        """A model."""
        return self.load()()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked for by protocols such as `copy`'s
            raise AttributeError(name)
        return getattr(self.load(), name)


def make_model_factory(options: EvalOptions) -> ModelFactory:
    """The model factory for options."""
    backend = options.backend
    more: dict[str, Any] = {"script": options.script} if backend == "scripted" else dict(options.model_options or {})
    if options.tool_parser is not None or backend == "local":
        more["tool_parser"] = options.tool_parser or "hermes"
    try:
        models = model_factory_from_args(
            backend,
            sglang_base_url=options.base_url,
            model_id=options.model_id,
            tokenizer=options.tokenizer,
            sampling_params=dict(options.sampling or {}) or None,
            **more,
        )
        if BACKENDS[backend].has_tokens:
            models()  # a wrong sampling parameter fails here, not in every sample
        return models
    except BackendError:
        raise
    except OSError as error:
        raise EvalError(f"the model of the backend {backend!r} cannot be made: {error}") from error
    except ImportError as error:
        raise EvalError(what_to_install(error) or str(error)) from error
    except (ValueError, StrandsSGLangError) as error:
        raise EvalError(str(error)) from error


def loading(options: EvalOptions) -> str | None:
    """Sentence for a display while `make_model_factory` works on these options; None if that takes no time."""
    if options.backend == "local":
        from strands_sglang.backends.engine.loader import default_model_cached

        name = options.model_id or "smollm2"
        if name == "smollm2" and not default_model_cached():
            return "downloading and converting the model smollm2 (93 MB, once)"
        return f"loading the model {name}"
    if "base_url" not in BACKENDS[options.backend].needs:
        return None
    return f"asking the server at {options.base_url} for its model, and loading the tokenizer"


# ---- environments ----------------------------------------------------------------------------------------------------


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
            make = load_evaluator(str(benchmark)).environment
            env_factory = call_user(f"the environment of {benchmark!r}", make, policy, **arguments)
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
