"""One running request: its output, its limits, its end."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import struct
import time

from .protocol import CHUNK, frame, receive
from .system import cpu_seconds, file_count, memory_bytes, other_processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .supervisor import Supervisor

TICK_SECONDS = 0.1
INTERRUPT_GRACE_SECONDS = 1.0
MAX_RESULT_BYTES = 4096


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


class Child:
    """A process started for code, with the read ends of its output."""

    def __init__(self, pid: int, stdout: int, stderr: int) -> None:
        self.pid = pid
        self.stdout = stdout
        self.stderr = stderr
        self.status: int | None = None
        self.requests = -1
        self.results = -1

    def close(self) -> None:
        """Close all descriptors."""
        for descriptor in (self.stdout, self.stderr, self.requests, self.results):
            if descriptor >= 0:
                os.close(descriptor)


class Watch:
    """One running request, from its start to the report of its end."""

    def __init__(self, host: Supervisor, child: Child, request: dict[str, Any], started: float) -> None:
        self.host = host
        self.child = child
        self.limits: dict[str, Any] = host.config["limits"]
        self.request = request
        self.deadline = started + request["wall_seconds"]
        self.captures = {descriptor: Capture(request["output_bytes"]) for descriptor in (child.stdout, child.stderr)}
        self.open = {*self.captures, *([child.results] if child.results >= 0 else [])}
        self.result = bytearray()
        self.streamed = {child.stdout: "stdout", child.stderr: "stderr"} if request.get("streams") else {}
        self.unsent = bytearray()
        self.cpu_before = cpu_seconds(other_processes(host.isolated))
        self.next_check = started + TICK_SECONDS
        self.is_cancelled = False
        host.reaped.clear()

    def follow(self, nonce: str | None) -> dict[str, Any]:
        """Wait until the code ends, or has to."""
        interrupted = False
        while True:
            self._read(min(TICK_SECONDS, max(0.0, self.deadline - time.monotonic())))
            self.host.reap()
            finished = self._find_end(nonce)
            if finished is not None:
                if interrupted:
                    finished |= {"outcome": "timeout"}
                return finished
            breach = self._breach()
            if breach is not None:
                return {"outcome": breach}
            if time.monotonic() < self.deadline:
                continue
            if nonce is None or interrupted:
                return {"outcome": "timeout"}
            interrupted = True  # a KeyboardInterrupt may save the interpreter's state
            self.deadline = time.monotonic() + INTERRUPT_GRACE_SECONDS
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child.pid, signal.SIGINT)

    def drain(self) -> None:
        """Read what is left in the pipes; no writer is alive, or it is stopped."""
        for _ in range(64):
            if not self._read(0.0):
                return

    def _read(self, seconds: float) -> bool:
        """Read what is available within this time; True if there was something."""
        has_output = False
        for descriptor in self.host.wait(self.open, 1000 * seconds):
            if descriptor == self.host.channel.fileno():  # a frame during a call takes the call back
                receive(self.host.channel)
                self.is_cancelled = True
                continue
            try:
                data = os.read(descriptor, CHUNK)
            except BlockingIOError:
                continue
            if not data:
                self.open.discard(descriptor)  # it would stay readable forever
            elif descriptor == self.child.results:
                self.result += data[: MAX_RESULT_BYTES - len(self.result)]
            else:
                self.captures[descriptor].add(data)
                if name := self.streamed.get(descriptor):
                    piece = {"output": name, "data": base64.b64encode(data).decode(), "nonce": self.request["nonce"]}
                    self.unsent += frame(piece)
            has_output = has_output or bool(data)
        if self.unsent:
            with contextlib.suppress(BlockingIOError):  # a host that reads late must not hold up the limits
                del self.unsent[: self.host.channel.send(self.unsent, socket.MSG_DONTWAIT)]
        return has_output

    def _find_end(self, nonce: str | None) -> dict[str, Any] | None:
        if nonce is not None and len(self.result) >= 4:
            size = struct.unpack(">I", self.result[:4])[0]
            if len(self.result) >= 4 + size:
                return self._worker_answer(bytes(self.result[4 : 4 + size]), nonce)
        status = self.child.status if self.child.status is not None else self.host.reaped.get(self.child.pid)
        if status is None:
            return None
        code = os.waitstatus_to_exitcode(status)
        if -code == signal.SIGXCPU:
            return {"outcome": "cpu_limit"}
        if nonce is not None:  # the interpreter is gone, however it went
            return {"outcome": "died", "exit": code}
        return {"outcome": "ok" if code == 0 else "error", "exit": code}

    def _worker_answer(self, data: bytes, nonce: str) -> dict[str, Any]:
        try:
            answer = json.loads(data)
            if answer["nonce"] != nonce:
                raise ValueError(answer["nonce"])
            code = int(answer["exit"])
        except (ValueError, TypeError, KeyError):
            return {"outcome": "died", "detail": "the interpreter's answer was not its own"}
        return {"outcome": "ok" if code == 0 else "error", "exit": code, "sound": True}

    def _breach(self) -> str | None:
        if self.is_cancelled:
            return "cancelled"
        if sum(capture.total for capture in self.captures.values()) > self.request["flood_bytes"]:
            return "output_flood"
        if self.host.writes_too_much():
            return "too_many_files"
        now = time.monotonic()
        if now < self.next_check or now > self.deadline:  # thousands of processes take long to look at
            return None
        spent = time.process_time()
        others = other_processes(self.host.isolated)
        self.next_check = time.monotonic() + max(TICK_SECONDS, 4 * (time.process_time() - spent))
        if cpu_seconds(others) - self.cpu_before > self.request["cpu_seconds"]:
            return "cpu_limit"
        if memory_bytes(others, self.limits["memory_bytes"]) > self.limits["memory_bytes"]:
            return "out_of_memory"
        if file_count(self.host.config["file_systems"]) > self.limits["files"]:
            return "too_many_files"
        return None
