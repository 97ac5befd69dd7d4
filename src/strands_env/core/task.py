"""What an environment is given: an action, and the context its reward needs."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Annotated, Any, Never, TypeAlias

from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationInfo, model_validator

from .jsonable import StoredModel, decode_stored, encode

MessageDict: TypeAlias = dict[str, Any]
"""A Strands message: `{"role": "user" or "assistant", "content": [block, ...]}`, with whatever keys the SDK adds."""

JsonMessages = Annotated[
    list[MessageDict],
    BeforeValidator(decode_stored),
    PlainSerializer(encode, when_used="json"),
]
"""Messages that survive JSON: images and documents are bytes, and are written as the SDK's sessions write them.

Plain dictionaries on purpose: a typed message would drop the keys its type does not know.
"""


class TaskContext(StoredModel):
    """What the reward needs to know about a task; any further field is kept.

    Attributes:
        id: Identity of the task. Give one where results are compared or resumed; the default is random.
        ground_truth: The expected answer, in whatever form the reward function reads.
        conversation_history: Messages before this action, for episodes of several steps.
    """

    model_config = ConfigDict(extra="allow", ser_json_inf_nan="constants")

    id: str = Field(default_factory=lambda: str(uuid.uuid4()))
    ground_truth: Any = None
    conversation_history: JsonMessages = Field(default_factory=list)


def _check_fields(data: Any) -> Any:
    """Refuse a field that would be dropped: the reward would miss it without a word."""
    if isinstance(data, dict) and (unknown := data.keys() - {"message", "task_context"}):
        name = min(unknown, key=str)
        raise ValueError(
            f"an Action has a message and a task_context, got {name!r} too: write task_context=TaskContext({name}=...)"
        )
    return data


def _check_message(message: Any, info: ValidationInfo) -> Any:
    message = decode_stored(message, info)
    if isinstance(message, dict) and not isinstance(message.get("content"), list):
        raise ValueError(
            f"a message is {{'role': ..., 'content': [blocks]}}, got {message!r}: give the content as a list of blocks"
        )
    blocks = message if isinstance(message, list) else []
    if not isinstance(message, str | dict | list) or not all(isinstance(block, dict) for block in blocks):
        raise ValueError(f"expected text, a list of content blocks or a message, got {message!r:.100}")
    return message


class Action(StoredModel):
    """One task for the agent.

    Attributes:
        message: The prompt: text, a list of Strands content blocks, or a Strands message (its content is used).
        task_context: Context for the reward.
    """

    model_config = ConfigDict(ser_json_inf_nan="constants")

    message: Annotated[
        str | MessageDict | list[dict[str, Any]],
        BeforeValidator(_check_message),
        PlainSerializer(encode, when_used="json"),
    ]
    task_context: TaskContext = Field(default_factory=TaskContext)

    _fields = model_validator(mode="before")(_check_fields)

    if not TYPE_CHECKING:  # type checkers know the fields

        def __init__(self, *given: Never, **fields: Any) -> None:
            if given:
                raise TypeError(f"an Action takes its fields by name: write Action(message={given[0]!r:.100})")
            super().__init__(**fields)

        __init__.__pydantic_base_init__ = True  # validation need not call it

    @property
    def prompt(self) -> str | list[dict[str, Any]]:
        """The message as `Agent.invoke_async` takes it: text or content blocks."""
        return self.message["content"] if isinstance(self.message, dict) else self.message

    @property
    def text(self) -> str:
        """The text of the message; blocks without text are left out."""
        prompt = self.prompt
        return prompt if isinstance(prompt, str) else "\n".join(block["text"] for block in prompt if "text" in block)
