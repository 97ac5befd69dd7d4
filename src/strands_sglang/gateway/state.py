"""The state folder: one append-only log of checked lines a session, so that sessions survive the process.

A log begins with a line of what the session was opened with; its other lines are events (`session_log`). What was
written survives a kill of the process, but not a loss of power: nothing is synced.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
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


class StateFolder:
    """The logs of the sessions of one gateway.

    Args:
        identity: What all of its sessions have in common, by name: version and model of the gateway.
        limit: Most bytes of all logs together.
        locks: Take the folder's lock; False for a worker, whose parent has it.

    Attributes:
        size: Bytes of all logs.

    Raises:
        StateError: Another gateway uses the folder.
    """

    def __init__(
        self, path: str | Path, identity: Mapping[str, str], *, limit: int = DEFAULT_LIMIT, locks: bool = True
    ) -> None:
        self.path, self.identity, self.limit = Path(path), dict(identity), limit
        self.size = 0
        self._lock = lock_folder(self.path) if locks else None

    def read(self, owns: Callable[[str], bool]) -> Iterator[tuple[dict[str, Any], LogFile, Iterator[dict[str, Any]]]]:
        """What each session was opened with, its log and its other events; `owns` says which are this process'.

        Raises:
            StateError: The folder holds sessions of another gateway, or something else.
        """
        for path in sorted(self.path.glob(f"*{_SUFFIX}")):
            log = LogFile(self, path)
            events = log.read()
            try:
                header = next(events, None)
            except FileNotFoundError:  # others are made and removed meanwhile
                continue
            except StateError as error:
                what = "does not begin as the log of a session; move it elsewhere, or give another state folder"
                raise StateError(f"{str(path)!r} {what} ({error})") from error
            if header is not None:
                self._check(header)
                yield header, log, events
            elif owns(unquote(path.name.removesuffix(_SUFFIX))):  # killed before anybody was given the session
                log.remove()

    def _check(self, header: Mapping[str, Any]) -> None:
        for name, ours in self.identity.items():
            if (theirs := header["gateway"].get(name)) != ours:
                raise StateError(
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
    """One log: events are appended, and written at once where the device takes them. Without a folder, none are.

    Attributes:
        length: Bytes of all whole lines.
        is_closed: Nothing more is written.
    """

    def __init__(self, folder: StateFolder | None = None, path: Path = Path()) -> None:
        self._folder, self.path = folder, path  # no descriptor: there are thousands of sessions
        self.length = 0
        self.is_closed = folder is None
        self._unwritten = b""

    def append(self, event: Mapping[str, Any], *, is_held: bool = True) -> None:
        """Add an event. One that cannot be written is held back until `flush` can.

        Raises:
            StateFullError: It cannot be written, and `is_held` is False: there is no such event.
        """
        if self.is_closed:
            return
        before = self._unwritten
        self._unwritten += finish_line(dumps({"at": time.time(), **event})[:-1])
        try:
            self.flush()
        except StateFullError:  # who must not go on without it asks for it
            if not is_held:
                self._unwritten = before
                raise

    def flush(self) -> None:
        """Write what was held back.

        Raises:
            StateFullError: The device refuses, or the folder is as large as it may become.
        """
        folder, size = self._folder, len(self._unwritten)
        if folder is None or self.is_closed or not size:
            return
        full = "no new calls are taken until there is room; export closed sessions, or delete some, to make it"
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
            StateError: A line is damaged.
        """
        with self.path.open("rb", buffering=0) as file:
            for number, (offset, line) in enumerate(read_lines(file.fileno()), 1):
                try:
                    is_next = is_whole(line, _BEGINNING)
                    if is_next and offset != self.length:
                        raise DamagedLineError("a line before it is missing")
                except DamagedLineError as error:
                    raise StateError(f"line {number} of {str(self.path)!r}: {error}") from error
                if is_next:
                    self.length += len(line)
                    yield json.loads(line)

    def remove(self) -> None:
        """Remove the log: its session is told of no more."""
        if self._folder is not None and not self.is_closed:
            self.path.unlink(missing_ok=True)
            self._folder.size -= self.length
            self.close()

    def close(self) -> None:
        """Write nothing more."""
        self.is_closed = True
