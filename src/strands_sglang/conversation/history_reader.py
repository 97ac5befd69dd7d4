"""Reads the histories that clients send whole with every call, so that a message is read once."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import orjson

from ..trajectory import History, Message, encode_value
from .messages import is_read_as, read_message

T = TypeVar("T")
ReadsAs = Callable[[Sequence[Any], Sequence[T]], bool]


@dataclass(slots=True, eq=False)
class _ReadHistory(Generic[T]):
    """A history that was read, and what its items are compared by.

    Most items are compared with what was read from them, and nothing else is kept of them. The others are compared by
    their bytes: the types of numbers and the order of keys are printed.
    """

    values: list[T] = field(default_factory=list)
    plain_at: list[int] = field(default_factory=list)
    plain: list[T] = field(default_factory=list)
    exact_at: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=lambda: [1])
    """Where the bytes of each other item begin, and where the next would."""
    exact: bytearray = field(default_factory=lambda: bytearray(b"["))
    """The bytes of all other items as one list of JSON that is still open: it is compared whole."""

    def is_start_of(self, items: Sequence[Any], reads_as: ReadsAs[T]) -> bool:
        """True if the items begin with this history."""
        size, plain = len(self.values), self.plain
        if size > len(items):
            return False
        if plain and self.plain_at[-1] == size - 1 and not reads_as([items[size - 1]], plain[-1:]):
            return False  # without a look at the rest, as for another agent's
        if plain and not reads_as([items[index] for index in self.plain_at], plain):
            return False
        exact = [items[index] for index in self.exact_at]
        return not exact or _encode_list(exact)[:-1] == self.exact[:-1]  # views would be compared byte by byte

    def add(self, item: Any, value: T, reads_as: ReadsAs[T]) -> None:
        """Append an item, which was read as `value`."""
        if reads_as([item], [value]):
            self.plain.append(value)
            self.plain_at.append(len(self.values))
        else:
            self.exact += memoryview(_encode_list([item]))[1:-1]
            self.exact += b","
            self.ends.append(len(self.exact))
            self.exact_at.append(len(self.values))
        self.values.append(value)

    def common_start(self, items: Sequence[Any]) -> int:
        """Number of items that both begin with, where all items of this history are compared by their bytes."""
        for index, item in enumerate(items[: len(self.exact_at)]):
            begin, end = self.ends[index], self.ends[index + 1] - 1
            if _encode_list([item])[1:-1] != self.exact[begin:end]:
                return index
        return min(len(items), len(self.exact_at))

    def up_to(self, count: int) -> _ReadHistory[T]:
        """The history up to an index."""
        plain, exact = bisect_left(self.plain_at, count), bisect_left(self.exact_at, count)
        ends = self.ends[: exact + 1]
        return _ReadHistory(
            self.values[:count],
            self.plain_at[:plain],
            self.plain[:plain],
            self.exact_at[:exact],
            ends,
            self.exact[: ends[-1]],
        )


class HistoryReader(Generic[T]):
    """Reads histories item by item; an item that came before at its place, exactly as it is, is not read again.

    Args:
        capacity: Number of histories that are remembered.
        reads_as: Tells for sure that these items would be read as these values; False where it may be otherwise.
    """

    def __init__(self, capacity: int, reads_as: ReadsAs[T] = lambda items, values: False) -> None:
        self._capacity, self._reads_as = capacity, reads_as
        self._recent: list[_ReadHistory[T]] = []
        self._lock = threading.Lock()

    def read_items(self, items: Sequence[Any], read_one: Callable[[Any, int, Sequence[T]], T]) -> list[T]:
        """The history, read by `read_one` from an item, its index and the values before it."""
        with self._lock:  # agents of one episode may run in several threads
            history: _ReadHistory[T] = _ReadHistory()
            count = 0
            for each in self._recent:  # the longest: items behind a shorter one would be read again
                if (size := len(each.values)) > count and each.is_start_of(items, self._reads_as):
                    history, count = each, size
            others = [each for each in self._recent if each is not history]
            if not count:
                history = self._take_common_start(items, others)
                count = len(history.values)
            for index in range(count, len(items)):
                item = items[index]
                value = read_one(item, index, history.values)
                history.add(item, value, self._reads_as)
            self._recent = [*others[-(self._capacity - 1) :], history]
            return history.values[:]

    def _take_common_start(self, items: Sequence[Any], others: list[_ReadHistory[T]]) -> _ReadHistory[T]:
        """The start of a history whose last items a client spells anew, in place of that history."""
        for each in others:
            if each.plain:
                continue
            count = each.common_start(items)
            if 2 * count >= len(each.values):  # agents that only begin alike keep separate histories
                others.remove(each)
                return each.up_to(count)
        return _ReadHistory()


def _encode_list(items: list[Any]) -> bytes:
    try:
        return orjson.dumps(items)
    except TypeError:  # images, an integer beyond 64 bits, or half of a surrogate pair
        return b"[%b]" % b",".join(map(encode_value, items))


class StrandsReader(HistoryReader[History]):
    """Reads the histories of an episode's agents, which may change their messages in place."""

    def __init__(self) -> None:
        super().__init__(64, _is_read_as)

    def read(self, messages: Sequence[Any], reply: Message | None = None) -> History:
        """The history of Strands messages; `reply` is one that may be among them, which is then not read again."""

        def read_one(message: Any, index: int, before: Sequence[History]) -> History:
            history = before[-1] if before else History()
            known = reply is not None and is_read_as([message], [reply])
            return History(history, reply if known else read_message(message, index, history))

        read = self.read_items(messages, read_one)
        return read[-1] if read else History()


def _is_read_as(items: Sequence[Any], read: Sequence[History]) -> bool:
    return is_read_as(items, [history.last for history in read if history.last is not None])
