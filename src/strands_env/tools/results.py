"""Results of tools whose answer is text, and tools made from a description."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from strands.tools import PythonAgentTool
from strands.types.tools import ToolUse


def text_result(text: str) -> dict[str, Any]:
    """The result of a call that went well."""
    return {"status": "success", "content": [{"text": text}]}


def error_result(text: str) -> dict[str, Any]:
    """The result of a call that failed, and why."""
    return {"status": "error", "content": [{"text": f"Error: {text}"}]}


def make_tool(
    name: str, description: str, schema: Any, answer: Callable[[ToolUse], Awaitable[dict[str, Any]]]
) -> PythonAgentTool:
    """A tool of this name and input schema; `answer` gives the result of a call, as `text_result` does."""

    async def run(tool_use: ToolUse, **state: Any) -> Any:
        return {"toolUseId": tool_use["toolUseId"], **await answer(tool_use)}

    return PythonAgentTool(name, {"name": name, "description": description, "inputSchema": {"json": schema}}, run)
