"""Messages over a socket: a length, then a pickle. Between a process and the workers it started, nobody else.

A message holds plain values only, so that it can always be read; what a user's code made travels in it as bytes.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
from typing import Any

_LENGTH = struct.Struct("<Q")


async def read_message(reader: asyncio.StreamReader) -> Any:
    """The next message.

    Raises:
        EOFError: The other side closed, between messages or within one.
    """
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return pickle.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise EOFError("the other side closed the connection") from error


def write_message(writer: asyncio.StreamWriter, message: Any) -> None:
    """Send a message; what cannot be pickled raises before anything is sent."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    writer.write(_LENGTH.pack(len(data)) + data)
