"""Reads the histories that clients send whole with every call, so that a message is read once."""

from __future__ import annotations

import operator
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
    """A history that was read, and what its items are known by, with their indices.

    Plain texts are compared by `==`, in C, and copies share them. It would be too lax for anything else, of which the
    types of numbers and the order of keys are printed: other items are compared by their bytes.
    """

    values: list[T] = field(default_factory=list)
    text_at: list[int] = field(default_factory=list)
    texts: list[Any] = field(default_factory=list)
    exact_at: list[int] = field(default_factory=list)
    exact: list[bytearray] = field(default_factory=list)

    def is_start_of(self, items: Sequence[Any]) -> bool:
        """True if the items begin with this history."""
        size = len(self.values)
        if size > len(items) or (self.text_at and self.text_at[-1] == size - 1 and self.texts[-1] != items[size - 1]):
            return False  # without a look at the rest, as for another agent's
        texts, exact = map(items.__getitem__, self.text_at), map(items.__getitem__, self.exact_at)
        return list(texts) == self.texts and _encode_all(list(exact)) == self.exact

    def up_to(self, count: int) -> _ReadHistory[T]:
        """The history up to an index."""
        text, exact = bisect_left(self.text_at, count), bisect_left(self.exact_at, count)
        return _ReadHistory(
            self.values[:count], self.text_at[:text], self.texts[:text], self.exact_at[:exact], self.exact[:exact]
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
        """The history, read by `read_one` from an item, its index and what was read before it."""
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
                value, text = read_one(item, index, history.values), self._copy_text(item)
                if text is None:
                    history.exact += _encode_all([item])
                    history.exact_at.append(index)
                else:
                    history.texts.append(text)
                    history.text_at.append(index)
                history.values.append(value)  # last: what raised above has left nothing
            self._recent = [*others[-(self._capacity - 1) :], history]
            return history.values[:]

    def _take_common_start(self, items: Sequence[Any], others: list[_ReadHistory[T]]) -> _ReadHistory[T]:
        """The start of a history whose last items a client spells anew, in place of that history."""
        marks = _encode_all(items)
        for each in others:
            count = [*map(operator.eq, each.exact, marks), False].index(False)
            # Agents that only begin alike keep histories of their own.
            if len(each.exact) == len(each.values) and 2 * count >= len(each.values):
                others.remove(each)
                return each.up_to(count)
        return _ReadHistory()


def _encode_all(items: Sequence[Any]) -> list[bytearray]:
    try:  # in C; copied, for orjson leaves eight times the room that a text needs
        return list(map(bytearray, map(orjson.dumps, items)))
    except TypeError:  # images, an integer beyond 64 bits, or half of a surrogate pair
        return list(map(bytearray, map(encode_value, items)))


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
    """A copy of text, and of what holds nothing else; None for any other value."""
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
