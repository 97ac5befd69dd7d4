"""Tasks."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class State(BaseModel):
    initialization_data: Any = None
    initialization_actions: Any = None
    message_history: Any = None


class Task(BaseModel):
    id: str
    user_scenario: str
    user_tools: list[str] | None = None
    initial_state: State | None = None
    expected: int
