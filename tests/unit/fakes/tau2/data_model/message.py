"""Messages."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class ToolCall(BaseModel):
    id: str
    name: str
    arguments: dict[str, Any]
    requestor: str = "assistant"


class _Said(BaseModel):
    role: str
    content: str | None = None
    tool_calls: list[ToolCall] | None = None
    turn_idx: int | None = None


class AssistantMessage(_Said):
    pass


class UserMessage(_Said):
    pass


class ToolMessage(BaseModel):
    id: str
    role: str = "tool"
    content: str | None = None
    requestor: str = "assistant"
    error: bool = False
    turn_idx: int | None = None
