"""The protocols that clients speak, one module each. A new one is a module with a `WireDialect`, and a line here."""

from .anthropic_messages import ANTHROPIC_MESSAGES
from .chat_completions import CHAT_COMPLETIONS
from .responses import RESPONSES
from .wire import WireDialect

DIALECTS: tuple[WireDialect, ...] = (CHAT_COMPLETIONS, RESPONSES, ANTHROPIC_MESSAGES)
"""Every dialect, in the order of its routes."""

__all__ = ["ANTHROPIC_MESSAGES", "CHAT_COMPLETIONS", "DIALECTS", "RESPONSES", "WireDialect"]
