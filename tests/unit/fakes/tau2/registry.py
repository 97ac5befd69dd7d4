"""Domains by name, and the one domain: a till that the agent pays into, and the user reads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pydantic import BaseModel

from tau2.data_model.message import ToolCall, ToolMessage
from tau2.data_model.tasks import Task


class Tool(BaseModel):
    name: str

    @property
    def openai_schema(self) -> dict[str, Any]:
        parameters = {"type": "object", "properties": {"amount": {"type": "integer"}}}
        return {"type": "function", "function": {"name": self.name, "description": "x", "parameters": parameters}}


class Database:
    user_tools = object()

    def __init__(self) -> None:
        self.amount = 0

    def set_state(self, *, initialization_data: Any, initialization_actions: Any, message_history: list[Any]) -> None:
        pass

    def get_policy(self) -> str:
        return "Take no cheques."

    def get_tools(self) -> list[Tool]:
        return [Tool(name="pay"), Tool(name="double")]

    def get_user_tools(self, include: list[str] | None = None) -> list[Tool]:
        return [Tool(name="look")]

    def get_response(self, call: ToolCall) -> ToolMessage:
        text, error = str(self.amount), False
        match call.name, call.requestor:
            case "pay", "assistant":
                self.amount += call.arguments["amount"]
                text = f"paid, now {self.amount}"
            case "double", "assistant":
                self.amount *= 2
            case "look", "user":
                pass
            case _:
                text, error = f"Error: Tool '{call.name}' not found.", True
        return ToolMessage(id=call.id, content=text, requestor=call.requestor, error=error)


def load_tasks(split: str) -> list[Task]:
    assert split == "base"
    return [Task(id="pay-5", user_scenario="You want to pay 5.", expected=10)]


registry = SimpleNamespace(
    get_env_constructor={"mock": Database}.__getitem__, get_tasks_loader={"mock": load_tasks}.__getitem__
)
