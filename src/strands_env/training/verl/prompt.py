"""`raw_prompt` of verl as an action."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strands_env.core import Action, TaskContext


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPrompt:
    """What a row of the data set asks.

    Attributes:
        system: Text of the system messages, or None.
        turns: The other messages, as Strands writes them.
        context: Further fields of the `TaskContext`.
    """

    system: str | None
    turns: list[dict[str, Any]]
    context: dict[str, Any]

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> RowPrompt:
        """Read a row.

        Raises:
            ValueError: The prompt has images, calls of tools, an unknown role, or does not end with a user message.
        """
        system: list[str] = []
        turns: list[dict[str, Any]] = []
        for message in row["raw_prompt"]:
            role, text = message.get("role"), _text(message.get("content"))
            if message.get("tool_calls"):
                raise ValueError(f"raw_prompt holds tool_calls in {message!r}, expected text: calls are not supported")
            if role in ("system", "developer"):
                system.append(text)
            elif role in ("user", "assistant"):
                turns.append({"role": role, "content": [{"text": text}]})
            else:
                raise ValueError(
                    f"raw_prompt holds a message of role {role!r}, expected system, developer, user or assistant"
                )
        if not turns or turns[-1]["role"] != "user":
            roles = [message["role"] for message in row["raw_prompt"]]
            raise ValueError(f"raw_prompt must end with a user message, got roles {roles!r}")
        return cls(
            system="\n".join(system) if system else None,
            turns=turns,
            context={
                "ground_truth": (row.get("reward_model") or {}).get("ground_truth"),
                "extra_info": row.get("extra_info"),
            },
        )

    def action(self) -> Action:
        """A new action: the last message, with those before as history."""
        context = TaskContext(**self.context, conversation_history=self.turns[:-1])
        return Action(message=self.turns[-1], task_context=context)


def _text(content: Any) -> str:
    """The text of a message in the format of chat completions."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = list(content)
    if any(not isinstance(part, Mapping) or part.get("type") != "text" for part in parts):
        raise ValueError(f"raw_prompt holds {parts!r}, expected text: images and other parts are not supported")
    return "".join(part["text"] for part in parts)
