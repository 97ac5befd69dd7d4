"""Environment hooks, benchmarks and models of the command line, in this process or a worker."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, cast

from strands_env.commands.tasks import DATA, DataBenchmark, FunctionBenchmark, benchmark_of
from strands_env.core import Action, Environment, ModelFactory
from strands_env.core.result import as_reward_function
from strands_env.core.rollout import make_environment, takes_action
from strands_env.eval.benchmark import Benchmark
from strands_env.eval.errors import EvalError
from strands_env.eval.evaluator import Evaluator
from strands_env.eval.executor import EnvFactory
from strands_env.eval.registry import get_benchmark, list_benchmarks
from strands_sglang.backends.engine.own_models import UnknownModelError, check_model_name
from strands_sglang.command_line import what_to_install
from strands_sglang.exceptions import SGLangClientError, StrandsSGLangError, did_you_mean

logger = logging.getLogger(__name__)

HOOK = "create_env_factory"
"""Function a module given as environment hook has to offer."""
REWARDS = {
    "exact": "strands_env.rewards:ExactMatchReward",
    "math": "strands_env.rewards:MathRewardFunction",
    "number": "strands_env.eval.benchmarks.arithmetic:NumberReward",
}
"""Reward functions that have a name on the command line."""
EVALUATOR = "EvaluatorClass"
"""Class a module given as benchmark has to offer."""


def load_object(path: str, default: str) -> Any:
    """The object at `module:attribute`, or the attribute `default` of `module`.

    Raises:
        EvalError: There is no such module or attribute.
    """
    module_name, _, attribute = path.partition(":")
    if Path(path).suffix in (".jsonl", ".json", ".parquet") and Path(path).exists():
        raise EvalError(f"{path!r} is a file of data: give it as --data {path}")
    if module_name.endswith(".py"):
        named = ".".join(Path(module_name).with_suffix("").parts).lstrip(".")
        raise EvalError(f"{path!r} is a file: write it as a module, {f'{named}:{attribute or default}'!r}")
    if not module_name or module_name.startswith(".") or "/" in module_name:
        raise EvalError(
            f"{path!r} is not of the form module:attribute ('strands-env list' shows benchmarks; data goes to --data)"
        )
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise EvalError(f"{path!r} cannot be imported: {error}") from error
        raise EvalError(
            f"there is no module {module_name!r} to load {path!r} from: give module:attribute, and run where "
            "the module can be imported"
        ) from error
    except (Exception, SystemExit) as error:
        logger.warning("module=<%s> | importing it raised", module_name, exc_info=True)
        raise EvalError(f"{path!r} cannot be imported: {type(error).__name__}: {error} (-v shows where)") from error
    value: Any = module
    for part in (attribute or default).split("."):
        if not hasattr(value, part):
            if getattr(module, "__file__", None) is None and (Path(module_name) / f"{module_name}.py").is_file():
                raise EvalError(f"{path!r} is a folder here: run 'cd {module_name}' first")
            hint = did_you_mean(part, [name for name in dir(value) if not name.startswith("_")])
            raise EvalError(f"module {module_name!r} has no {attribute or default!r}{hint}: give module:attribute")
        value = getattr(value, part)
    return value


def load_evaluator(name: str) -> type[Evaluator]:
    """A registered benchmark, or the one at `module:attribute`.

    The attribute is an `Evaluator` class, or a function that returns the tasks.

    Raises:
        EvalError: There is none.
    """
    if name == DATA:
        return DataBenchmark
    if name in list_benchmarks() or (":" not in name and "." not in name):
        return get_benchmark(name)
    found = load_object(name, EVALUATOR)
    if isinstance(found, type) and issubclass(found, Evaluator):
        return found
    if not callable(found):
        raise EvalError(f"{name!r} must be an Evaluator class or a function that returns tasks, got {found!r}")
    return benchmark_of(name, found)


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
        reward: What scores instead of the environment's own reward; see `load_reward`.
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
        made: Any = _called(f"the environment hook {env!r}", hook, first, **options)
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
    factory = _called(what, evaluator.environment, make_models(), **options)
    return _tried(what, cast(EnvFactory, factory), when=bool(options))


class DeferredModels:
    """A model factory that loads its model when it is first called or asked for an attribute.

    So mistakes in an environment are reported before the seconds or minutes that loading a model takes.

    Args:
        load: Makes the model factory.
    """

    def __init__(self, load: Callable[[], ModelFactory]) -> None:
        self._load = load
        self._loaded: ModelFactory | None = None
        self._failure: Exception | None = None

    def load(self) -> ModelFactory:
        """The model factory itself; raises what loading raised, also when it is asked for again."""
        if self._failure is not None:
            raise self._failure
        if self._loaded is None:
            try:
                self._loaded = self._load()
            except Exception as error:
                self._failure = error
                raise
        return self._loaded

    def __call__(self) -> Any:
        """A model."""
        return self.load()()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked for by protocols such as `copy`'s
            raise AttributeError(name)
        return getattr(self.load(), name)


class _ModelNeededError(Exception):
    """The environment wants the model that is not loaded yet."""


def _refuse_to_load() -> NoReturn:
    raise _ModelNeededError


def takes_model(env: str | None) -> bool:
    """Whether the environment of a hook is given a model factory, and not the model's options."""
    return env is None or not _takes_config(load_object(env, HOOK))


