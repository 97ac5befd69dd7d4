"""Tasks in Harbor's format (Terminal-Bench, SWE-bench and others); needs the package `harbor` and Python 3.12."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from strands_sglang.exceptions import install_command

from .outcome import NotMeasuredError, TaskFailedError

if TYPE_CHECKING:
    from .checkpoints import Checkpoint, CheckpointError
    from .harbor_env import HarborEnv
    from .trial import TaskTrial

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "HarborEnv",
    "NotMeasuredError",
    "TaskFailedError",
    "TaskTrial",
    "create_env_factory",
]

_HOMES = {
    "Checkpoint": "checkpoints",
    "CheckpointError": "checkpoints",
    "HarborEnv": "harbor_env",
    "TaskTrial": "trial",
}


def check_harbor() -> None:
    """Check that tasks can be run here.

    Raises:
        ImportError: Python is too old, or the package is missing; the message says what to do.
    """
    running = tuple(sys.version_info[:2])
    if running < (3, 12):
        raise ImportError(
            f"tasks in Harbor's format need the package harbor, which needs Python 3.12 or later; this is Python "
            f"{running[0]}.{running[1]}"
        )
    if importlib.util.find_spec("harbor") is None:
        raise ImportError(f"tasks in Harbor's format need the package harbor: {install_command('harbor')}")


def create_env_factory(model_factory: Any, **options: Any) -> Any:
    """The factory for `--env harbor`: each action's environment; its context has `task_dir` and, perhaps, `work`."""
    check_harbor()
    from .harbor_env import HarborEnv

    if options.get("agent") == "strands-harness":
        importlib.import_module("strands_env.environments.strands_harness")  # its package is missing now, not later

    def make(action: Any) -> HarborEnv:
        of_task = {name: getattr(action.task_context, name, None) for name in ("task_dir", "work")}
        return HarborEnv(model_factory=model_factory, **{**of_task, **options})

    return make


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    check_harbor()
    value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value
