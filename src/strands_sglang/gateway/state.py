"""The state folder: one append-only log of checked lines a session, so that sessions survive the process.

A log begins with a line of what the session was opened with; its other lines are events (`session_log`). What was
written survives a kill of the process, but not a loss of power: nothing is synced.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from ..exceptions import StateError, StateFullError
from ..lines import DamagedLineError, append_lines, finish_line, is_whole, lock, read_lines
from .exact_json import dumps
from .requests import key_digest

_BEGINNING = b'{"at":'
_SUFFIX = ".jsonl"

DEFAULT_LIMIT = 16 * 2**30
"""Most bytes of a state folder."""


class StateFolder:
    """The logs of the sessions of one gateway.

    Args:
        identity: What all of its sessions have in common, by name: version and model of the gateway.
        limit: Most bytes of all logs together.
        owns: Which sessions are this process'; it neither keeps nor counts others.
        locks: Take the folder's lock; False for a worker, whose parent has it.

    Attributes:
        headers: First lines of the logs, by session, the oldest first.
        names: The sessions by the digest of their keys, also those of others.
        size: Bytes of all logs.

    Raises:
        StateError: Another gateway uses the folder, or it holds sessions of another one, or something else.
    """

    def __init__(
        self,
        path: str | Path,
        identity: Mapping[str, str],
        *,
        limit: int = DEFAULT_LIMIT,
        owns: Callable[[str], bool] = lambda session: True,
        locks: bool = True,
    ) -> None:
        self.path, self.identity, self.limit = Path(path), dict(identity), limit
        self.size = 0
        self.names: dict[bytes, str] = {}
        self._lock = lock_folder(self.path) if locks else None
        try:
            self.headers = self._read_headers(owns)
        except BaseException:
            self.close()
            raise

    def _read_headers(self, owns: Callable[[str], bool]) -> dict[str, dict[str, Any]]:
        headers: list[dict[str, Any]] = []
        torn: list[Path] = []
        for file in sorted(self.path.glob(f"*{_SUFFIX}")):
            is_ours = owns(unquote(file.name.removesuffix(_SUFFIX)))  # others are made and removed meanwhile
            try:
                with file.open("rb") as opened:
                    line = opened.readline()
                    size = opened.seek(0, os.SEEK_END)
                if not is_whole(line, _BEGINNING):
                    torn += [file] if is_ours else []
                    continue
            except FileNotFoundError:
                continue
            except DamagedLineError as error:
                raise StateError(
                    f"{str(file)!r} does not begin as the log of a session: {error}; move it elsewhere, or give "
                    "another state folder"
                ) from error
            header = json.loads(line)
            for name, ours in self.identity.items():
                if (theirs := header["gateway"].get(name)) != ours:
                    raise StateError(
                        f"{str(self.path)!r} holds sessions of a gateway with {name} {theirs!r}, and this one has "
                        f"{ours!r}: start it as that one was, or give another state folder"
                    )
            self.names[key_digest(header["key"])] = header["session"]
            if is_ours:
                headers.append(header)
                self.size += size
        for file in torn:  # killed before anybody was given the session
            file.unlink()
        return {header["session"]: header for header in sorted(headers, key=lambda header: float(header["at"]))}

    def create(self, header: Mapping[str, Any]) -> LogFile:
        """The log of a new session, with its first line; `StateFullError` if that cannot be written."""
        file = self._file(header["session"])
        try:
            os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        except OSError as error:
            raise StateFullError(f"the log {str(file)!r} cannot be made: {error.strerror}") from error
        log = LogFile(self, file)
        log.append({**header, "gateway": self.identity})
        try:
            log.flush()
        except StateFullError:
            log.remove()
            raise
        return log

    def open(self, session: str) -> LogFile:
        """The log of an earlier session, to go on with when it is read."""
        return LogFile(self, self._file(session))

    def close(self) -> None:
        """Give the lock back."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _file(self, session: str) -> Path:
        return self.path / (quote(session, safe="") + _SUFFIX)


def lock_folder(path: Path) -> int:
    """The descriptor of a folder's lock, which is free again when the last copy of it is closed."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StateError(f"the state folder {str(path)!r} cannot be used: {error.strerror}") from error
    try:
        lock(descriptor)
    except BlockingIOError:
        os.close(descriptor)
        raise StateError(f"another gateway uses {str(path)!r}: stop it, or give another state folder") from None
    return descriptor


class LogFile:
    """One log: events are appended, and written at once where the device takes them."""

    def __init__(self, folder: StateFolder, path: Path) -> None:
        self._folder, self._path = folder, path  # no descriptor: there are thousands of sessions
        self._length = 0  # of all whole lines
        self._unwritten = b""
        self._is_closed = False

    def append(self, event: Mapping[str, Any]) -> None:
        """Add an event. One that cannot be written is held back until `flush` can."""
        if self._is_closed:
            return
        self._unwritten += finish_line(dumps({"at": time.time(), **event})[:-1])
        with suppress(StateFullError):  # who must not go on without it asks for it
            self.flush()

    def flush(self) -> None:
        """Write what was held back.

        Raises:
            StateFullError: The device refuses, or the folder is as large as it may become.
        """
        if self._is_closed or not self._unwritten:
            return
        folder, size = self._folder, len(self._unwritten)
        full = "no new calls are taken until there is room; close and export sessions, or delete them, to make some"
        if folder.size + size > folder.limit:
            raise StateFullError(f"the state folder has reached its limit of {folder.limit} bytes: {full}")
        try:
            with self._path.open("r+b", buffering=0) as file:
                append_lines(file.fileno(), self._unwritten, self._length)
        except OSError as error:
            raise StateFullError(f"the state folder cannot be written to ({error.strerror}): {full}") from error
        folder.size += size
        self._length += size
        self._unwritten = b""

    def read(self) -> Iterator[dict[str, Any]]:
        """The events behind the first line; a torn last line is left out, and written over by the next event.

        Raises:
            StateError: A line is damaged.
        """
        with self._path.open("rb", buffering=0) as file:
            for number, (offset, line) in enumerate(read_lines(file.fileno()), 1):
                try:
                    is_next = is_whole(line, _BEGINNING)
                    if is_next and offset != self._length:
                        raise DamagedLineError("a line before it is missing")
                except DamagedLineError as error:
                    raise StateError(f"line {number} of {str(self._path)!r}: {error}") from error
                if is_next:
                    self._length += len(line)
                    if number > 1:
                        yield json.loads(line)
            self._folder.size -= os.fstat(file.fileno()).st_size - self._length

    def remove(self) -> None:
        """Remove the log: its session is told of no more."""
        if not self._is_closed:
            with suppress(FileNotFoundError):
                self._folder.size -= self._path.stat().st_size
                self._path.unlink()
            self.close()

    def close(self) -> None:
        """Write nothing more."""
        self._is_closed = True
