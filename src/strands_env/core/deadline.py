"""Deadlines for code that ignores cancellation, work that outlasts a cancelled caller, and the phase of an episode."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from .termination import EpisodeTimeoutError, Phase, WorkCancelledError

logger = logging.getLogger(__name__)

T = TypeVar("T")

GRACE_SECONDS = 5.0
"""Time that cancelled work has to unwind before it is left behind."""


@dataclass(slots=True)
class EpisodeProgress:
    """The phase of an episode, and whether it has a reward: set by its rollout, read by the owner of its deadline."""

    phase: Phase = Phase.LOOP
    is_scored: bool = False

    @staticmethod
    @contextmanager
    def take() -> Iterator[EpisodeProgress]:
        """The progress for a rollout to set. Rollouts inside it find none, and set one that nobody reads."""
        progress = _current.get() or EpisodeProgress()
        token, running = _current.set(None), _running.set(progress)
        try:
            yield progress
        finally:
            _current.reset(token)
            _running.reset(running)

    @staticmethod
    @contextmanager
    def entered(phase: Phase) -> Iterator[None]:
        """The rollout that the calling code runs in is in another phase meanwhile."""
        progress = _running.get() or EpisodeProgress()
        before, progress.phase = progress.phase, phase
        try:
            yield
        finally:
            progress.phase = before

    @contextmanager
    def active(self) -> Iterator[EpisodeProgress]:
        """Make this the one that the next rollout takes."""
        token = _current.set(self)
        try:
            yield self
        finally:
            _current.reset(token)


_current: ContextVar[EpisodeProgress | None] = ContextVar("strands_env_episode", default=None)
_running: ContextVar[EpisodeProgress | None] = ContextVar("strands_env_running_episode", default=None)


async def within(work: Coroutine[Any, Any, T], seconds: float | None, where: Phase | EpisodeProgress) -> T:
    """Await work for at most this many seconds; None for no deadline.

    Args:
        where: The phase that the work is. Of a whole episode its progress: then the deadline is for everything before
            the cleanup, which has its own.

    Raises:
        EpisodeTimeoutError: The deadline passed; the work was cancelled.
        WorkCancelledError: The work ended in a cancellation nobody asked this caller for.
        RuntimeError: The work raised something other than an `Exception`, such as `SystemExit`.
    """
    is_episode = isinstance(where, EpisodeProgress)
    progress = where if isinstance(where, EpisodeProgress) else EpisodeProgress(where)
    # Inside the task: an exit or an interrupt that leaves a task ends asyncio's event loop.
    contained = contain_exits(work, "rollout" if is_episode else progress.phase)
    try:
        if seconds is None:
            return await contained
        task = asyncio.create_task(contained)
        try:
            await asyncio.wait({task}, timeout=seconds)
            if is_episode and progress.phase is Phase.CLEANUP:
                await asyncio.wait({task})
            if not task.done():
                late = progress.phase
                await stop(task, progress)
                if not task.done() or task.cancelled() or task.exception() is not None:
                    raise EpisodeTimeoutError(late, seconds, progress.is_scored)
            return task.result()
        except asyncio.CancelledError:
            await stop(task, progress)
            raise
        finally:
            del task  # it holds its error, whose traceback holds this frame: core/garbage.py
    except asyncio.CancelledError as error:
        caller = asyncio.current_task()
        if caller is None or caller.cancelling():
            forget_frames(error)
            raise
        raise WorkCancelledError(progress.phase) from error


async def to_the_end(work: Coroutine[Any, Any, None], seconds: float | None, where: Phase) -> None:
    """Await work that must run even if the caller is cancelled meanwhile; the cancellation is raised afterwards.

    Raises what `within` does.
    """
    task = asyncio.create_task(within(work, seconds, where))
    cancelled: asyncio.CancelledError | None = None
    try:
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is None:
            return task.result()
        if (failure := task.exception()) is not None:
            logger.warning("where=<%s>, error=<%s> | failed while being cancelled", where, failure)
        raise cancelled
    finally:
        failure = None
        del task, cancelled  # no frame of an error holds it: core/garbage.py


async def contain_exits(work: Coroutine[Any, Any, T], where: str) -> T:
    """Await work; what it raises other than an `Exception` becomes one."""
    try:
        return await work
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:
        if is_closing(error):
            raise
        raise wrap_exit(error, where) from error


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


async def stop(task: asyncio.Future[Any], progress: EpisodeProgress, grace: float | None = None) -> None:
    """Cancel work and wait for its end, for `GRACE_SECONDS` if not said otherwise.

    An episode that is cleaning up ends under its own deadline, and has that time.
    """
    if task.done():
        return
    grace = GRACE_SECONDS if grace is None else grace
    task.cancel()
    await asyncio.wait({task}, timeout=grace)
    if progress.phase is Phase.CLEANUP:
        await asyncio.wait({task})
    if not task.done():
        logger.warning(
            "where=<%s>, grace=<%s> | work ignored its cancellation and is left behind", progress.phase, grace
        )
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
    elif task.cancelled():
        try:
            task.result()
        except asyncio.CancelledError as error:  # as asked: nobody will look where it was
            forget_frames(error)
    else:
        task.exception()  # it is not missed: the caller has the work's end, or another error
