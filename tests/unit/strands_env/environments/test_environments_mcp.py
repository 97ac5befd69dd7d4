"""MCPEnv against a real MCP server over standard input and output."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from strands_env.core import Action, TerminationReason
from strands_env.environments import MCPEnv, MCPTools
from strands_env.testing import ScriptedModel, call

pytest.importorskip("mcp")

SERVER = """
import asyncio
try:
    from mcp.server import MCPServer as Server  # mcp 2
except ImportError:
    from mcp.server.fastmcp import FastMCP as Server

server = Server("test")
notes = []

@server.tool()
def add(a: int, b: int) -> str:
    return str(a + b)

@server.tool()
def remember(note: str) -> str:
    notes.append(note)
    return ",".join(notes)

@server.tool()
def fail() -> str:
    raise RuntimeError("broken tool")

@server.tool()
def flood() -> str:
    return "x" * 100_000

@server.tool()
async def hang() -> str:
    await asyncio.sleep(1000)

server.run("stdio")
"""


def servers() -> list[psutil.Process]:
    """Running servers of this process; it may have other children."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if any("server.py" in part or "SystemExit(1)" in part for part in child.cmdline()):
                found.append(child)
        except psutil.Error:
            continue
    return found


@pytest.fixture
def client_factory(tmp_path: Path) -> Any:
    from mcp import StdioServerParameters, stdio_client
    from strands.tools.mcp import MCPClient

    script = tmp_path / "server.py"
    script.write_text(SERVER)

    def make(*command: str, **options: Any) -> MCPClient:
        parameters = StdioServerParameters(command=sys.executable, args=list(command or [str(script)]))
        return MCPClient(lambda: stdio_client(parameters), startup_timeout=10, **options)

    return make


@pytest.fixture
async def tools(client_factory: Any) -> AsyncIterator[MCPTools]:
    async with MCPTools(client_factory(), timeout=5, max_output_chars=1000) as opened:
        yield opened
    assert not servers()


def result_of(result: Any) -> dict[str, Any]:
    return result.observation.messages[2]["content"][0]["toolResult"]


def text_of(result: Any) -> str:
    return "".join(block.get("text", "") for block in result_of(result)["content"])


def scripted(name: str, **arguments: Any) -> Any:
    return lambda: ScriptedModel([call(name, **arguments), "done"])


async def test_one_connection_serves_many_rollouts(tools: MCPTools) -> None:
    async def episode(index: int) -> str:
        env = MCPEnv(model_factory=scripted("add", a=index, b=index), tools=tools)
        result = await env.rollout(Action(message="go"))
        assert result.termination_reason is TerminationReason.TASK_COMPLETE
        return text_of(result)

    answers = await asyncio.gather(*map(episode, range(20)))
    assert all(answer.startswith(str(2 * index)) for index, answer in enumerate(answers))
    assert len(servers()) == 1
    env = MCPEnv(model_factory=scripted("fail"), tools=tools)
    assert sorted(tool.tool_name for tool in env.get_tools()) == ["add", "fail", "flood", "hang", "remember"]
    assert result_of(await env.step(Action(message="go")))["status"] == "error"
    result = await MCPEnv(model_factory=scripted("flood"), tools=tools).step(Action(message="go"))
    assert len(text_of(result)) < 1200


async def test_tool_that_never_answers_is_a_tool_result(client_factory: Any) -> None:
    async with MCPTools(client_factory(), timeout=0.5) as tools:
        result = await MCPEnv(model_factory=scripted("hang"), tools=tools).step(Action(message="go"))
        assert result_of(result)["status"] == "error"
        assert "did not finish within 0.5 seconds" in text_of(result)
        again = await MCPEnv(model_factory=scripted("add", a=1, b=1), tools=tools).step(Action(message="go"))
        assert text_of(again).startswith("2")


async def test_own_client_has_a_fresh_server_each_episode(client_factory: Any) -> None:
    env = MCPEnv(model_factory=scripted("remember", note="a"), mcp_client=client_factory())
    for _ in range(2):
        result = await env.rollout(Action(message="go"))
        assert result.error is None
        assert text_of(result).startswith("a")
        assert "a,a" not in text_of(result)
    assert not servers()


@pytest.mark.filterwarnings("ignore:coroutine 'MCPClient.stop:RuntimeWarning")  # the SDK's own
async def test_server_that_does_not_start_is_a_setup_error(client_factory: Any) -> None:
    env = MCPEnv(model_factory=scripted("add"), mcp_client=client_factory("-c", "raise SystemExit(1)"))
    result = await env.rollout(Action(message="go"))
    assert result.termination_reason.is_failure
    assert result.reward is None
    assert not servers()


async def test_cancelled_start_leaves_no_server(client_factory: Any) -> None:
    opening = asyncio.create_task(MCPTools(client_factory()).open())
    while not servers():
        await asyncio.sleep(0.01)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert not servers()


async def test_tools_of_one_name_are_refused(client_factory: Any) -> None:
    tools = MCPTools(client_factory(), client_factory())
    with pytest.raises(ValueError, match="give MCPClient a prefix"):
        await tools.open()
    assert not servers()
    async with MCPTools(client_factory(prefix="one"), client_factory(prefix="two")) as both:
        assert len({tool.tool_name for tool in both.tools}) == 10


async def test_exactly_one_source_of_connected_tools(client_factory: Any) -> None:
    with pytest.raises(ValueError, match="give either"):
        MCPEnv(model_factory=scripted("add"))
    with pytest.raises(ValueError, match="give either"):
        MCPEnv(model_factory=scripted("add"), tools=MCPTools(client_factory()), mcp_client=client_factory())
    with pytest.raises(ValueError, match="at least one"):
        MCPTools()
    unconnected = MCPEnv(model_factory=scripted("add"), tools=MCPTools(client_factory()))
    result = await unconnected.step(Action(message="go"))
    assert result.termination_reason is TerminationReason.SETUP_ERROR
    assert "not connected" in result.error.message
