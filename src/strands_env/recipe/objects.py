"""Objects named as `module:attribute`: benchmarks, rewards, and hooks that make environments."""

from __future__ import annotations

import inspect
import logging
from importlib import import_module
from pathlib import Path
from typing import Any

from strands_env.core.scoring import as_reward_function
from strands_env.eval import Evaluator, get_benchmark, list_benchmarks
from strands_env.eval.errors import EvalError
from strands_env.options import REWARDS
from strands_env.recipe.tasks import DataBenchmark, benchmark_of, name_errors
from strands_sglang.exceptions import did_you_mean

logger = logging.getLogger(__name__)

HOOK = "create_env_factory"
"""Function a module given as environment hook has to offer."""
EVALUATOR = "EvaluatorClass"
"""Class a module given as benchmark has to offer."""
DATA = DataBenchmark.benchmark_name
ENVIRONMENTS = {
    "harbor": "strands_env.environments.harbor",
    "strands-harness": "strands_env.environments.strands_harness",
}
"""Environment hooks that have a name, and where they are."""


def benchmark_of_data(path: str) -> str:
    """The benchmark that reads these data where none is named: a folder of container tasks, or the rows of a file."""
    folder = Path(path)
    # `tasks.txt`: what `strands-env check --data TASKS -o FOLDER` wrote.
    names = ("tasks.txt", "task.toml", "*/task.toml", "tasks/*/task.toml")
    is_tasks = folder.is_dir() and any(any(folder.glob(name)) for name in names)
    return "harbor" if is_tasks else DATA


def load_object(path: str, default: str) -> Any:
    """The object at `module:attribute`, or the attribute `default` of `module`."""
    if default == HOOK:
        path = ENVIRONMENTS.get(path, path)
    module_name, _, attribute = path.partition(":")
    if Path(path).suffix in (".jsonl", ".json", ".parquet") and Path(path).exists():
        raise EvalError(f"{path!r} is a file of data: give it as --data {path}")
    if module_name.endswith(".py"):
        module_path = ".".join(Path(module_name).with_suffix("").parts).lstrip(".")
        raise EvalError(f"{path!r} is a file: write it as a module, {f'{module_path}:{attribute or default}'!r}")
    if not module_name or module_name.startswith(".") or "/" in module_name:
        raise EvalError(
            f"{path!r} is not of the form module:attribute ('strands-env eval --list' shows benchmarks; "
            "data goes to --data)"
        )
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        # The module itself is missing, or one that it imports: two mistakes with two remedies.
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
    """
    if name == DATA:
        return DataBenchmark
    if name in list_benchmarks() or (":" not in name and "." not in name):
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
    if ":" not in name and "." not in name:
        if name not in REWARDS:
            names = ", ".join(REWARDS)
            raise EvalError(
                f"unknown reward {name!r}{did_you_mean(name, REWARDS)}; there are {names}, or module:attribute"
            )
        reward = load_object(REWARDS[name], "")
    else:
        reward = load_object(name, "reward")
    what = f"the reward {name!r}"
    if inspect.isclass(reward):
        reward = call_user(what, reward)
    try:
        as_reward_function(reward)
    except TypeError as error:
        raise EvalError(f"{what}: {error}") from error
    return reward


def call_user(what: str, function: Any, *args: Any, **options: Any) -> Any:
    """Call a user's function, naming it in what it raises."""
    with name_errors(what, EvalError, ModuleNotFoundError):
        try:
            return function(*args, **options)
        except NotImplementedError as error:
            raise EvalError(str(error)) from error
