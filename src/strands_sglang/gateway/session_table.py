"""The sessions of a gateway, by name and by key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from ..cache import Recent
from ..conversation import Conversation
from ..exceptions import StateError
from .dialects.wire import Refused
from .requests import key_digest
from .session import Session
from .state import LogFile, OtherGatewayError, StateFolder

_REMEMBERED_KEYS = 10_000  # of deleted sessions, so that their programs get a clear refusal


class SessionTable(dict[str, Session]):
    """Sessions by name.

    Args:
        make: A session with the options of a header, its log, and the conversation behind it or None.
        folder: Where they are written down, or None.

    Attributes:
        damaged: Logs that cannot be read, and the reasons, by the names of their sessions.
    """

    def __init__(
        self, make: Callable[[Mapping[str, Any], LogFile, Conversation | None], Session], folder: StateFolder | None
    ) -> None:
        super().__init__()
        self._make, self.folder = make, folder
        self.damaged: dict[str, tuple[LogFile, str]] = {}
        self._by_key: dict[bytes, str] = {}  # found by digest: how long it takes says nothing about a key
        self._dropped_keys: Recent[bool] = Recent(_REMEMBERED_KEYS)

    async def restore(self) -> None:
        """Take up the sessions of the folder.

        Raises:
            OtherGatewayError: The folder holds sessions of a gateway of another version or model.
        """
        if (folder := self.folder) is None:
            return
        opened: dict[bytes, float] = {}  # when the newest session of a key was
        for log in folder.logs():
            events = log.read()
            try:
                if (header := next(events, None)) is None:
                    log.remove()  # killed before anybody was given the session
                    continue
                if "gateway" not in header or header["session"] != log.name:
                    raise StateError(f"{str(log.path)!r} does not begin as the log of session {log.name!r}")
                folder.check(header)
                key = key_digest(header["key"])
                if header["at"] >= opened.get(key, 0):
                    opened[key], self._by_key[key] = header["at"], log.name
                session = self._make(header, log, None)
                session.log.restore(events)
                self[log.name] = session
            except OtherGatewayError:
                raise
            except Exception as error:  # of any kind: one damaged log hides no other session
                what = f"line {log.count} of {str(log.path)!r} is damaged: {error!r}"
                self.damaged[log.name] = log, str(error) if isinstance(error, StateError) else what
                log.length = log.path.stat().st_size
            folder.size += log.length
            await asyncio.sleep(0)  # each takes milliseconds, and others may be served by this loop

    def find(self, name: str | None) -> Session | None:
        """The session of a name, which is refused if its log is damaged."""
        if name in self.damaged:
            what = f"session {name!r} cannot be read: {self.damaged[name][1]}; DELETE /sessions/{name} removes it"
            raise Refused(what, status=500, code="session_damaged")
        return self.get(name or "")

    def by_key(self, key: str) -> Session | None:
        """The session that a key opens."""
        return self.find(self._by_key.get(key_digest(key)))

    def was_dropped(self, key: str) -> bool:
        """A key opened a session that was deleted."""
        return bool(self._dropped_keys.get(key_digest(key)))

    def open(self, header: Mapping[str, Any], conversation: Conversation | None = None) -> Session:
        """A new session; `StateFullError` if it cannot be written down."""
        log = LogFile() if self.folder is None else self.folder.log_of(header["session"])
        session = self._make(header, log, conversation)  # first: it refuses wrong options, of which nothing is to stay
        if self.folder is not None:
            self.folder.create(log, header)
        self[session.id] = session
        self._by_key[key_digest(session.key)] = session.id
        self._dropped_keys.drop(key_digest(session.key))
        return session

    def close(self) -> None:
        """Write nothing more down, and leave the folder to another gateway."""
        for session in self.values():
            session.log.file.close()
        if self.folder is not None:
            self.folder.close()

    def remove(self, session: Session) -> None:
        """Forget a session, also its log."""
        self.pop(session.id, None)
        if self._by_key.get(key_digest(session.key)) == session.id:  # otherwise another one has been opened with it
            del self._by_key[key_digest(session.key)]
            self._dropped_keys.put(key_digest(session.key), True)
        session.log.file.remove()

    def remove_damaged(self, name: str) -> bool:
        """Forget a session whose log cannot be read, with that log; False if there is none of this name."""
        if name not in self.damaged:
            return False
        log, _ = self.damaged[name]
        try:
            log.remove()
        except OSError as error:  # it is a folder, say
            what = f"{str(log.path)!r} cannot be removed ({error.strerror}): move it away, and start the gateway again"
            raise Refused(what, status=500, code="session_damaged") from error
        del self.damaged[name]
        return True
