"""What the default model needs to call tools: its chat template, and a conversation that shows the form of a call.

SmolLM2-135M-Instruct was not taught tool calls and does not follow a tool schema in its prompt, but it imitates: with a
short system prompt and three examples in the history it calls the calculator reliably.
"""

from __future__ import annotations

from strands_sglang.engine.templates import BRIEF_TEMPLATE

CHAT_TEMPLATE = BRIEF_TEMPLATE
"""ChatML, tool calls in Hermes form, tools named in one line."""
