"""Tasks from any iterable, one at a time, without blocking the event loop and without holding them all."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sized
from itertools import islice

from strands_env.core import Action

CHUNK = 64
"""Tasks read ahead from an iterable whose next item may take time, such as a file or a download."""
CHUNK_SECONDS = 0.05
"""Reading ahead stops after so long, so that a slow source does not hold back what it has given."""

Tasks = Iterable[Action] | AsyncIterable[Action]


def count(tasks: Tasks) -> int | None:
    """Number of tasks, None where only reading them would tell."""
    return len(tasks) if isinstance(tasks, Sized) else None


async def stream(tasks: Tasks) -> AsyncIterator[Action]:
    """The tasks in order.

    Raises:
        TypeError: An item is no `Action`.
    """
    if isinstance(tasks, AsyncIterable):
        async for action in tasks:
            yield _checked(action)
        return
    if isinstance(tasks, list | tuple):
        for action in tasks:
            yield _checked(action)
        return
    iterator = iter(tasks)
    while chunk := await asyncio.to_thread(_read, iterator):
        while chunk:
            yield _checked(chunk.popleft())


def _read(iterator: Iterable[Action]) -> deque[Action]:
    chunk: deque[Action] = deque()
    started = time.monotonic()
    for action in islice(iterator, CHUNK):
        chunk.append(action)
        if time.monotonic() - started > CHUNK_SECONDS:
            break
    return chunk


def _checked(action: object) -> Action:
    if not isinstance(action, Action):
        raise TypeError(
            "a data set must give Action(message=..., task_context=TaskContext(...)), "
            f"got {type(action).__name__}: {action!r}"
        )
    return action
