"""Deadlines for code that ignores cancellation, work that outlasts a cancelled caller, and the phase of an episode."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from .termination import EpisodeTimeoutError, Phase, WorkCancelledError

logger = logging.getLogger(__name__)

T = TypeVar("T")

GRACE_SECONDS = 5.0
"""Time that cancelled work has to unwind before it is left behind."""


async def within(work: Coroutine[Any, Any, T], seconds: float | None, where: Phase) -> T:
    """Await work for at most this many seconds; None for no deadline.

    Raises:
        EpisodeTimeoutError: The deadline passed; the work was cancelled.
        WorkCancelledError: The work ended in a cancellation nobody asked this caller for.
        RuntimeError: The work raised something other than an `Exception`, such as `SystemExit`.
    """
    try:
        contained = _contain_exits(work, where)
        if seconds is None:
            return await contained
        # No variable for the task, which holds its error: core/garbage.py
        return (await _wait_until(asyncio.create_task(contained), seconds, where)).result()
    except asyncio.CancelledError as error:
        caller = asyncio.current_task()
        if caller is None or caller.cancelling():
            forget_frames(error)
            raise
        raise WorkCancelledError(where) from error


async def _contain_exits(work: Coroutine[Any, Any, T], where: Phase) -> T:
    # Inside the task: an exit or an interrupt that leaves a task ends asyncio's event loop.
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


async def _wait_until(task: asyncio.Task[T], seconds: float, where: Phase) -> asyncio.Task[T]:
    try:
        await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        await stop(task, where)
        raise
    if not task.done():
        await stop(task, where)
        if not _has_result(task):
            raise EpisodeTimeoutError(where, seconds)
    return task


def _has_result(task: asyncio.Task[Any]) -> bool:
    """True for a task that finished while it was being stopped."""
    return task.done() and not task.cancelled() and task.exception() is None


async def to_the_end(work: Coroutine[Any, Any, None], seconds: float | None, where: Phase) -> None:
    """Await work that must run even if the caller is cancelled meanwhile; the cancellation is raised afterwards.

    Raises `EpisodeTimeoutError` and `WorkCancelledError` as `within` does.
    """
    errors: list[BaseException] = []
    await _run_to_the_end(asyncio.create_task(_contain_exits(work, where)), seconds, where, errors)
    if len(errors) > 1:
        logger.warning("where=<%s>, error=<%s> | failed while being cancelled", where, errors[1])
    if errors:
        raise errors.pop(0)  # so that no frame holds it: core/garbage.py


async def _run_to_the_end(
    task: asyncio.Task[None], seconds: float | None, where: Phase, errors: list[BaseException]
) -> None:
    """Add what is to be raised: a cancellation of the caller, and then the failure of the work."""
    loop = asyncio.get_running_loop()
    ends = None if seconds is None else loop.time() + seconds
    while not task.done() and (ends is None or loop.time() < ends):
        try:
            await asyncio.wait({task}, timeout=None if ends is None else max(0.0, ends - loop.time()))
        except asyncio.CancelledError as error:
            errors[:] = [error]
    if not task.done():
        assert seconds is not None
        await stop(task, where)
        if not _has_result(task):
            errors.append(EpisodeTimeoutError(where, seconds))
    elif task.cancelled():
        errors.append(WorkCancelledError(where))
    elif (failure := task.exception()) is not None:
        errors.append(failure)


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


async def stop(task: asyncio.Future[Any], where: Phase, *, is_ending: Callable[[], bool] = lambda: False) -> None:
    """Cancel work and wait for its end.

    Args:
        is_ending: The work is already ending under its own deadline: then it has that time, otherwise `GRACE_SECONDS`.
    """
    task.cancel()
    await asyncio.wait({task}, timeout=GRACE_SECONDS)
    if is_ending():
        await asyncio.wait({task})
    if task.cancelled():
        try:
            task.result()
        except asyncio.CancelledError as error:  # as asked: nobody will look where it was
            forget_frames(error)
    elif not task.done():
        logger.warning(
            "where=<%s>, grace=<%s> | work ignored its cancellation and is left behind", where, GRACE_SECONDS
        )
        task.add_done_callback(lambda done: done.cancelled() or done.exception())


@dataclass(slots=True)
class EpisodeProgress:
    """The running phase of the episode, `LOOP` until set, read by the owner of its deadline. The environment sets it.

    Attributes:
        is_taken: A rollout sets the phase now; one that runs inside that rollout does not.
    """

    phase: Phase = Phase.LOOP
    is_taken: bool = False

    @staticmethod
    @contextmanager
    def take() -> Iterator[EpisodeProgress]:
        """The progress for a rollout to set: the current one, or, inside another rollout, one that nobody reads."""
        current = _current.get()
        if current is None or current.is_taken:
            yield EpisodeProgress()
            return
        current.is_taken = True
        try:
            yield current
        finally:
            current.is_taken = False

    @contextmanager
    def active(self) -> Iterator[EpisodeProgress]:
        """Make this the current one."""
        token = _current.set(self)
        try:
            yield self
        finally:
            _current.reset(token)


_current: ContextVar[EpisodeProgress | None] = ContextVar("strands_env_episode", default=None)
