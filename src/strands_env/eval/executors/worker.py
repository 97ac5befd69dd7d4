"""The far side of a worker: the host of its rollouts, the program of a worker process, messages and errors.

`WorkerLostError` is also a `ConnectionError`, whose rollouts may run again; `QuarantinedTaskError`: a task ended every
worker that ran it alone; `WorkerSetupError`: no worker can make the environment factory.

Messages are `(number of the call, method of RolloutHost or "cancel", arguments)`, answers `(number, value)`. The
program is given three file descriptors and a log level: the socket, a pipe that closes when the parent dies, and a file
for the stacks of a worker that crashes or is stuck.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from strands_env.core import StepResult, TerminationReason
from strands_env.core.deadline import wrap_exit
from strands_env.core.garbage import tune_garbage_collection
from strands_env.core.rollout import LocalExecutor

SHUTDOWN_SECONDS = 10.0
"""Seconds in which a worker must clean up its environments before it is killed."""
DUMP_SIGNAL = signal.SIGUSR1
"""Makes a worker write the stacks of its threads, whatever they do."""


class RolloutHost:
    """The far side of a worker: runs the rollouts that it is asked for, in a process or an actor.

    Its methods are called by name (`Link.ask`), and their results can always be sent.
    """

    def __init__(self) -> None:
        self._executor: LocalExecutor | None = None
        self._environment: dict[str, Any] | None = None

    async def ready(self, factory: bytes) -> WorkerSetupError | None:
        """Make the environment factory of a pickled function and its arguments; its error, or None."""
        try:
            make, arguments = pickle.loads(factory)  # a function of a script cannot be found here
            env_factory = (resolve_name(make) if isinstance(make, str) else make)(**arguments)
            tune_garbage_collection()  # the process is ours
            self._executor = LocalExecutor(env_factory, self._describe)
        except BaseException as error:
            return WorkerSetupError.from_exception(error)
        return None

    async def rollout(self, request: bytes) -> tuple[bytes, dict[str, Any] | None]:
        """Run the rollout of a pickled action and timeout.

        Only a cancellation that was asked for raises: one from inside is a `WorkCancelledError`.

        Returns:
            The packed result or error of the rollout, and the description of the first environment.
        """
        assert self._executor is not None
        try:
            action, timeout = pickle.loads(request)
            answer = pack(await self._executor.rollout(action, timeout=timeout))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            answer = pack(error)
        except BaseException as error:
            answer = pack(wrap_exit(error))
        return answer, self._environment

    async def describe(self, request: bytes) -> dict[str, Any] | None:
        """`LocalExecutor.describe` of a pickled action, or None."""
        assert self._executor is not None
        try:
            return await self._executor.describe(pickle.loads(request))
        except asyncio.CancelledError:
            raise
        except BaseException:  # of a task that cannot be read here; a rollout of it says so
            return None

    async def alive(self) -> None:
        """Answers as soon as the event loop runs."""

    async def _describe(self, description: dict[str, Any]) -> None:
        self._environment = description


async def serve(connection: socket.socket) -> None:
    """Answer calls until the other side closes; then running ones are cancelled and their environments cleaned up."""
    reader, writer = await asyncio.open_connection(sock=connection)
    host = RolloutHost()
    running: dict[int, asyncio.Task[None]] = {}

    async def answer(number: int, method: str, arguments: tuple[bytes, ...]) -> None:
        write_message(writer, (number, await getattr(host, method)(*arguments)))

    try:
        while True:
            number, method, arguments = await read_message(reader)
            if method != "cancel":
                running[number] = asyncio.create_task(answer(number, method, arguments))
                running[number].add_done_callback(lambda _, number=number: running.pop(number, None))  # type: ignore[misc]
            elif number in running:
                running[number].cancel()
    except EOFError:
        pass
    finally:
        for task in running.values():
            task.cancel()
        await asyncio.gather(*running.values(), return_exceptions=True)


def start_guard(life: int) -> subprocess.Popen[bytes]:
    """A process that outlives the parent for the time of a cleanup and then kills this one's process group.

    A thread could not: it needs the interpreter, which a stuck rollout holds. The group has its number from this
    process, and keeps it as long as the guard is in it. `life` is the read end of a pipe whose other end only the
    parent holds.
    """
    return subprocess.Popen(["/bin/sh", "-c", f"read -r _; sleep {SHUTDOWN_SECONDS:g}; kill -9 0"], stdin=life)


def main() -> None:
    """Serve the inherited socket; log to stderr at the level of the parent process."""
    connected, life, stacks, level = map(int, sys.argv[1:])
    logging.basicConfig(level=level, format="%(name)s: %(message)s")
    faulthandler.enable(stacks)
    faulthandler.register(DUMP_SIGNAL, stacks)
    guard = start_guard(life)
    os.close(life)
    try:
        with socket.socket(fileno=connected) as connection:
            connection.setblocking(False)
            # The other side sees this process end only if no child of it holds the connection open.
            connection.set_inheritable(False)
            os.register_at_fork(after_in_child=connection.close)
            asyncio.run(serve(connection))
    finally:
        guard.kill()
        guard.wait()


# ---- messages --------------------------------------------------------------------------------------------------------
# A message is a length, then a pickle of plain values, so that it can always be read. Objects of a user's code
# travel in it as bytes, pickled separately: unreadable ones cost only their rollout.


_LENGTH = struct.Struct("<Q")


async def read_message(reader: asyncio.StreamReader) -> Any:
    """The next message; `EOFError` when the other side closed, between messages or within one."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return pickle.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise EOFError("the other side closed the connection") from error


