"""Tasks of inspect_ai as environments, and the model provider `strands-rollout/...`; needs the package `inspect-ai`."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from strands_sglang.exceptions import install_command

if TYPE_CHECKING:
    from .inspect_env import InspectEnvironment, InspectReward
    from .inspect_tasks import InspectTaskError

__all__ = ["InspectEnvironment", "InspectReward", "InspectTaskError"]

_HOMES = {"InspectTaskError": "inspect_tasks"}


def check_inspect() -> None:
    """Check that tasks can be run here; an `ImportError` says what to install."""
    if importlib.util.find_spec("inspect_ai") is None:
        raise ImportError(f"tasks of inspect_ai need the package inspect-ai: {install_command('inspect')}")


def __getattr__(name: str) -> Any:
    """The names that need inspect-ai: loaded when they are asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    check_inspect()
    return getattr(importlib.import_module(f".{_HOMES.get(name, 'inspect_env')}", __name__), name)
