"""The far side of a worker: the host of its rollouts, and the program of a worker process.

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
import subprocess
import sys
from pkgutil import resolve_name
from typing import Any

from strands_env.core.deadline import wrap_exit
from strands_env.core.garbage import tune_garbage_collection
from strands_env.core.rollout import LocalExecutor
from strands_env.distributed.errors import WorkerSetupError
from strands_env.distributed.messages import pack, read_message, write_message

SHUTDOWN_SECONDS = 10.0
"""Seconds in which a worker must clean up its environments before it is killed."""
DUMP_SIGNAL = signal.SIGUSR1
"""Makes a worker write the stacks of its threads, whatever they do."""


class RolloutHost:
    """The far side of a worker: runs the rollouts that it is asked for, in a process or an actor.

    Its methods are called by name (`Link.ask`), and what they return can always be sent.
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
            The packed result, or whatever the rollout raised, and the description of the first environment.
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
    """Serve the inherited socket; log to stderr what the process that started this one would log."""
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
