"""The program of a worker process: `python -m strands_env.distributed.worker SOCKET LIFE STACKS LOG_LEVEL`.

Messages are `(kind, number of the rollout, payload)`; a payload is pickled separately from its message. The pipe `LIFE`
closes when the parent dies; the file `STACKS` takes the stacks of a worker that crashes or is stuck.
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
from typing import Any

from strands_env.core.rollout import LocalExecutor
from strands_env.distributed.errors import WorkerSetupError
from strands_env.distributed.messages import Recipe, make_runner, read_message, run_packed, write_message

BEAT_SECONDS = 1.0
"""Seconds between two signs of life."""
SHUTDOWN_SECONDS = 10.0
"""Seconds in which a worker must clean up its environments before it is killed."""
DUMP_SIGNAL = signal.SIGUSR1
"""Makes a worker write the stacks of its threads, whatever they do."""


async def serve(connection: socket.socket) -> None:
    """Run rollouts until the other side closes; then running ones are cancelled and their environments cleaned up."""
    reader, writer = await asyncio.open_connection(sock=connection)

    async def tell(description: dict[str, Any]) -> None:
        write_message(writer, ("environment", None, pickle.dumps(description)))

    try:
        recipe: Recipe = await read_message(reader)  # fails too where a function of a script cannot be found here
        runner = make_runner(recipe, tell)
    except EOFError:
        return
    except BaseException as error:
        write_message(writer, ("setup_error", None, WorkerSetupError.from_exception(error)))
        await writer.drain()
        return
    write_message(writer, ("ready", None, None))

    async def beat() -> None:
        """Send a sign of life now and then: the event loop runs."""
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            write_message(writer, ("alive", None, None))

    beating = asyncio.create_task(beat())
    running: dict[int, asyncio.Task[None]] = {}
    try:
        while True:
            kind, number, payload = await read_message(reader)
            if kind == "run":
                running[number] = asyncio.create_task(_run(runner, writer, number, payload))
                running[number].add_done_callback(lambda _, number=number: running.pop(number, None))  # type: ignore[misc]
            elif number in running:
                running[number].cancel()
    except EOFError:
        pass
    finally:
        beating.cancel()
        for task in running.values():
            task.cancel()
        await asyncio.gather(*running.values(), return_exceptions=True)


async def _run(runner: LocalExecutor, writer: asyncio.StreamWriter, number: int, payload: bytes) -> None:
    try:
        write_message(writer, ("answer", number, await run_packed(runner, payload)))
    except asyncio.CancelledError:
        write_message(writer, ("cancelled", number, None))
        raise


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


if __name__ == "__main__":
    main()
