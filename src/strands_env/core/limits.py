"""Deadlines and output limits for any tool: one that hangs or floods gives an error result, and the episode goes on."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Self, TypeAlias, cast

from strands import tool as decorate
from strands.types._events import ToolResultEvent
from strands.types.tools import AgentTool, ToolGenerator, ToolSpec, ToolUse

from strands_sglang.exceptions import check_positive

from .deadline import run_with_timeout
from .jsonable import shown_text
from .sdk_patches import function_of, with_function
from .termination import EpisodeTimeoutError, Phase
from .threads import DaemonThreads, default_threads

logger = logging.getLogger(__name__)

ToolLike: TypeAlias = AgentTool | Callable[..., Any]
"""A Strands tool, decorated or not; or a plain function, sync or async, which is decorated."""

DEFAULT_TIMEOUT = 60.0
"""Seconds a wrapped tool may take."""
DEFAULT_MAX_OUTPUT_CHARS = 20_000
"""Characters of text a wrapped tool may answer with."""


def with_limits(
    tool: ToolLike,
    *,
    timeout: float | None = DEFAULT_TIMEOUT,
    max_output_chars: int | None = DEFAULT_MAX_OUTPUT_CHARS,
    threads: DaemonThreads | None = None,
) -> AgentTool:
    """The tool with limits. Its name, description and input schema stay the same.

    A sync tool runs in its own daemon thread, outside asyncio's small shared pool. An async tool shares the event
    loop with everything else: it is stopped where it awaits, or between two values it yields. One that computes or
    blocks without either holds up the whole process and cannot be stopped; make such a tool a sync one.

    Args:
        timeout: Seconds a call may take; then it is cancelled and answered with an error. A thread cannot be cancelled:
            it is left behind, and counts against `threads` until it ends. None for no limit.
        max_output_chars: Characters of text in a result; longer text keeps its beginning and end. None for no limit.
        threads: Threads of sync tools; those of the process if None.

    Raises:
        TypeError: It is not a tool.
        ValueError: A limit is out of range.
    """
    if isinstance(tool, LimitedTool):
        tool = tool.wrapped
    if not isinstance(tool, AgentTool):
        if not callable(tool) or inspect.isclass(tool):
            raise TypeError(f"expected a tool or a function to make one from, got {tool!r}")
        tool = decorate(tool)
    return LimitedTool(tool, timeout, max_output_chars, threads or default_threads)


class _Events:
    """The events of a call, which begins when the first of them is asked for."""

    def __init__(self, call: Callable[[], Awaitable[deque[Any]]]) -> None:
        self._call: Callable[[], Awaitable[deque[Any]]] | None = call
        self._events: deque[Any] = deque()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        if self._call is not None:
            call, self._call = self._call, None
            self._events = await call()
        if not self._events:
            raise StopAsyncIteration
        return self._events.popleft()


class LimitedTool(AgentTool):
    """A tool with limits; made by `with_limits`."""

    def __init__(
        self,
        tool: AgentTool,
        timeout: float | None,
        max_output_chars: int | None,
        threads: DaemonThreads,
    ) -> None:
        super().__init__()
        check_positive("seconds", optional=True, timeout=timeout)
        check_positive("characters", optional=True, max_output_chars=max_output_chars)
        self.wrapped = tool
        self.timeout = timeout
        self.max_output_chars = max_output_chars
        self._threads = threads
        self._runner = _in_own_thread(tool, threads)

    @property
    def tool_name(self) -> str:
        """Name of the wrapped tool."""
        return self.wrapped.tool_name

    @property
    def tool_spec(self) -> ToolSpec:
        """Specification of the wrapped tool."""
        return self.wrapped.tool_spec

    @property
    def tool_type(self) -> str:
        """Type of the wrapped tool."""
        return self.wrapped.tool_type

    def stream(self, tool_use: ToolUse, invocation_state: dict[str, Any], **kwargs: Any) -> ToolGenerator:
        """Run the tool within its limits; its events come together at its end."""
        # The SDK leaves the stream at the result; asyncio would close a generator there in another task.
        return cast(ToolGenerator, _Events(partial(self._run, tool_use, invocation_state, **kwargs)))

    async def _run(self, tool_use: ToolUse, invocation_state: dict[str, Any], **kwargs: Any) -> deque[Any]:
        events: deque[Any] = deque()

        async def collect() -> None:
            async for event in self._runner.stream(tool_use, invocation_state, **kwargs):
                if events:
                    await asyncio.sleep(0)  # a tool that never awaits would starve other tasks
                events.append(event)
                del event  # on Python 3.13 the traceback of the tool's error holds this frame: core/garbage.py

        try:
            await run_with_timeout(collect(), self.timeout, Phase.TOOL)
        except EpisodeTimeoutError as error:
            if error.where is not Phase.TOOL:  # of an episode that the tool ran
                raise
            logger.debug("tool=<%s>, timeout=<%s> | tool timed out", self.tool_name, self.timeout)
            is_busy = self._threads.running >= self._threads.max_threads and self._runner is not self.wrapped
            reason = f" (all {self._threads.max_threads} tool threads are busy or stuck)" if is_busy else ""
            text = f"Error: {self.tool_name} did not finish within {self.timeout:g} seconds and was stopped{reason}."
            result: Any = {"toolUseId": tool_use["toolUseId"], "status": "error", "content": [{"text": text}]}
            events = deque([ToolResultEvent(result)])
        for event in events:
            result = event.tool_result if isinstance(event, ToolResultEvent) else event
            has_content = isinstance(result, dict) and "content" in result
            # A raw tool may give its progress in any form.
            is_its_result = has_content and (result is not event or isinstance(result["content"], list))
            if self.max_output_chars is not None and is_its_result:
                result["content"] = limit_content(result["content"], self.max_output_chars)
        return events


def limit_content(content: Sequence[Any], max_chars: int) -> list[Any]:
    """Content blocks of a tool result, cut to this many characters of text and JSON altogether.

    The text that crosses the limit keeps its beginning and end around a note; JSON that crosses it
    becomes such text; of later text a note at the end remains. Blocks of other kinds stay.

    Raises:
        TypeError: The content is not a list of blocks.
    """
    if not isinstance(content, list | tuple) or not all(isinstance(block, dict) for block in content):
        blocks = "a list of blocks such as {'text': ...}"
        raise TypeError(f"the content of a tool result is {blocks}, got {shorten(repr(content), 200)}")
    limited: list[Any] = []
    left, left_out = max_chars, 0
    for block in content:
        if "text" in block:
            text = block["text"]
        elif "json" in block:
            text = shown_text(block["json"])
        else:
            limited.append(block)
            continue
        if len(text) <= left:
            limited.append(block)
        elif left > 0:
            limited.append({"text": shorten(text, left)})
        else:
            left_out += len(text)
        left -= min(len(text), left)
    if left_out:
        limited.append({"text": f"... [{left_out} characters of later text left out] ..."})
    return limited


def shorten(text: str, max_chars: int) -> str:
    """The beginning and the end of a text that is too long, around a note; the note comes on top of the limit."""
    if len(text) <= max_chars:
        return text
    head = (max_chars + 1) // 2
    tail = max_chars - head
    note = f"\n... [{len(text) - max_chars} characters left out] ...\n"
    return text[:head] + note + (text[-tail:] if tail else "")


def _in_own_thread(tool: AgentTool, threads: DaemonThreads) -> AgentTool:
    """A decorated sync tool as an async one that runs in one of our threads; any other tool as it is."""
    function = function_of(tool)
    if function is None or inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return tool

    async def in_thread(*args: Any, **kwargs: Any) -> Any:
        return await threads.run(function, *args, **kwargs)

    return with_function(tool, in_thread)
