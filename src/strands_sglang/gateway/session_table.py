"""The sessions of a gateway, by name and by key; those of an earlier process are read when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..cache import Recent
from ..conversation import Conversation
from .requests import key_digest
from .session import Session
from .state import LogFile, StateFolder

_REMEMBERED_KEYS = 10_000  # of deleted sessions, so that their programs get a clear refusal


class SessionTable(Mapping[str, Session]):
    """Sessions by name.

    Args:
        make: A session with the options of a header, its log and the conversation behind it, each or None.
        folder: Where they are written down, or None.
    """

    def __init__(
        self,
        make: Callable[[Mapping[str, Any], LogFile | None, Conversation | None], Session],
        folder: StateFolder | None,
    ) -> None:
        self._make, self.folder = make, folder
        self._unread: dict[str, dict[str, Any]] = {} if folder is None else folder.headers
        self._sessions: dict[str, Session] = {}
        # Found by digest: how long it takes says nothing about a key.
        self._by_key = {key_digest(header["key"]): name for name, header in self._unread.items()}
        self._dropped_keys: Recent[bool] = Recent(_REMEMBERED_KEYS)

    def __getitem__(self, name: str) -> Session:
        if name in self._unread:
            assert self.folder is not None
            log, events = self.folder.open(name)
            session = self._make(self._unread[name], log, None)
            session.log.restore(events)
            self._sessions[name] = session
            del self._unread[name]
        return self._sessions[name]

    def __contains__(self, name: object) -> bool:
        return name in self._sessions or name in self._unread

    def __iter__(self) -> Iterator[str]:
        return iter([*self._unread, *self._sessions])

    def __len__(self) -> int:
        return len(self._unread) + len(self._sessions)

    @property
    def loaded(self) -> list[Session]:
        """The sessions that are in memory."""
        return list(self._sessions.values())

    def by_key(self, key: str) -> Session | None:
        """The session that a key opens."""
        name = self._by_key.get(key_digest(key))
        return None if name is None else self[name]

    def was_dropped(self, key: str) -> bool:
        """A key opened a session that was deleted."""
        return bool(self._dropped_keys.get(key_digest(key)))

    def open(self, header: Mapping[str, Any], conversation: Conversation | None = None) -> Session:
        """A new session; `StateFullError` if it cannot be written down."""
        log = None if self.folder is None else self.folder.create(header)
        session = self._make(header, log, conversation)
        self._sessions[session.id] = session
        self._by_key[key_digest(session.key)] = session.id
        self._dropped_keys.drop(key_digest(session.key))
        return session

    def close(self) -> None:
        """Write nothing more down, and leave the folder to another gateway."""
        for session in self._sessions.values():
            session.log.close()
        if self.folder is not None:
            self.folder.close()

    def remove(self, session: Session) -> None:
        """Forget a session, also its log."""
        self._sessions.pop(session.id, None)
        if self._by_key.get(key_digest(session.key)) == session.id:  # else another one has been opened with it
            del self._by_key[key_digest(session.key)]
            self._dropped_keys.put(key_digest(session.key), True)
        session.log.remove()
