"""The program of a worker process: `python -m strands_env.distributed.worker FD LOG_LEVEL`.

Messages are `(kind, number of the rollout, payload)`; a payload is pickled separately from its message.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import socket
import sys
from typing import Any

from strands_env.core.deadline import escaped
from strands_env.core.rollout import LocalExecutor
from strands_env.distributed.errors import WorkerSetupError
from strands_env.distributed.messages import pack, read_message, write_message
from strands_env.distributed.recipe import Recipe, make_runner


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
        write_message(writer, ("setup_error", None, WorkerSetupError.told_by(error)))
        await writer.drain()
        return
    write_message(writer, ("ready", None, None))
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
        for task in running.values():
            task.cancel()
        await asyncio.gather(*running.values(), return_exceptions=True)


async def _run(runner: LocalExecutor, writer: asyncio.StreamWriter, number: int, payload: bytes) -> None:
    try:
        action, timeout = pickle.loads(payload)
        data = pack(await runner.rollout(action, timeout=timeout))
    except asyncio.CancelledError:  # asked for: one from inside is a WorkCancelledError
        write_message(writer, ("cancelled", number, None))
        raise
    except Exception as error:
        data = pack(error)
    except BaseException as error:  # whatever it is, the other side waits for an answer
        data = pack(escaped(error))
    write_message(writer, ("answer", number, data))


def main() -> None:
    """Serve the inherited socket; log to stderr what the process that started this one would log."""
    logging.basicConfig(level=int(sys.argv[2]), format="%(name)s: %(message)s")
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        connection.setblocking(False)
        # The other side sees this process end only if no child of it holds the connection open.
        connection.set_inheritable(False)
        os.register_at_fork(after_in_child=connection.close)
        asyncio.run(serve(connection))


if __name__ == "__main__":
    main()
