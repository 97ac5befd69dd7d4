"""HTTP servers of the tests, on loopback: one that fails on command, and one around the embedded engine.

- `FaultyServer`: every answer is chosen by the test: error shapes, resets, half-written JSON, hangs, aborts. It speaks
  SGLang's native API, or vLLM's, and records what it was sent.
- `engine_server`: the embedded engine behind SGLang's routes, so that a client meets a real model over a real socket.
"""

import asyncio
from typing import Any

from . import faults
from .faults import Fault, ServerCall
from .faulty_server import FaultyServer, ServedRequest

__all__ = ["Fault", "FaultyServer", "ServedRequest", "ServerCall", "faults", "settle"]


async def settle(client: Any) -> None:
    """Wait until no abort call of a client is outstanding."""
    while tasks := client._transport()._tasks:
        await asyncio.wait([task for task, _ in tasks.values()])
