"""Ready-made environments."""

import sys

from .calculator import CalculatorEnv
from .chat import ChatEnv, ModelUser, ScriptedUser, SimulatedUser
from .math import MathEnv
from .mcp import MCPEnv, MCPTools
from .search import LocalSearch, Page, SearchEnv, SearchError, SearchHit, SearchProvider
from .web import WebSearch

if sys.platform != "win32":  # where no sandbox can be imported
    from .agent_world_model import AgentWorldModelEnv
    from .code_sandbox import AgentCoreCodeEnv, CodeMode, CodeSandboxEnv
    from .harness import Harness, HarnessEnvironment

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
