"""The user's side."""

from __future__ import annotations

from typing import Any


class UserSimulator:
    def __init__(self, *, llm: str, instructions: str, tools: Any = None) -> None:
        self.system_prompt = f"You are a customer. {instructions}" + (" Use your tools." if tools else "")

    @classmethod
    def is_stop(cls, message: Any) -> bool:
        return "###STOP###" in (message.content or "")
