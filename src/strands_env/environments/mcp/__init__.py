"""Tools of servers that speak the Model Context Protocol."""

from __future__ import annotations

from .env import MCPEnv, MCPEnvironment
from .tools import MCPTools

__all__ = ["MCPEnv", "MCPEnvironment", "MCPTools"]
