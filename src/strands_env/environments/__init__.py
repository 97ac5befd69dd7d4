"""Ready-made environments. Each is loaded when it is first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agent_world_model import AgentWorldModelEnv
    from .calculator import CalculatorEnv
    from .chat import ChatEnv, ModelUser, ScriptedUser, SimulatedUser
    from .code_sandbox import AgentCoreCodeEnv, CodeMode, CodeSandboxEnv
    from .harness import Harness, HarnessEnvironment
    from .math import MathEnv
    from .mcp import MCPEnv, MCPTools
    from .search import LocalSearch, Page, SearchEnv, SearchError, SearchHit, SearchProvider
    from .web import WebSearch

__all__ = [
    "AgentCoreCodeEnv",
    "AgentWorldModelEnv",
    "CalculatorEnv",
    "ChatEnv",
    "CodeMode",
    "CodeSandboxEnv",
    "Harness",
    "HarnessEnvironment",
    "LocalSearch",
    "MCPEnv",
    "MCPTools",
    "MathEnv",
    "ModelUser",
    "Page",
    "ScriptedUser",
    "SearchEnv",
    "SearchError",
    "SearchHit",
    "SearchProvider",
    "SimulatedUser",
    "WebSearch",
]

_MODULES = {
    "agent_world_model": ("AgentWorldModelEnv",),
    "calculator": ("CalculatorEnv",),
    "chat": ("ChatEnv", "ModelUser", "ScriptedUser", "SimulatedUser"),
    "code_sandbox": ("AgentCoreCodeEnv", "CodeMode", "CodeSandboxEnv"),
    "harness": ("Harness", "HarnessEnvironment"),
    "math": ("MathEnv",),
    "mcp": ("MCPEnv", "MCPTools"),
    "search": ("LocalSearch", "Page", "SearchEnv", "SearchError", "SearchHit", "SearchProvider"),
    "web": ("WebSearch",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value
