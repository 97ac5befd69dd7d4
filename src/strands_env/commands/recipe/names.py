"""Names as a user gives them: looked at before anything heavy is imported, and the objects at `module:attribute`."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from strands_env.eval.errors import DatasetError, EvalError
from strands_env.eval.options import DATA, REWARDS, is_run_file
from strands_env.eval.registry import BUILT_IN, check_data, has_prefix, list_benchmarks, unknown_benchmark
from strands_sglang.hints import did_you_mean

logger = logging.getLogger(__name__)

HOOK = "create_env_factory"
"""Function a module given as environment hook has to offer."""
EVALUATOR = "EvaluatorClass"
"""Class a module given as benchmark has to offer."""
ENVIRONMENTS = {
    "harbor": "strands_env.environments.harbor",
    "strands-harness": "strands_env.environments.strands_harness",
}
"""Environment hooks that have a name, and where they are."""


def checked_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a command, with the options of a file of a run that they name; see `with_run_file`.

    Raises:
        EvalError: The file is wrong, or a name is wrong at first sight.
    """
    merged = dict(arguments)
    if merged.get("from_run") is not None or is_run_file(merged.get("benchmark")):
        from strands_env.commands.recipe.run_file import with_run_file  # it loads pydantic

        merged = with_run_file(merged)
    run = merged.get("from_run")
    if run is not None and not (run.endswith(".jsonl") or os.path.exists(run)):  # x.run.json may be without results
        raise no_saved_run(run)
    check_names(merged)
    return merged


def no_saved_run(path: str) -> EvalError:
    """The error for a path without a saved run."""
    return EvalError(f"found no saved run at {path!r}: give its folder or x.run.json")


def check_names(arguments: Mapping[str, Any]) -> None:
    """Refuse benchmark, environment, reward and files of a command that are wrong at first sight.

    Raises:
        EvalError: There is no such benchmark, reward, module or file.
    """
    benchmark, data = arguments["benchmark"], arguments["data_path"]
    if benchmark and not has_prefix(benchmark) and benchmark not in (DATA, *list_benchmarks()):
        if ":" not in benchmark and "." not in benchmark:
            raise unknown_benchmark(benchmark)
        split_path(benchmark, EVALUATOR)
    if env := arguments["env"]:
        split_path(env, HOOK)
    if reward := arguments["reward"]:
        split_path(path_of_reward(reward), "reward")
    check_data(benchmark, data)
    if data and benchmark in (None, DATA, *BUILT_IN) and not os.path.exists(data):
        raise DatasetError(f"found no data file at {data!r}")


def path_of_reward(name: str) -> str:
    """The `module:attribute` of a reward: that of a name in `REWARDS`, or the one given."""
    if ":" in name or "." in name:
        return name
    if name not in REWARDS:
        names = ", ".join(REWARDS)
        raise EvalError(f"unknown reward {name!r}{did_you_mean(name, REWARDS)}; there are {names}, or module:attribute")
    return REWARDS[name]


def split_path(path: str, default: str) -> tuple[str, str]:
    """Module and attribute of `module:attribute`, or `default`; an `EvalError` where there can be no such module."""
    if default == HOOK:
        path = ENVIRONMENTS.get(path, path)
    module_name, _, attribute = path.partition(":")
    if Path(path).suffix in (".jsonl", ".json", ".parquet") and os.path.exists(path):
        raise EvalError(f"{path!r} is a file of data: give it as --data {path}")
    if module_name.endswith(".py"):
        module_path = ".".join(Path(module_name).with_suffix("").parts).lstrip(".")
        raise EvalError(f"{path!r} is a file: write it as a module, {f'{module_path}:{attribute or default}'!r}")
    if not module_name or module_name.startswith(".") or "/" in module_name:
        raise EvalError(
            f"{path!r} is not of the form module:attribute ('strands-env eval --list' shows benchmarks; "
            "data goes to --data)"
        )
    package = module_name.partition(".")[0]
    if package not in sys.modules and find_spec(package) is None:  # a loaded one may have no spec, as `__main__`
        raise _no_module(path, module_name)
    return module_name, attribute or default


def _no_module(path: str, module_name: str) -> EvalError:
    return EvalError(
        f"there is no module {module_name!r} to load {path!r} from: give module:attribute, and run where "
        "the module can be imported"
    )


def load_object(path: str, default: str) -> Any:
    """The object at `module:attribute`, or the attribute `default` of `module`."""
    module_name, attribute = split_path(path, default)
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        # The module itself is missing, or one that it imports: two mistakes with two remedies.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise EvalError(f"{path!r} cannot be imported: {error}") from error
        raise _no_module(path, module_name) from error
    except (Exception, SystemExit) as error:
        logger.warning("module=<%s> | importing it raised", module_name, exc_info=True)
        raise EvalError(f"{path!r} cannot be imported: {type(error).__name__}: {error} (-v shows where)") from error
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            if getattr(module, "__file__", None) is None and (Path(module_name) / f"{module_name}.py").is_file():
                raise EvalError(f"{path!r} is a folder here: run 'cd {module_name}' first")
            hint = did_you_mean(part, [name for name in dir(value) if not name.startswith("_")])
            raise EvalError(f"module {module_name!r} has no {attribute!r}{hint}: give module:attribute")
        value = getattr(value, part)
    return value
