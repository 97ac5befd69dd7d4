"""Ready-made environments."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .calculator import CalculatorEnv
    from .chat import ActorUser, ChatEnv, ModelUser, ScriptedUser, SimulatedUser
    from .code_sandbox import CodeMode, CodeSandboxEnv
    from .harbor import HarborEnv as HarborEnv
    from .harness import Harness, HarnessEnvironment
    from .inspect import InspectEnvironment as InspectEnvironment
    from .math import MathEnv
    from .mcp import MCPEnv, MCPTools
    from .openenv import OpenEnvEnvironment
    from .search import Page, SearchEnv, SearchError, SearchHit, SearchProvider, WebSearch
    from .strands_harness import StrandsHarnessEnv as StrandsHarnessEnv
    from .verifiers_env import VerifiersEnvironment as VerifiersEnvironment

__all__ = [
    "ActorUser",
    "CalculatorEnv",
    "ChatEnv",
    "CodeMode",
    "CodeSandboxEnv",
    "Harness",
    "HarnessEnvironment",
    "MCPEnv",
    "MCPTools",
    "MathEnv",
    "ModelUser",
    "OpenEnvEnvironment",
    "Page",
    "ScriptedUser",
    "SearchEnv",
    "SearchError",
    "SearchHit",
    "SearchProvider",
    "SimulatedUser",
    "WebSearch",
]

# The module of each name; four need a package of their own.
_HOMES = {
    "CalculatorEnv": ".calculator",
    **dict.fromkeys(("ActorUser", "ChatEnv", "ModelUser", "ScriptedUser", "SimulatedUser"), ".chat"),
    **dict.fromkeys(("CodeMode", "CodeSandboxEnv"), ".code_sandbox"),
    "HarborEnv": ".harbor",
    **dict.fromkeys(("Harness", "HarnessEnvironment"), ".harness"),
    "InspectEnvironment": ".inspect",
    "MathEnv": ".math",
    **dict.fromkeys(("MCPEnv", "MCPTools"), ".mcp"),
    "OpenEnvEnvironment": ".openenv",
    **dict.fromkeys(("Page", "SearchEnv", "SearchError", "SearchHit", "SearchProvider", "WebSearch"), ".search"),
    "StrandsHarnessEnv": ".strands_harness",
    "VerifiersEnvironment": ".verifiers_env",
}


def __getattr__(name: str) -> Any:
    # A calculator needs neither an HTTP client nor sandboxes, which are not on every system.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(_HOMES[name], __name__), name)
    return value
