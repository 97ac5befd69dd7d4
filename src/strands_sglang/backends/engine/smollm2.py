"""Tool calls for the default model: its chat template, and a conversation that shows the form of a call.

SmolLM2-135M-Instruct was not taught tool calls and does not follow a tool schema in its prompt, but it imitates: with a
short system prompt and three examples in the history it calls a calculator reliably and repeats its result.

```python
agent = Agent(model=model, tools=[calculator], system_prompt=SYSTEM_PROMPT, messages=few_shot_messages())
```
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from .templates import BRIEF_TEMPLATE

CHAT_TEMPLATE = BRIEF_TEMPLATE
"""ChatML, tool calls in Hermes form, tools named in one line."""

SYSTEM_PROMPT = "Use the calculator for arithmetic."
"""Short on purpose: a longer one distracts the model from the examples."""

EXAMPLES = (("876 + 61", "937"), ("45 * 12", "540"), ("900 - 387", "513"))
"""Expressions of the examples and their values."""


def few_shot_messages() -> list[dict[str, Any]]:
    """A history in Strands message format in which the assistant answers questions with a tool.

    Every example is four messages: question, call, result, answer. Through `CHAT_TEMPLATE` a call reads
    `<tool_call>{"name": "calculator", "arguments": {"expression": "876+61"}}</tool_call>`.
    """
    messages: list[dict[str, Any]] = []
    for expression, value in EXAMPLES:
        call = {"expression": expression.replace(" ", "")}
        messages += worked_example(f"What is {expression}?", "calculator", call, value, f"The answer is {value}.")
    return messages


def worked_example(
    question: str, tool: str, arguments: Mapping[str, Any], result: str, answer: str
) -> list[dict[str, Any]]:
    """A worked example for a history in Strands message format: question, call of a tool, its result, answer.

    ```python
    worked_example("How much is a vase?", "price_of", {"item": "vase"}, "19 dollars", "A vase costs 19 dollars.")
    ```
    """
    call_id = f"example_{zlib.crc32(f'{question} {tool}'.encode()):08x}"  # other examples of a history have others
    return [
        {"role": "user", "content": [{"text": question}]},
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": call_id, "name": tool, "input": dict(arguments)}}]},
        {
            "role": "user",
            "content": [{"toolResult": {"toolUseId": call_id, "status": "success", "content": [{"text": result}]}}],
        },
        {"role": "assistant", "content": [{"text": answer}]},
    ]
