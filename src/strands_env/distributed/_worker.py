"""The program of a worker process: `python -m strands_env.distributed._worker FD`."""

from __future__ import annotations

import asyncio
import socket
import sys
import traceback
from typing import Any

from strands_env.distributed.frames import read_message, write_message
from strands_env.distributed.recipe import Recipe, Runner


async def serve(connection: socket.socket) -> None:
    """Run rollouts until the other side closes; then running ones are cancelled and their environments cleaned up."""
    reader, writer = await asyncio.open_connection(sock=connection)
    try:
        recipe: Recipe = await read_message(reader)  # fails too where a function of a script cannot be found here
        runner = Runner(recipe)
    except EOFError:
        return
    except Exception:
        write_message(writer, ("setup_error", None, traceback.format_exc(limit=-3)))
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


async def _run(runner: Runner, writer: asyncio.StreamWriter, number: int, action: Any) -> None:
    answer: tuple[str, int, Any]
    try:
        answer = ("result", number, await runner.rollout(action))
    except asyncio.CancelledError:
        write_message(writer, ("cancelled", number, None))
        raise
    except Exception as error:
        answer = ("error", number, error)
    try:
        write_message(writer, answer)
    except Exception as error:  # an exception or a result that does not pickle
        shown = "".join(traceback.format_exception(answer[2])) if isinstance(answer[2], Exception) else repr(error)
        write_message(writer, ("error", number, RuntimeError(f"the {answer[0]} cannot be sent back: {shown}")))


def main() -> None:
    """Serve the inherited socket."""
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        connection.setblocking(False)
        asyncio.run(serve(connection))


if __name__ == "__main__":
    main()
