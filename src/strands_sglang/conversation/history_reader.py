"""Reads the histories that clients send whole with every call, so that a message is read once."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import orjson

from ..trajectory import History, encode_value
from .messages import read_message

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _ReadHistory(Generic[T]):
    """A history that was read, and the keys of its items with their indices.

    Plain texts are compared by `==`, in C, and copies share them. It would be too lax for anything else, of which the
    types of numbers and the order of keys are printed: other items are compared by their bytes.
    """

    values: list[T] = field(default_factory=list)
    text_at: list[int] = field(default_factory=list)
    texts: list[Any] = field(default_factory=list)
    exact_at: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=lambda: [1])
    """Where the bytes of each other item begin, and where the next would."""
    exact: bytearray = field(default_factory=lambda: bytearray(b"["))
    """The bytes of all other items as one list of JSON that is still open: it is compared whole."""

    def is_start_of(self, items: Sequence[Any]) -> bool:
        """True if the items begin with this history."""
        size = len(self.values)
        if size > len(items) or (self.text_at and self.text_at[-1] == size - 1 and self.texts[-1] != items[size - 1]):
            return False  # without a look at the rest, as for another agent's
        if [items[index] for index in self.text_at] != self.texts:
            return False
        exact = [items[index] for index in self.exact_at]
        return not exact or _encode_list(exact)[:-1] == self.exact[:-1]  # views would be compared byte by byte

    def add(self, item: Any, value: T, text: Any) -> None:
        """Append an item, which was read as `value`; `text` is a copy of it, where it is nothing but text."""
        if text is None:
            self.exact += memoryview(_encode_list([item]))[1:-1]
            self.exact += b","
            self.ends.append(len(self.exact))
            self.exact_at.append(len(self.values))
        else:
            self.texts.append(text)
            self.text_at.append(len(self.values))
        self.values.append(value)

    def common_start(self, items: Sequence[Any]) -> int:
        """Number of items that both begin with, where no item of this history is nothing but text."""
        for index, item in enumerate(items[: len(self.exact_at)]):
            begin, end = self.ends[index], self.ends[index + 1] - 1
            if _encode_list([item])[1:-1] != self.exact[begin:end]:
                return index
        return min(len(items), len(self.exact_at))

    def up_to(self, count: int) -> _ReadHistory[T]:
        """The history up to an index."""
        text, exact = bisect_left(self.text_at, count), bisect_left(self.exact_at, count)
        ends = self.ends[: exact + 1]
        return _ReadHistory(
            self.values[:count],
            self.text_at[:text],
            self.texts[:text],
            self.exact_at[:exact],
            ends,
            self.exact[: ends[-1]],
        )


class HistoryReader(Generic[T]):
    """Reads histories item by item; an item that came before at its place, exactly as it is, is not read again.

    Args:
        capacity: Number of histories that are remembered.
        copy_text: Copies an item of nothing but text, which its owner may change; None for any other item.
    """

    def __init__(self, capacity: int, copy_text: Callable[[Any], Any] = lambda item: None) -> None:
        self._capacity, self._copy_text = capacity, copy_text
        self._recent: list[_ReadHistory[T]] = []
        self._lock = threading.Lock()

    def read_items(self, items: Sequence[Any], read_one: Callable[[Any, int, Sequence[T]], T]) -> list[T]:
        """The history, read by `read_one` from an item, its index and the values before it."""
        with self._lock:  # agents of one episode may run in several threads
            history: _ReadHistory[T] = _ReadHistory()
            count = 0
            for each in self._recent:  # the longest: items behind a shorter one would be read again
                if (size := len(each.values)) > count and each.is_start_of(items):
                    history, count = each, size
            others = [each for each in self._recent if each is not history]
            if not count:
                history = self._take_common_start(items, others)
                count = len(history.values)
            for index in range(count, len(items)):
                item = items[index]
                value = read_one(item, index, history.values)
                history.add(item, value, self._copy_text(item))
            self._recent = [*others[-(self._capacity - 1) :], history]
            return history.values[:]

    def _take_common_start(self, items: Sequence[Any], others: list[_ReadHistory[T]]) -> _ReadHistory[T]:
        """The start of a history whose last items a client spells anew, in place of that history."""
        for each in others:
            if each.text_at:
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
        super().__init__(64, _copy_text)

    def read(self, messages: Sequence[Any]) -> History:
        """The history of Strands messages."""
        read = self.read_items(messages, self._read_one)
        return read[-1] if read else History()

    @staticmethod
    def _read_one(message: Any, index: int, before: Sequence[History]) -> History:
        history = before[-1] if before else History()
        return History(history, read_message(message, index, history))


def _copy_text(value: Any) -> Any:
    """A copy of a text, or of a container of texts alone; None for any other value."""
    kind = type(value)
    if kind is str:
        return value
    if kind is list:
        items = list(map(_copy_text, value))
        return None if None in items else items
    if kind is not dict or "toolUse" in value or "json" in value:  # which hold objects of any form
        return None
    copied = {}
    for key, item in value.items():
        copied[key] = item if type(item) is str else _copy_text(item)
    return None if None in copied.values() else copied
