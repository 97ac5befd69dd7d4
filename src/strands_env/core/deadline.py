"""Deadlines for code that ignores cancellation, work that outlasts a cancelled caller, and the phase of an episode."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from .termination import EpisodeTimeoutError, ErrorRecord, Phase, WorkCancelledError

logger = logging.getLogger(__name__)

T = TypeVar("T")

GRACE_SECONDS = 5.0
"""Time that cancelled work has to unwind before it is left behind."""
TOOL_GRACE_SECONDS = 1.0
"""The same for a tool."""


@dataclass(slots=True)
class EpisodeProgress:
    """The phase of an episode, and whether it has a reward: set by its rollout, read by the owner of its deadline."""

    phase: Phase = Phase.SETUP
    is_scored: bool = False
    is_taken: bool = False

    @staticmethod
    @contextmanager
    def current(*, take: bool = False) -> Iterator[EpisodeProgress]:
        """The progress of the rollout that the calling code runs in; one that nobody reads where there is none.

        `take`: for the rollout that begins here. Rollouts inside it have their own, which nobody reads.
        """
        progress = _current.get()
        if progress is None or (take and progress.is_taken):
            progress = EpisodeProgress()
        progress.is_taken |= take
        with progress.active():
            yield progress

    @contextmanager
    def active(self) -> Iterator[EpisodeProgress]:
        """Make this the current one; at the end its phase is restored."""
        token, phase = _current.set(self), self.phase
        try:
            yield self
        finally:
            _current.reset(token)
            self.phase = phase


_current: ContextVar[EpisodeProgress | None] = ContextVar("strands_env_episode", default=None)


async def run_with_timeout(work: Awaitable[T], seconds: float | None, where: Phase | EpisodeProgress) -> T:
    """Await work for at most this many seconds; None for no deadline.

    Args:
        where: The phase that the work is. Of a whole episode its progress: then the deadline is for everything before
            the cleanup, which has its own.

    Raises:
        EpisodeTimeoutError: The deadline passed; the work was cancelled.
        WorkCancelledError: The work ended in a cancellation nobody asked this caller for.
        RuntimeError: The work raised something other than an `Exception`, such as `SystemExit`.
    """
    try:
        if seconds is None:
            return await work
        return await _finish_within(_start(work, None, where), seconds, where)
    except asyncio.CancelledError as error:
        caller = asyncio.current_task()
        if caller is None or caller.cancelling():
            forget_frames(error)
            raise
        raise WorkCancelledError(_phase_of(where)) from error
    except BaseException as error:
        if isinstance(error, Exception) or is_closing(error):
            raise
        raise wrap_exit(error, "rollout" if isinstance(where, EpisodeProgress) else where) from error


async def _finish_within(task: asyncio.Task[T], seconds: float, where: Phase | EpisodeProgress) -> T:
    """The result of a task, which is cancelled when the deadline passes, and with the caller."""
    try:
        if not task.done():
            await asyncio.wait({task}, timeout=seconds)
        await _finish_cleanup(task, where)
        return await _stop_late(task, seconds, where)
    except asyncio.CancelledError:
        await stop(task, where)
        raise
    finally:
        del task  # it holds its error, whose traceback holds this frame: core/garbage.py


async def _stop_late(task: asyncio.Task[T], seconds: float, where: Phase | EpisodeProgress) -> T:
    """The result of a task whose time is over: that of one that is done, or that still finishes when it is stopped."""
    try:
        if not task.done():
            late = _phase_of(where)
            await stop(task, where)
            if not task.done() or task.cancelled() or task.exception() is not None:
                is_scored = isinstance(where, EpisodeProgress) and where.is_scored
                raise EpisodeTimeoutError(late, seconds, is_scored)
        return task.result()
    finally:
        del task  # as above


async def run_shielded(work: Coroutine[Any, Any, None], seconds: float | None, where: Phase) -> None:
    """Await work that must run even if the caller is cancelled meanwhile; the cancellation is raised afterwards.

    Raises the errors of `run_with_timeout`.
    """
    task, left = _start(work, None, where), seconds
    clock = asyncio.get_running_loop().time
    ends = None if seconds is None else clock() + seconds
    cancelled: asyncio.CancelledError | None = None
    try:
        while not task.done():
            try:
                await asyncio.wait({task}, timeout=left)
                if ends is not None and seconds is not None and not task.done():
                    task, ends = _start(_stop_late(task, seconds, where), None, where), None
            except asyncio.CancelledError as error:
                cancelled = error
            left = None if ends is None else max(0.0, ends - clock())
        if cancelled is None:
            return task.result()
        if (failure := task.exception()) is not None:
            logger.warning("where=<%s>, error=<%s> | failed while being cancelled", where, failure)
        raise cancelled
    finally:
        failure = None
        del task, cancelled  # no frame of an error holds it: core/garbage.py


def _start(work: Awaitable[T], seconds: float | None, where: Phase | EpisodeProgress) -> asyncio.Task[T]:
    """A task for work. Exits are contained inside it: one that leaves a task ends asyncio's event loop.

    From Python 3.12 on it starts at once, so that work that never waits costs no turn of the event loop.
    """
    contained = run_with_timeout(work, seconds, where)
    if sys.version_info >= (3, 12):
        return asyncio.Task(contained, loop=asyncio.get_running_loop(), eager_start=True)
    return asyncio.create_task(contained)


def is_closing(error: BaseException) -> bool:
    """True for an error that only closes the coroutine it is raised in, which must not catch it.

    A `GeneratorExit` that some code raised in a running task is an error like others.
    """
    if not isinstance(error, GeneratorExit):
        return False
    try:
        return asyncio.current_task() is None
    except RuntimeError:  # no loop runs: the coroutine is closed by the interpreter
        return True


def wrap_exit(error: BaseException, where: str = "rollout") -> RuntimeError:
    """An ordinary error in place of one that would end more than the rollout that raised it."""
    if isinstance(error, SystemExit):
        return RuntimeError(f"the {where} called sys.exit({error.code!r})")
    return RuntimeError(f"the {where} raised {type(error).__name__}: {error}")


def forget_frames(error: BaseException, outer: BaseException | None = None) -> None:
    """Take the tracebacks off an error that has been recorded, and off all that led to it: core/garbage.py.

    `outer` is the error that the caller was handling already: it is not ours, and keeps its traceback.
    """
    seen = {id(outer)}
    pending: list[object] = [error]
    while pending:
        link = pending.pop()
        if isinstance(link, BaseException) and id(link) not in seen:
            seen.add(id(link))
            link.__traceback__ = None
            pending += [link.__cause__, link.__context__, getattr(link, "original_exception", None)]
            pending += link.exceptions if isinstance(link, BaseExceptionGroup) else ()


async def stop(task: asyncio.Future[Any], where: Phase | EpisodeProgress) -> None:
    """Cancel work and wait a bounded time for its end; an episode that is cleaning up is waited for."""
    if task.done():
        return
    grace = TOOL_GRACE_SECONDS if where is Phase.TOOL else GRACE_SECONDS
    task.cancel()
    await asyncio.wait({task}, timeout=grace)
    await _finish_cleanup(task, where)
    if not task.done():
        logger.warning(
            "where=<%s>, grace=<%s> | work ignored its cancellation and is left behind", _phase_of(where), grace
        )
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
    elif task.cancelled():
        try:
            task.result()
        except asyncio.CancelledError as error:  # as asked: nobody will look where it was
            forget_frames(error)
    else:
        task.exception()  # it is not missed: the caller has the work's end, or another error


async def _finish_cleanup(task: asyncio.Future[Any], where: Phase | EpisodeProgress) -> None:
    """Wait for an episode that is cleaning up, which has its own deadline."""
    if isinstance(where, EpisodeProgress) and where.phase is Phase.CLEANUP and not task.done():
        await asyncio.wait({task})


def _phase_of(where: Phase | EpisodeProgress) -> Phase:
    return where.phase if isinstance(where, EpisodeProgress) else where


async def keep_error(cleanup: Coroutine[Any, Any, None]) -> ErrorRecord | None:
    """Await a cleanup; its error is logged and recorded, and takes nothing away from the sampled tokens."""
    try:
        await cleanup
    except Exception as error:
        record = ErrorRecord.from_exception(error, Phase.CLEANUP)
        logger.warning("error=<%s>, message=<%s> | cleanup failed", record.type, record.message)
        return record
    return None
