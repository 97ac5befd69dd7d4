"""The state folder: one append-only log of checked lines a session, so that sessions survive the process.

A log begins with a line of the options of its session; its other lines are events (`session_log`). Written lines
survive a kill of the process, but not a loss of power: nothing is synced.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from ..exceptions import StateError, StateFullError
from ..lines import DamagedLineError, append_lines, finish_line, is_whole, lock, read_lines
from .exact_json import dumps

_BEGINNING = b'{"at":'
_SUFFIX = ".jsonl"

DEFAULT_LIMIT = 16 * 2**30
"""Most bytes of a state folder."""


FORMAT = "numbered lines"
"""The form of the logs, which is a part of a gateway's version."""


class OtherGatewayError(StateError):
    """The folder holds the sessions of a gateway of another version or model."""


class StateFolder:
    """The logs of the sessions of one gateway.

    Args:
        identity: Facts that all of its sessions share, by name: version and model of the gateway.
        limit: Most bytes of all logs together.

    Attributes:
        size: Bytes of all logs.

    Raises:
        StateError: Another gateway uses the folder.
    """

    def __init__(self, path: str | Path, identity: Mapping[str, str], *, limit: int = DEFAULT_LIMIT) -> None:
        self.path, self.identity, self.limit = Path(path), dict(identity), limit
        self.size = 0
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock: int | None = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StateError(f"the state folder {str(path)!r} cannot be used: {error.strerror}") from error
        try:
            lock(self._lock)
        except BlockingIOError:
            self.close()
            raise StateError(f"another gateway uses {str(path)!r}: stop it, or give another state folder") from None

    def logs(self) -> list[LogFile]:
        """All logs, by the names of their files."""
        return [LogFile(self, path) for path in sorted(self.path.glob(f"*{_SUFFIX}"))]

    def check(self, header: Mapping[str, Any]) -> None:
        """`OtherGatewayError` if a session was opened by a gateway of another version or model."""
        for name, ours in self.identity.items():
            if (theirs := header["gateway"].get(name)) != ours:
                raise OtherGatewayError(
                    f"{str(self.path)!r} holds sessions of a gateway with {name} {theirs!r}, and this one has "
                    f"{ours!r}: start it as that one was, or give another state folder"
                )

    def log_of(self, name: str) -> LogFile:
        """The log of a session that is to have this name; nothing is made yet."""
        return LogFile(self, self.path / (quote(name, safe="") + _SUFFIX))

    def create(self, log: LogFile, header: Mapping[str, Any]) -> None:
        """Make the log of a new session, with its first line; `StateFullError` if that cannot be written."""
        try:
            os.close(os.open(log.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        except OSError as error:
            raise StateFullError(f"the log {str(log.path)!r} cannot be made: {error.strerror}") from error
        log.append({**header, "gateway": self.identity})
        try:
            log.flush()
        except StateFullError:
            log.remove()
            raise

    def close(self) -> None:
        """Give the lock back."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def is_state_log(path: Path) -> bool:
    """True for the log of a session, whole or damaged."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_BEGINNING)) == _BEGINNING


class LogFile:
    """A log: events are appended, and written at once where the device takes them. Without a folder, none are.

    Attributes:
        length: Bytes of all whole lines.
        count: Number of all lines, also of those that are held back.
        is_closed: Nothing more is written.
    """

    def __init__(self, folder: StateFolder | None = None, path: Path = Path()) -> None:
        self._folder, self.path = folder, path  # no descriptor: there are thousands of sessions
        self.length = 0
        self.count = 0
        self.is_closed = folder is None
        self._unwritten = b""

    @property
    def name(self) -> str:
        """The session's."""
        return unquote(self.path.name.removesuffix(_SUFFIX))

    def append(self, event: Mapping[str, Any], *, is_held: bool = True) -> None:
        """Add an event. One that cannot be written is held back until `flush` can.

        Raises:
            StateFullError: It cannot be written, and `is_held` is False: there is no such event.
        """
        if self.is_closed:
            return
        before = self._unwritten
        self.count += 1
        self._unwritten += finish_line(dumps({"at": time.time(), "line": self.count, **event})[:-1])
        try:
            self.flush()
        except StateFullError:  # who must not go on without it asks for it
            if not is_held:
                self._unwritten = before
                self.count -= 1
                raise

    def flush(self) -> None:
        """Write the lines that were held back.

        Raises:
            StateFullError: The device refuses, or the folder is as large as it may become.
        """
        folder, size = self._folder, len(self._unwritten)
        if folder is None or self.is_closed or not size:
            return
        full = "no new calls are taken until there is room; read the rows of closed sessions, then DELETE these"
        if folder.size + size > folder.limit:
            raise StateFullError(f"the state folder has reached its limit of {folder.limit} bytes: {full}")
        try:
            with self.path.open("r+b", buffering=0) as file:
                append_lines(file.fileno(), self._unwritten, self.length)
        except OSError as error:
            raise StateFullError(f"the state folder cannot be written to ({error.strerror}): {full}") from error
        folder.size += size
        self.length += size
        self._unwritten = b""

    def read(self) -> Iterator[dict[str, Any]]:
        """All events; a torn last line is left out, and written over by the next event.

        Raises:
            StateError: A line is damaged, missing or there twice.
        """
        with self.path.open("rb", buffering=0) as file:
            for number, (offset, line) in enumerate(read_lines(file.fileno()), 1):
                try:
                    if not is_whole(line, _BEGINNING):
                        continue
                    event = json.loads(line)
                    # The first line of a log of another form has no number: its version is reported instead.
                    if offset != self.length or event.get("line", 1) != number:
                        raise DamagedLineError("a line before it is missing, or there twice")
                except ValueError as error:
                    raise StateError(f"line {number} of {str(self.path)!r}: {error}") from error
                self.length += len(line)
                self.count = number
                yield event

    def remove(self) -> None:
        """Remove the log: its session is told of no more."""
        if self._folder is not None and not self.is_closed:
            self.path.unlink(missing_ok=True)
            self._folder.size -= self.length
            self.close()

    def close(self) -> None:
        """Write nothing more."""
        self.is_closed = True
