"""Ready-made environments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strands_sglang.compat import names_on_use

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

# A calculator needs neither an HTTP client nor sandboxes, which are not on every system.
__getattr__, __dir__ = names_on_use(
    __name__,
    {
        ".calculator": ("CalculatorEnv",),
        ".chat": ("ActorUser", "ChatEnv", "ModelUser", "ScriptedUser", "SimulatedUser"),
        ".code_sandbox": ("CodeMode", "CodeSandboxEnv"),
        ".harbor": ("HarborEnv",),
        ".harness": ("Harness", "HarnessEnvironment"),
        ".inspect": ("InspectEnvironment",),
        ".math": ("MathEnv",),
        ".mcp": ("MCPEnv", "MCPTools"),
        ".openenv": ("OpenEnvEnvironment",),
        ".search": ("Page", "SearchEnv", "SearchError", "SearchHit", "SearchProvider", "WebSearch"),
        ".strands_harness": ("StrandsHarnessEnv",),
        ".verifiers_env": ("VerifiersEnvironment",),
    },
)
