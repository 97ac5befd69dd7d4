r"""Patterns of tokenizers (Oniguruma's syntax) as patterns of `re`, for texts of an alphabet.

`re` knows no `\p{L}`, and the packages that do have tables of their own version of Unicode, which need not be the
tokenizer's. So a pattern is translated, not copied: each class becomes the list of its characters within an alphabet
whose properties no version of Unicode has changed. What would mean something else in `re`, or is not known to mean the
same, is refused.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Final

# Assigned since the first versions of Unicode; composed (NFC leaves them alone: no combining mark is among them); no
# character but ß whose case folds into several, or into ASCII: Latin without İ, ı, ŉ and ſ; Greek and Cyrillic;
# punctuation, arrows, mathematics, boxes, ticks; the scripts of East Asia.
_RANGES: Final = """
    0-7F A0-12F 132-148 14A-17E 391-3A1 3A3-3A9 3B1-3C9 401-401 410-44F 451-451
    2010-2027 2030-203A 20AC-20AC 2122-2122 2190-22F1 2500-25EF 2701-2704 2713-2718
    3000-3002 3008-3011 3041-3094 30A1-30FA 30FC-30FC 4E00-9FA5 AC00-D7A3 FF01-FF5E
"""
ALPHABET: Final = frozenset(
    code
    for first, last in (ends.split("-") for ends in _RANGES.split())
    for code in range(int(first, 16), int(last, 16) + 1)
)
ASCII: Final = frozenset(range(0x80))
_SPACES: Final = frozenset(map(ord, "\t\n\v\f\r \xa0\u3000"))
_ESCAPED: Final = {"r": "\r", "n": "\n", "t": "\t"}


class NotUnderstoodError(Exception):
    """Something of a tokenizer is not understood."""


def translate(pattern: str, alphabet: frozenset[int]) -> re.Pattern[str]:
    """The same pattern for `re`, for texts of an alphabet; `NotUnderstoodError` unless it means the same."""
    try:
        return _Translation(pattern, alphabet).expression
    except re.error:
        raise NotUnderstoodError from None


class _Translation:
    """Reads a pattern item by item and writes each for `re`."""

    def __init__(self, pattern: str, alphabet: frozenset[int]) -> None:
        self._rest = pattern
        self._alphabet = alphabet
        read = list(self._read())
        self.expression = re.compile(f"({''.join(written for written, _ in read)})")
        consuming = "".join(written for written, is_ahead in read if not is_ahead)
        if re.match(consuming, ""):  # after an empty match the two go on differently
            raise NotUnderstoodError

    def _take(self, expression: str) -> re.Match[str] | None:
        found = re.compile(expression, re.DOTALL).match(self._rest)
        if found:
            self._rest = self._rest[found.end() :]
        return found

    def _read(self) -> Iterator[tuple[str, bool]]:
        """The pattern item by item, and whether each belongs to a group that only looks ahead."""
        groups: list[str] = []
        while self._rest:
            is_ahead = "(?=" in groups or "(?!" in groups
            if found := self._take(r"\((\?(?:i?:|=|!))?"):
                group = f"({found[1] or '?:'}"
                if self._rest.startswith("?") or "(?i:" in groups:
                    raise NotUnderstoodError
                groups.append(group)
                yield group, is_ahead or group in ("(?=", "(?!")
            elif self._take(r"\)"):
                # A repeated group may take exponential time here and not there.
                if not groups or self._take(r"[*+{]"):
                    raise NotUnderstoodError
                groups.pop()
                yield ")", is_ahead
            elif "(?i:" in groups:  # `ss` would match ß, too, in whatever way it is put together
                if not (found := self._take(r"(?![sS]{2})[A-Za-z']|\|")):
                    raise NotUnderstoodError
                yield found[0], is_ahead
            elif found := self._take(r"[?*+]\+?|\{\d+(?:,\d*)?\}(?![?+])|\|"):  # `{2}+` means two things
                yield found[0], is_ahead
            elif self._take(r"\[(?!\^?\])"):
                yield self._class(), is_ahead
            else:
                yield self._write(self._characters(r"[^\\.^$\[\]{}]")), is_ahead

    def _class(self) -> str:
        negated = bool(self._take(r"\^"))
        members: set[int] = set()
        while not self._take(r"\]"):
            if self._take(r"\[|&&"):
                raise NotUnderstoodError
            first = self._characters(r"[^\\]")
            if self._rest.startswith("-") and not self._rest.startswith("-]"):
                self._take("-")
                last = self._characters(r"[^\\]")
                if len(first) != 1 or len(last) != 1:
                    raise NotUnderstoodError
                first = frozenset(range(min(first), min(last) + 1))
            members |= first
        return self._write(ALPHABET - members if negated else members)

    def _write(self, members: frozenset[int] | set[int]) -> str:
        return _write_class(members & self._alphabet)

    def _characters(self, literal: str) -> frozenset[int]:
        if found := self._take(r"\\([pP])\{(\^?)([LMNPSZC][a-z]?)\}"):
            members = _category(found[3])
            return ALPHABET - members if (found[1] == "P") != bool(found[2]) else members
        if found := self._take(r"\\([sS])"):
            return _SPACES if found[1] == "s" else ALPHABET - _SPACES
        if found := self._take(r"\\([rnt]|[^\w\s])"):
            return frozenset({ord(_ESCAPED.get(found[1], found[1]))})
        if found := self._take(literal):
            return frozenset({ord(found[0])})
        raise NotUnderstoodError


@lru_cache(maxsize=64)
def _category(name: str) -> frozenset[int]:
    return frozenset(code for code in ALPHABET if unicodedata.category(chr(code)).startswith(name))


def _write_class(members: Iterable[int]) -> str:
    codes = sorted(members)
    if len(codes) < 2:
        return re.escape(chr(codes[0])) if codes else "(?!)"
    gaps = [place for place, (one, other) in enumerate(pairwise(codes), start=1) if other != one + 1]
    runs = [(codes[start], codes[end - 1]) for start, end in pairwise([0, *gaps, len(codes)])]
    return "[" + "".join(rf"\U{first:08x}-\U{last:08x}" for first, last in runs) + "]"


is_in_alphabet: Final[Callable[[str], re.Match[str] | None]] = re.compile(f"{_write_class(ALPHABET)}*").fullmatch
