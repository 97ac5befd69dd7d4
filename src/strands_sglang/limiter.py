"""Upstream's module of this name since 0.4.3; before and here it is `strands_sglang.tool_limiter`."""

from .exceptions import (
    MaxMessagesReachedError,
    MaxToolCallsReachedError,
    MaxToolIterationsReachedError,
    ToolLimitReachedError,
)
from .tool_limiter import ToolLimiter

LoopLimiter = ToolLimiter
LoopLimitReachedError = ToolLimitReachedError

__all__ = [
    "LoopLimitReachedError",
    "LoopLimiter",
    "MaxMessagesReachedError",
    "MaxToolCallsReachedError",
    "MaxToolIterationsReachedError",
    "ToolLimiter",
]
