"""Objects named as `module:attribute`: benchmarks, rewards, and hooks that make environments."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from strands_env.commands.recipe.names import EVALUATOR, load_object, path_of_reward
from strands_env.commands.recipe.task_files import DataBenchmark, benchmark_of, name_errors
from strands_env.core.scoring import as_reward_function
from strands_env.eval import Evaluator, get_benchmark, list_benchmarks
from strands_env.eval.errors import EvalError
from strands_env.eval.options import DATA
from strands_env.eval.registry import has_prefix


def benchmark_of_data(path: str) -> str:
    """The benchmark that reads these data where none is named: a folder of container tasks, or the rows of a file."""
    folder = Path(path)
    # `tasks.txt`: what `strands-env check --data TASKS -o FOLDER` wrote.
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
    """Call a user's function, naming it in what it raises."""
    with name_errors(what, EvalError, ModuleNotFoundError):
        try:
            return function(*args, **options)
        except NotImplementedError as error:
            raise EvalError(str(error)) from error
