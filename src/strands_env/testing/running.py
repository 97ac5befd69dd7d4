"""Runs a clause of a contract within its time, and sees what it leaves behind."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

GRACE_SECONDS = 10.0
"""How long cancelled work may take to end."""


def run_within(work: Coroutine[Any, Any, T], seconds: float) -> T:
    """Run the work in a new event loop. Code that blocks that loop cannot take longer either.

    Raises:
        AssertionError: The time has passed.
    """
    outcome: list[T | BaseException] = []

    def run() -> None:
        try:
            outcome.append(asyncio.run(asyncio.wait_for(work, seconds)))
        except BaseException as error:  # it is raised in the thread that waits
            outcome.append(error)

    thread = threading.Thread(target=run, name="strands-env-contract", daemon=True)
    thread.start()
    thread.join(seconds + GRACE_SECONDS)
    if not outcome:
        raise AssertionError(f"it blocks the event loop: still running {GRACE_SECONDS:g} s after its {seconds:g} s")
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def alive() -> set[str]:
    """Threads and, on Linux, child processes of this process."""
    threads = {f"thread {thread.name!r} ({thread.ident})" for thread in threading.enumerate()}
    return threads | {f"process {child}" for child in _children()}


def left_behind(before: set[str], seconds: float = 3.0) -> set[str]:
    """What is alive now and was not before, after some time to end."""
    deadline = time.monotonic() + seconds
    while (left := alive() - before) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def _children() -> set[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").glob("*/children"):
        try:
            children = [int(child) for child in task.read_text().split()]
            found |= {child for child in children if not _is_dead(child)}
        except OSError:
            continue  # the thread has ended
    return found


def _is_dead(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
