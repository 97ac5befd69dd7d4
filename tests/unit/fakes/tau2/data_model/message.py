"""Messages."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class ToolCall(BaseModel):
    id: str
    name: str
    arguments: dict[str, Any]
    requestor: str = "assistant"


class Message(BaseModel):
    id: str | None = None
    role: str = "tool"
    content: str | None = None
    tool_calls: list[ToolCall] | None = None
    requestor: str = "assistant"
    error: bool = False
    turn_idx: int | None = None


AssistantMessage = UserMessage = ToolMessage = Message
