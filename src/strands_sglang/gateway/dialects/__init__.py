"""The protocols that clients speak, one module each. A new one is a module with a `WireDialect`, and a line here."""

from .anthropic_messages import ANTHROPIC_MESSAGES
from .chat_completions import CHAT_COMPLETIONS
from .google import GOOGLE
from .responses import RESPONSES
from .wire import WireDialect

DIALECTS: tuple[WireDialect, ...] = (CHAT_COMPLETIONS, RESPONSES, ANTHROPIC_MESSAGES, GOOGLE)

CALL_PREFIXES = frozenset(dialect.call_prefix for dialect in DIALECTS)
KEY_HEADERS = tuple({name: None for dialect in DIALECTS for name in dialect.key_headers})

__all__ = ["ANTHROPIC_MESSAGES", "CALL_PREFIXES", "CHAT_COMPLETIONS", "DIALECTS", "GOOGLE", "KEY_HEADERS", "RESPONSES"]
