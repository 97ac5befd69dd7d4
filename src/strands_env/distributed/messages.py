"""Messages between a process and its workers over a socket, and their answers.

A message is a length, then a pickle of plain values, so that it can always be read. What a user's code made travels in
it as bytes, pickled separately: what cannot be read costs only that rollout.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
import traceback
from contextlib import suppress
from typing import Any

from strands_env.core import StepResult, TerminationReason

_LENGTH = struct.Struct("<Q")


async def read_message(reader: asyncio.StreamReader) -> Any:
    """The next message; `EOFError` when the other side closed, between messages or within one."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return pickle.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise EOFError("the other side closed the connection") from error


def write_message(writer: asyncio.StreamWriter, message: Any) -> None:
    """Send a message; what cannot be pickled raises before anything is sent."""
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
    """The result, here. Raises what the rollout raised, or the reason why the answer cannot be read here."""
    try:
        answer: Any = pickle.loads(data)
    except Exception as error:
        raise RuntimeError(f"the answer of a worker cannot be read here: {error!r}") from error
    if isinstance(answer, Exception):
        raise answer
    result: StepResult = answer
    return result
