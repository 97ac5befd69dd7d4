"""The protocol of the socket to the host: frames of a 4-byte big-endian length and JSON, and streams in them."""

from __future__ import annotations

import base64
import json
import os
import select
import socket
import struct
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CHUNK = 65536


def receive(channel: socket.socket) -> Any:
    """The next frame; `ConnectionResetError` when the other side is gone."""
    return json.loads(_read_exactly(channel, struct.unpack(">I", _read_exactly(channel, 4))[0]))


def _read_exactly(channel: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = channel.recv(min(count - len(data), CHUNK))
        if not part:
            raise ConnectionResetError("the host is gone")
        data += part
    return bytes(data)


def send(channel: socket.socket, value: Any) -> None:
    """Send a frame."""
    channel.sendall(frame(value))


def frame(value: Any) -> bytes:
    """The bytes of a frame."""
    body = json.dumps(value).encode()
    return struct.pack(">I", len(body)) + body


def send_frame(pipe: int, value: Any, *, seconds: float = 5.0) -> None:
    """Send a frame to an interpreter. Gives up on one that does not read it in time, or has ended."""
    data = frame(value)
    os.set_blocking(pipe, False)
    deadline = time.monotonic() + seconds
    while data and time.monotonic() < deadline:
        try:
            data = data[os.write(pipe, data) :]
        except BlockingIOError:
            select.select([], [pipe], [], 0.1)
        except BrokenPipeError:
            return  # its exit is found when it is watched


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


class Capture:
    """The beginning and the end of a stream of any length."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, data: bytes) -> None:
        """More bytes of the stream."""
        self.total += len(data)
        room = (self.limit + 1) // 2 - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > self.limit + CHUNK:
            del self._tail[: len(self._tail) - self.limit // 2]

    def answer(self) -> dict[str, Any]:
        """Head, tail, and the number of bytes dropped between them."""
        keep = self.limit // 2
        tail = bytes(self._tail[-keep:]) if keep else b""
        return {
            "head": base64.b64encode(bytes(self._head)).decode(),
            "tail": base64.b64encode(tail).decode(),
            "dropped": self.total - len(self._head) - len(tail),
        }
