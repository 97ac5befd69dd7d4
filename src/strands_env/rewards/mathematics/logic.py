r"""Formulas of logic and events, by the cases in which they are true: `p \wedge \neg q`, `A \cap B^c`."""

from __future__ import annotations

import itertools
import re

from .lexing import Unreadable, require

_OPERATORS = (
    ("iff", r"\\iff|\\(?:left|Left)rightarrow|↔|⇔"),
    ("implies", r"\\implies|\\to|\\(?:r|R)ightarrow|→|⇒"),
    ("or", r"\\vee|\\lor|\\cup|∨|∪"),
    ("xor", r"\\oplus|⊕"),
    ("and", r"\\wedge|\\land|\\cap|&|∧|∩"),
    ("without", r"\\setminus|\\backslash"),
)
"""From the one that binds least."""
_TOKEN = re.compile(
    r"\s*(?:"
    + "|".join(rf"(?P<{name}>(?:{mark})(?![A-Za-z]))" for name, mark in _OPERATORS)
    + r"|(?P<not>\\(?:neg|lnot)(?![A-Za-z])|¬)"
    r"|(?P<bar>\\(?:overline|bar)\s*(?=\{|[A-Za-z]))|(?P<open>[({])|(?P<close>[)}])|(?P<complement>\^\s*(?:\{\s*[cC]\s*\}|[cC])|')|(?P<letter>[A-Za-z]))\s*"
)
MAX_LETTERS = 8


def truth_table(text: str) -> tuple[tuple[str, ...], tuple[bool, ...]] | None:
    """The letters of a formula, and its truth in each of their cases; None for any other text."""
    tokens: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            return None
        tokens.append((str(found.lastgroup), found[0].strip()))
        at = found.end()
    letters = sorted({value for kind, value in tokens if kind == "letter"})
    if not letters or len(letters) > MAX_LETTERS or len(tokens) > 200:
        return None
    cases = [dict(zip(letters, case, strict=True)) for case in itertools.product((False, True), repeat=len(letters))]
    try:
        values = tuple(_Case(tokens, case).whole() for case in cases)
    except (IndexError, Unreadable, RecursionError):
        return None
    return tuple(letters), values


class _Case:
    """The value of a formula in one case."""

    def __init__(self, tokens: list[tuple[str, str]], case: dict[str, bool]) -> None:
        self._tokens, self._case, self._at = tokens, case, 0

    def whole(self) -> bool:
        value = self._binary(0)
        require(self._at == len(self._tokens), "more than a formula")
        return value

    def _kind(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else ""

    def _binary(self, level: int) -> bool:
        if level == len(_OPERATORS):
            return self._unary()
        name = _OPERATORS[level][0]
        value = self._binary(level + 1)
        while self._kind() == name:
            self._at += 1
            other = self._binary(level if name == "implies" else level + 1)
            value = {
                **{"iff": value == other, "implies": other or not value, "or": value or other, "xor": value != other},
                **{"and": value and other, "without": value and not other},
            }[name]
        return value

    def _unary(self) -> bool:
        kind, text = self._tokens[self._at]
        self._at += 1
        if kind in ("not", "bar"):
            return not self._unary()
        if kind == "open":
            value = self._binary(0)
            require(self._kind() == "close", "brackets do not match")
            self._at += 1
        elif kind == "letter":
            value = self._case[text]
        else:
            raise Unreadable("no formula")
        while self._kind() == "complement":
            self._at += 1
            value = not value
        return value
