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
from .state import LogFile, StateFolder

_REMEMBERED_KEYS = 10_000  # of deleted sessions, so that their programs get a clear refusal


class SessionTable(dict[str, Session]):
    """Sessions by name.

    Args:
        make: A session with the options of a header, its log and the conversation behind it, each or None.
        folder: Where they are written down, or None.

    Attributes:
        damaged: What is wrong with each log that cannot be read, by the name of its session.
    """

    def __init__(
        self,
        make: Callable[[Mapping[str, Any], LogFile | None, Conversation | None], Session],
        folder: StateFolder | None,
    ) -> None:
        super().__init__()
        self._make, self.folder = make, folder
        self.damaged: dict[str, str] = {}
        self._by_key: dict[bytes, str] = {}  # found by digest: how long it takes says nothing about a key
        self._dropped_keys: Recent[bool] = Recent(_REMEMBERED_KEYS)

    async def restore(self) -> None:
        """Take up the sessions of the folder."""
        for name, header in ({} if self.folder is None else self.folder.headers).items():
            assert self.folder is not None
            self._by_key[key_digest(header["key"])] = name
            log = self.folder.open(name)
            session = self._make(header, log, None)
            try:
                session.log.restore(log.read())
                self[name] = session
            except StateError as error:  # one damaged log hides no other session
                self.damaged[name] = str(error)
            await asyncio.sleep(0)  # each takes milliseconds, and others may be served by this loop

    def find(self, name: str | None) -> Session | None:
        """The session of a name, which is refused if its log is damaged."""
        if name in self.damaged:
            what = f"session {name!r} cannot be read: {self.damaged[name]}; DELETE /sessions/{name} removes it"
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
        log = None if self.folder is None else self.folder.create(header)
        session = self._make(header, log, conversation)
        self[session.id] = session
        self._by_key[key_digest(session.key)] = session.id
        self._dropped_keys.drop(key_digest(session.key))
        return session

    def close(self) -> None:
        """Write nothing more down, and leave the folder to another gateway."""
        for session in self.values():
            session.log.close()
        if self.folder is not None:
            self.folder.close()

    def remove(self, session: Session) -> None:
        """Forget a session, also its log."""
        self.pop(session.id, None)
        if self._by_key.get(key_digest(session.key)) == session.id:  # else another one has been opened with it
            del self._by_key[key_digest(session.key)]
            self._dropped_keys.put(key_digest(session.key), True)
        session.log.remove()

    def remove_damaged(self, name: str) -> bool:
        """Forget a session whose log cannot be read, with that log; False if there is none of this name."""
        if self.damaged.pop(name, None) is None:
            return False
        assert self.folder is not None
        self.folder.open(name).remove()
        return True