def write_message(writer: asyncio.StreamWriter, message: Any) -> None:
    """Send a message; one that cannot be pickled raises before anything is sent."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    writer.write(_LENGTH.pack(len(data)) + data)


def pack(answer: StepResult | Exception) -> bytes:
    """The result or the exception as bytes that can be read again.

    A result that cannot be sent becomes a `RuntimeError`, an exception the nearest of its bases that stands for the
    same `TerminationReason`.
    """
    try:
        data = pickle.dumps(answer, protocol=pickle.HIGHEST_PROTOCOL)
        if isinstance(answer, Exception):
            pickle.loads(data)  # an exception with arguments of its own may pickle and not come back
        return data
    except Exception as error:
        if isinstance(answer, Exception):
            return _plainer(answer, "".join(traceback.format_exception(answer)))
        return pickle.dumps(RuntimeError(f"the result cannot be sent back: {error!r}"))


def _plainer(error: Exception, shown: str) -> bytes:
    text = f"the exception cannot be sent back: {shown}"
    reason = TerminationReason.from_error(error)
    for base in type(error).__mro__[1:]:
        if base is Exception:
            break
        with suppress(Exception):  # it may take other arguments
            data = pickle.dumps(base(text), protocol=pickle.HIGHEST_PROTOCOL)
            if TerminationReason.from_error(pickle.loads(data)) is reason:
                return data
    return pickle.dumps(RuntimeError(text))


def unpack(data: bytes) -> StepResult:
    """The result, here. Raises the rollout's error, or the reason why the answer cannot be read here."""
    try:
        answer: Any = pickle.loads(data)
    except Exception as error:
        raise RuntimeError(f"the answer of a worker cannot be read here: {error!r}") from error
    if isinstance(answer, Exception):
        raise answer
    result: StepResult = answer
    return result


# ---- errors ----------------------------------------------------------------------------------------------------------


class WorkerLostError(ConnectionError):
    """A worker ended. Its rollouts may be run again; executors do, each alone, and the evaluator does.

    Attributes:
        rollouts: Rollouts it was running; 0 where it ended before one began.
        was_stuck: It did not respond and was killed.
    """

    def __init__(self, worker: str, reason: str, rollouts: int = 0, was_stuck: bool = False) -> None:
        super().__init__(worker, reason, rollouts, was_stuck)
        self.worker = worker
        self.reason = reason
        self.rollouts = rollouts
        self.was_stuck = was_stuck

    def __str__(self) -> str:
        return f"{self.worker} was lost: {self.reason}"


@dataclass(eq=False, repr=False)
class QuarantinedTaskError(RuntimeError):
    """A task ended or blocked every worker that ran it alone, and is not run again by this executor.

    An evaluation counts its sample as lost: it has no reward for any reason.

    Attributes:
        task: Its id.
        deaths: Workers that ended with it.
        reason: The end of the last one.
    """

    task: str
    deaths: int
    reason: str

    def __str__(self) -> str:
        workers = "a worker" if self.deaths == 1 else f"{self.deaths} workers"
        return (
            f"the task {self.task!r} ended {workers} that ran nothing else, and is not run again; "
            f"the last one: {self.reason}"
        )


class WorkerSetupError(RuntimeError):
    """A worker could not make the environment factory, so no rollout can run. A note shows where it was raised.

    It `is_fatal`: an evaluation ends with it instead of failing sample by sample.
    """

    is_fatal = True

    def __init__(self, message: str, where: str = "") -> None:
        super().__init__(message, where)
        self.message = message
        if where:
            self.add_note(where)

    @classmethod
    def from_exception(cls, error: BaseException) -> WorkerSetupError:
        """The report of a worker; unlike the exception, it can always be sent."""
        where = "".join(traceback.format_exception(error, limit=-3))
        return cls(f"{type(error).__name__}: {error}", f"In the worker:\n{where}")

    def __str__(self) -> str:
        return f"a worker cannot make the environment factory: {self.message}"
