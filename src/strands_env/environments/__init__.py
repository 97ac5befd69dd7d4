"""Ready-made environments."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .calculator import CalculatorEnv
from .chat import ActorUser, ChatEnv, ModelUser, ScriptedUser, SimulatedUser
from .math import MathEnv
from .mcp import MCPEnv, MCPTools
from .search import LocalSearch, Page, SearchEnv, SearchError, SearchHit, SearchProvider, WebSearch

if sys.platform != "win32":  # where no sandbox can be imported
    from .agent_world_model import AgentWorldModelEnv
    from .code_sandbox import AgentCoreCodeEnv, CodeMode, CodeSandboxEnv
    from .harness import Harness, HarnessEnvironment

__all__ = [
    "ActorUser",
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

if TYPE_CHECKING:
    from .harbor import HarborEnv as HarborEnv
    from .inspect import InspectEnvironment as InspectEnvironment
    from .strands_harness import StrandsHarnessEnv as StrandsHarnessEnv

_NEED_A_PACKAGE = {"HarborEnv": "harbor", "InspectEnvironment": "inspect", "StrandsHarnessEnv": "strands_harness"}


def __getattr__(name: str) -> Any:
    """An environment that needs a package of its own: it is loaded when it is asked for."""
    if name not in _NEED_A_PACKAGE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_NEED_A_PACKAGE[name]}", __name__), name)
