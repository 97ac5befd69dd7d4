"""`MCPEnv`: an agent with the tools of MCP servers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from strands_env.core import Environment

from .tools import MCPTools

if TYPE_CHECKING:
    from strands.tools.mcp import MCPClient


class MCPEnv(Environment):
    """Tools over the Model Context Protocol.

    Args:
        tools: Connections that the caller opens and closes, shared among environments: the usual case.
        mcp_client: A client of this environment's own, not started: connected by `reset`, disconnected by `cleanup`.
            For servers with a state that each episode needs afresh.
        **options: Further arguments of `Environment`.

    Raises:
        ValueError: Not exactly one of `tools` and `mcp_client` was given.
    """

    default_system_prompt_path = Path(__file__).parent / "system_prompt.md"

    def __init__(self, *, tools: MCPTools | None = None, mcp_client: MCPClient | None = None, **options: Any) -> None:
        super().__init__(**options)
        if (tools is None) == (mcp_client is None):
            raise ValueError(
                "give either tools=MCPTools(...), opened once for all rollouts, or mcp_client=MCPClient(...)"
            )
        self._own = None if mcp_client is None else MCPTools(mcp_client)
        self._shared = tools

    def get_tools(self) -> list[Any]:
        """The tools of the servers.

        Raises:
            RuntimeError: The servers are not connected.
        """
        source = self._shared or self._own
        assert source is not None
        return list(source.tools)

    async def reset(self) -> None:
        """Connect the environment's own client, if it has one, to a fresh server."""
        if self._own is not None:
            await self._own.close()
            await self._own.open()

    async def cleanup(self) -> None:
        """Disconnect the environment's own client, if it has one."""
        if self._own is not None:
            await self._own.close()


MCPEnvironment = MCPEnv
"""The earlier name of `MCPEnv`."""
