"""Tools for environments: a calculator, code in a sandbox, and limits and a cache around any tool. Loaded when used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# At once: a tool of its module's name would be hidden by the module otherwise.
from .calculator import CalculatorError, calculate, calculator

if TYPE_CHECKING:
    from ..core.limits import with_limits, with_timeout
    from ..core.threads import DaemonThreads
    from ..sandbox.agentcore import CodeInterpreterQuotas
    from .cache import cached
    from .code import CodeTools
    from .code_interpreter import CodeInterpreterToolkit

__all__ = [
    "CalculatorError",
    "CodeInterpreterQuotas",
    "CodeInterpreterToolkit",
    "CodeTools",
    "DaemonThreads",
    "cached",
    "calculate",
    "calculator",
    "with_limits",
    "with_timeout",
]

_MODULES = {
    ".cache": ("cached",),
    ".code": ("CodeTools",),
    "..sandbox.agentcore": ("CodeInterpreterQuotas",),
    ".code_interpreter": ("CodeInterpreterToolkit",),
    "..core.limits": ("with_limits", "with_timeout"),
    "..core.threads": ("DaemonThreads",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name], __name__), name)
    globals()[name] = value
    return value