def check_benchmark_environment(benchmark: str, options: Mapping[str, Any] | None) -> None:
    """Make a benchmark's own environment without a model, so that a missing package is reported before one is loaded.

    Args:
        benchmark: Its name.
        options: Options of the environment.

    Raises:
        EvalError: It has none, or it cannot be made.
    """
    try:
        _benchmark_environment(benchmark, dict(options or {}), lambda: DeferredModels(_refuse_to_load))
    except EvalError as error:
        if not isinstance(error.__cause__, _ModelNeededError):
            raise


def check_sampling(backend: str, params: Mapping[str, Any]) -> None:
    """Refuse sampling parameters that an SGLang server or the embedded engine would refuse.

    Raises:
        EvalError: One is unknown, or its value is out of range.
    """
    if backend not in ("local", "sglang"):
        return
    from strands_sglang.backends.sglang.sampling import validate_sampling_params

    try:
        validate_sampling_params(params)
    except SGLangClientError as error:
        raise EvalError(str(error)) from error


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


def load_reward(name: str) -> Any:
    """A reward function by name: one of `REWARDS`, or the one at `module:attribute`.

    The attribute is a reward function, a plain function of action and result, or a class made without arguments.

    Raises:
        EvalError: There is none, or it is something else.
    """
    if ":" not in name and "." not in name:
        if name not in REWARDS:
            known = ", ".join(REWARDS)
            raise EvalError(
                f"unknown reward {name!r}{did_you_mean(name, REWARDS)}; there are {known}, or module:attribute"
            )
        found = load_object(REWARDS[name], "")
    else:
        found = load_object(name, "reward")
    what = f"the reward {name!r}"
    if inspect.isclass(found):
        found = _called(what, found)
    try:
        as_reward_function(found)
    except TypeError as error:
        raise EvalError(f"{what}: {error}") from error
    return found


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


def _called(what: str, function: Any, *args: Any, **options: Any) -> Any:
    """Call a user's function, naming it in what it raises."""
    try:
        return function(*args, **options)
    except (EvalError, ModuleNotFoundError):
        raise
    except NotImplementedError as error:
        raise EvalError(str(error)) from error
    except Exception as error:
        logger.warning("what=<%s> | it raised", what, exc_info=True)
        raise EvalError(f"{what} cannot be made: {type(error).__name__}: {error} (-v shows where)") from error


def make_model_factory(
    *,
    backend: str,
    model_id: str | None = None,
    base_url: str | None = None,
    tokenizer: str | None = None,
    tool_parser: str | None = None,
    sampling_params: Mapping[str, Any] | None = None,
    script: str = "I do not know.",
    script_delay: float = 0.0,
) -> ModelFactory:
    """The model factory for plain values.

    Args:
        backend: `local`, `sglang`, `openai`, `bedrock`, or `scripted` (answers always the same, for trying things).
        model_id: Model.
        base_url: Server.
        tokenizer: Tokenizer.
        tool_parser: Reader of tool calls.
        sampling_params: Sampling parameters.
        script: Answer of the scripted model.
        script_delay: Seconds each of its calls takes.

    Raises:
        EvalError: Something is missing, unknown or cannot be loaded.
        SGLangClientError: The server does not answer.
    """
    if backend == "scripted":
        from strands_env.testing import ScriptedModel

        return lambda: ScriptedModel(lambda messages: script, delay=script_delay)
    from strands_env.core.models import model_factory_from_args

    check_named_models(backend, model_id, tokenizer)
    options: dict[str, Any] = {}
    if tool_parser is not None or backend == "local":
        from strands_sglang import get_tool_parser

        options["tool_parser"] = get_tool_parser(tool_parser or "hermes")
    try:
        made = model_factory_from_args(
            backend,
            sglang_base_url=base_url,
            model_id=model_id,
            tokenizer=tokenizer,
            sampling_params=dict(sampling_params or {}) or None,
            **options,
        )
        if backend in ("local", "sglang"):
            made()  # a wrong sampling parameter fails here, not in every sample
        return made
    except SGLangClientError:
        raise
    except OSError as error:
        raise EvalError(f"the model of the backend {backend!r} cannot be made: {error}") from error
    except ImportError as error:
        raise EvalError(what_to_install(error) or str(error)) from error
    except (ValueError, StrandsSGLangError) as error:
        raise EvalError(str(error)) from error


def check_named_models(backend: str, model_id: str | None, tokenizer: str | None) -> None:
    """Refuse names that cannot be models, before anything is loaded.

    Raises:
        EvalError: One cannot be a model.
    """
    for name in (model_id if backend == "local" else None, tokenizer):
        try:
            if name is not None:
                check_model_name(name)
        except UnknownModelError as error:
            raise EvalError(str(error)) from error


def loading(options: Mapping[str, Any]) -> str | None:
    """What making the model will do, in words, for a display; None where it takes no time.

    Args:
        options: Options of `make_model_factory`.
    """
    match options["backend"]:
        case "local":
            name = options.get("model_id") or "smollm2"
            from strands_sglang.backends.engine.loader import default_model_cached

            if name == "smollm2" and not default_model_cached():
                return "downloading and converting the model smollm2 (93 MB, once)"
            return f"loading the model {name}"
        case "sglang":
            return f"asking the server at {options.get('base_url')} for its model, and loading the tokenizer"
    return None
