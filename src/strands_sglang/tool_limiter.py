"""`ToolLimiter`: ends an agent loop after a number of tool iterations, tool calls, tokens or messages.

Limits are checked when the tool results have been added, that is at a complete iteration: every call in the history
has its result, and nothing stands in it that the model did not sample. The error raised there reaches the caller as
`strands.types.exceptions.EventLoopException` with the error as `__cause__` (and `original_exception`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from strands.hooks import HookProvider, HookRegistry
from strands.hooks.events import BeforeToolCallEvent, MessageAddedEvent

from .exceptions import (
    MaxMessagesReachedError,
    MaxToolCallsReachedError,
    MaxToolIterationsReachedError,
    MaxTotalTokensReachedError,
    ToolLimitReachedError,
    check_positive,
    explain_arguments,
)

__all__ = [
    "MaxMessagesReachedError",
    "MaxToolCallsReachedError",
    "MaxToolIterationsReachedError",
    "MaxTotalTokensReachedError",
    "ToolLimitReachedError",
    "ToolLimiter",
]

logger = logging.getLogger(__name__)


class ToolLimiter(HookProvider):
    """Limits of one agent's tool use; a Strands hook: `Agent(hooks=[ToolLimiter(max_tool_iters=10)])`.

    Counts add up over all invocations of the agent until `reset()`. When several limits are reached at once the first
    of iterations, calls, tokens, messages is raised. A limit of 0 ends the loop at the first tool result.

    Args:
        max_tool_iters: Replies with tool calls; parallel calls in one reply are one iteration. None means no limit.
        max_tool_calls: Single calls, cancelled and malformed ones included. Checked at complete iterations, so the
            last one may go beyond it.
        max_parallel_tool_calls: Calls in one reply. Those beyond it, in the order of the reply, are answered with an
            error result and the loop goes on.
        max_total_tokens: Length of the trajectory in tokens, prompt included, as of the last reply.
        max_messages: Messages of all roles that the agent added. Checked where one of the user's is added, be it a
            prompt or tool results.

    Attributes:
        tool_iter_count: Replies with tool calls so far.
        tool_call_count: Calls so far.
        cancelled_tool_call_count: Calls answered with an error for `max_parallel_tool_calls`.
        message_count: Messages added so far.
        total_tokens: Length of the trajectory as of the last reply, prompt included; 0 when the model reports none.

    Raises:
        TypeError: An unknown limit, named with the nearest one.
        ValueError: A limit is neither None nor an integer of at least 0.
    """

    @explain_arguments
    def __init__(
        self,
        max_tool_iters: int | None = None,
        max_tool_calls: int | None = None,
        *,
        max_parallel_tool_calls: int | None = None,
        max_total_tokens: int | None = None,
        max_messages: int | None = None,
    ) -> None:
        self.max_tool_iters = max_tool_iters
        self.max_tool_calls = max_tool_calls
        self.max_parallel_tool_calls = max_parallel_tool_calls
        self.max_total_tokens = max_total_tokens
        self.max_messages = max_messages
        limits = {name: limit for name, limit in vars(self).items() if name.startswith("max_")}
        check_positive(whole=True, optional=True, zero=True, **limits)
        self.reset()

    def reset(self) -> None:
        """Reset the counts for a new episode."""
        self.tool_iter_count = 0
        self.tool_call_count = 0
        self.cancelled_tool_call_count = 0
        self.total_tokens = 0
        self.message_count = 0
        self._start_reply([])

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        """Called by the agent."""
        registry.add_callback(MessageAddedEvent, self._on_message_added)
        registry.add_callback(BeforeToolCallEvent, self._on_before_tool_call)

    def _start_reply(self, call_ids: list[str]) -> None:
        # The SDK starts parallel tools in no certain order: who may run is decided here, by the reply.
        self._call_positions = {call_id: position for position, call_id in reversed(list(enumerate(call_ids)))}
        self._cancelled_ids: set[str] = set()
        self._parallel_call_count = 0

    def _on_message_added(self, event: MessageAddedEvent[Any]) -> None:
        message: Mapping[str, Any] = event.message
        content = message.get("content")
        self.message_count += 1
        if not isinstance(content, list):
            return
        if message.get("role") == "assistant":
            usage = (message.get("metadata") or {}).get("usage") or {}
            self.total_tokens = usage.get("totalTokens") or self.total_tokens  # a model need not report it
            call_ids = [block["toolUse"]["toolUseId"] for block in content if "toolUse" in block]
            if call_ids:
                self.tool_iter_count += 1
                self.tool_call_count += len(call_ids)
                self._start_reply(call_ids)
            return
        if any("toolResult" in block for block in content):
            self._check()
        if self.max_messages is not None and self.message_count >= self.max_messages:
            raise MaxMessagesReachedError(self.max_messages, self.message_count)

    def _on_before_tool_call(self, event: BeforeToolCallEvent[Any]) -> None:
        limit = self.max_parallel_tool_calls
        if limit is None:
            return
        call_id = event.tool_use["toolUseId"]
        # A call that is not in the reply (a hook renamed it) takes the next free place.
        position = self._call_positions.setdefault(call_id, self._parallel_call_count)
        if position < limit:
            self._parallel_call_count += 1
            return
        if call_id not in self._cancelled_ids:
            self._cancelled_ids.add(call_id)
            self.cancelled_tool_call_count += 1
            logger.debug("tool_use_id=<%s>, max_parallel_tool_calls=<%d> | cancelled tool call", call_id, limit)
        event.cancel_tool = f"Max parallel tool calls ({limit}) reached: this call was not run. Call it again later."

    def _check(self) -> None:
        if self.max_tool_iters is not None and self.tool_iter_count >= self.max_tool_iters:
            raise MaxToolIterationsReachedError(self.max_tool_iters, self.tool_iter_count)
        if self.max_tool_calls is not None and self.tool_call_count >= self.max_tool_calls:
            raise MaxToolCallsReachedError(self.max_tool_calls, self.tool_call_count)
        if self.max_total_tokens is not None and self.total_tokens >= self.max_total_tokens:
            raise MaxTotalTokensReachedError(self.max_total_tokens, self.total_tokens)
