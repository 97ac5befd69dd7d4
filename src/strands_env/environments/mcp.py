"""`MCPEnv`: an agent with the tools of servers that speak the Model Context Protocol."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from strands_env.core import Environment
from strands_env.core.deadline import run_shielded
from strands_env.core.limits import DEFAULT_MAX_OUTPUT_CHARS, DEFAULT_TIMEOUT, with_limits
from strands_env.core.termination import Phase
from strands_env.core.threads import default_threads

if TYPE_CHECKING:
    from strands.tools.mcp import MCPClient
    from strands.types.tools import AgentTool

logger = logging.getLogger(__name__)


class MCPTools:
    """Open before the rollouts, close after them; in between any number of environments may use the tools.

    ```python
    async with MCPTools(MCPClient(url="http://127.0.0.1:8000/mcp")) as tools:
        env = MCPEnv(model_factory=factory, tools=tools)
    ```

    The SDK can start a server while it builds an agent, too, but that blocks the event loop of all rollouts.

    Args:
        *clients: The SDK's `MCPClient` objects, not started.
        timeout: Seconds a tool call may take; None for no limit.
        max_output_chars: Characters of text in a tool result; None for no limit.

    Raises:
        ValueError: No client was given.
    """

    def __init__(
        self,
        *clients: MCPClient,
        timeout: float | None = DEFAULT_TIMEOUT,
        max_output_chars: int | None = DEFAULT_MAX_OUTPUT_CHARS,
    ) -> None:
        if not clients:
            raise ValueError("MCPTools needs at least one MCPClient")
        self._clients = clients
        self._timeout = timeout
        self._max_output_chars = max_output_chars
        self._started: list[MCPClient] = []
        self._tools: list[AgentTool] | None = None

    @property
    def tools(self) -> Sequence[AgentTool]:
        """The tools of all servers, with their limits; `RuntimeError` while the connections are not open."""
        if self._tools is None:
            raise RuntimeError("the MCP servers are not connected: use 'async with MCPTools(...)' or await open()")
        return self._tools

    async def open(self) -> None:
        """Connect to all servers and list their tools; all or none.

        Raises:
            MCPClientInitializationError: A server does not start or answer.
            ValueError: Two servers have a tool of the same name; give one client a prefix.
        """
        if self._tools is not None:
            return
        try:
            tools: list[AgentTool] = []
            for client in self._clients:
                # A start cannot be stopped half-way; the client's startup_timeout bounds it.
                await run_shielded(self._start(client), None, Phase.SETUP)
                page = await default_threads.run(client.list_tools_sync)
                tools += page
                while (token := getattr(page, "pagination_token", None)) is not None:
                    page = await default_threads.run(client.list_tools_sync, token)
                    tools += page
            names = Counter(tool.tool_name for tool in tools)
            if double := sorted(name for name, count in names.items() if count > 1):
                raise ValueError(f"several MCP servers have tools named {double!r}: give MCPClient a prefix")
        except BaseException:
            await self.close()
            raise
        self._tools = [
            with_limits(tool, timeout=self._timeout, max_output_chars=self._max_output_chars) for tool in tools
        ]

    async def _start(self, client: MCPClient) -> None:
        # On a thread: the SDK waits for the server, and would hold up the event loop.
        await default_threads.run(client.start)  # one that fails cleans up after itself
        self._started.append(client)

    async def close(self) -> None:
        """Disconnect from all servers; those started by their client end."""
        self._tools = None
        while self._started:
            client = self._started.pop()
            try:
                await default_threads.run(client.stop, None, None, None)
            except Exception as error:
                logger.warning("error=<%s> | MCP client could not be stopped", error)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


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

    default_system_prompt_path = Path(__file__).with_name("prompts") / "mcp.md"

    def __init__(self, *, tools: MCPTools | None = None, mcp_client: MCPClient | None = None, **options: Any) -> None:
        super().__init__(**options)
        if (tools is None) == (mcp_client is None):
            raise ValueError(
                "give either tools=MCPTools(...), opened once for all rollouts, or mcp_client=MCPClient(...)"
            )
        self._is_shared = tools is not None
        self._connections = tools or MCPTools(mcp_client)  # type: ignore[arg-type]

    def get_tools(self) -> list[Any]:
        """The tools of the servers; `RuntimeError` while they are not connected."""
        return list(self._connections.tools)

    async def reset(self) -> None:
        """Connect the environment's own client, if it has one, to a fresh server."""
        if not self._is_shared:
            await self._connections.close()
            await self._connections.open()

    async def cleanup(self) -> None:
        """Disconnect the environment's own client, if it has one."""
        if not self._is_shared:
            await self._connections.close()
