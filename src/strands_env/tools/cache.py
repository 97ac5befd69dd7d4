"""`cached`: a tool whose results are kept in one file, which the worker processes of a machine share."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from strands.types.events import ToolResultEvent
from strands.types.tools import AgentTool, ToolGenerator, ToolUse

from strands_env.core.jsonable import digest, identity
from strands_env.core.limits import ToolLike, WrappedTool, with_limits
from strands_env.core.threads import default_threads
from strands_sglang.exceptions import check_positive

_LONGEST_PAUSE = 0.5
_BUSY_SECONDS = 60.0


def cached(
    tool: ToolLike, path: str | os.PathLike[str], *, ttl: float = 3600.0, lease: float = 180.0, max_bytes: int = 2**23
) -> AgentTool:
    """The tool with a cache of its successful results, by its specification and the input.

    Callers of one input at the same time, in this process or another, make one call: the others wait for it. An error
    is not kept, and the next caller tries. A caller that dies holds the others up for `lease` seconds at most.

    Args:
        path: A SQLite file on a local disk, made where it is missing. Any number of tools may share it.
        ttl: Seconds a result is kept.
        lease: Seconds that a call may take before another caller makes it too.
        max_bytes: Size in JSON of the largest result that is kept.

    Raises:
        ValueError: `ttl`, `lease` or `max_bytes` is not positive.
        TypeError: It is not a tool.

    Example:
        def get_tools(self):
            return [cached(tool, "/tmp/searches.sqlite") for tool in super().get_tools()]
    """
    check_positive(ttl=ttl, lease=lease, max_bytes=max_bytes)
    inner = with_limits(tool, timeout=None, max_output_chars=None)
    return CachedTool(inner, _Results(Path(path), ttl, lease, max_bytes))


class _Results:
    """Results by key. A row without content is a call that runs."""

    def __init__(self, path: Path, ttl: float, lease: float, max_bytes: int) -> None:
        self._path, self._ttl, self._lease, self._max_bytes = path, ttl, lease, max_bytes

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        # A connection each: they belong to a thread, and do not survive a fork.
        with contextlib.closing(sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)) as file:
            file.execute("BEGIN IMMEDIATE")
            file.execute("CREATE TABLE IF NOT EXISTS results (key TEXT PRIMARY KEY, content TEXT, expires REAL)")
            yield file
            file.execute("COMMIT")

    def reserve(self, key: str) -> str | Literal[True] | None:
        """The content; True where the caller has to make the call, None where another one makes it."""
        now = time.time()
        with self._transaction() as file:
            file.execute("DELETE FROM results WHERE expires <= ?", (now,))
            row = file.execute("SELECT content FROM results WHERE key = ?", (key,)).fetchone()
            if row is None:
                file.execute("INSERT INTO results VALUES (?, NULL, ?)", (key, now + self._lease))
                return True
            content: str | None = row[0]
            return content

    def end(self, key: str, content: str | None) -> None:
        """Keep the content of a call that was made; None keeps nothing."""
        with self._transaction() as file:
            file.execute("DELETE FROM results WHERE key = ?", (key,))
            if content is not None and len(content.encode()) <= self._max_bytes:
                file.execute("INSERT INTO results VALUES (?, ?, ?)", (key, content, time.time() + self._ttl))


class CachedTool(WrappedTool):
    """A tool with a cache; made by `cached`."""

    def __init__(self, tool: AgentTool, results: _Results) -> None:
        super().__init__(tool)
        self._results = results

    async def stream(self, tool_use: ToolUse, invocation_state: dict[str, Any], **kwargs: Any) -> ToolGenerator:
        """Answer from the cache, or make the call and keep what it gives."""
        key = digest(identity([self.tool_spec, tool_use["input"]]))
        pause = 0.01
        while (reserved := await default_threads.run(self._results.reserve, key)) is None:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        if isinstance(reserved, str):
            content = json.loads(reserved)
            yield ToolResultEvent({"toolUseId": tool_use["toolUseId"], "status": "success", "content": content})
            return
        content = None
        try:
            async for event in self.wrapped.stream(tool_use, invocation_state, **kwargs):
                if isinstance(event, ToolResultEvent) and event.tool_result.get("status") == "success":
                    with contextlib.suppress(TypeError, KeyError):  # JSON cannot hold images, so they are not kept
                        content = json.dumps(event.tool_result["content"])
                yield event
        finally:  # also for a caller that is cancelled: others wait for the end of its call
            await asyncio.shield(default_threads.run(self._results.end, key, content))
