"""Cases of graded answers, their families by name, and the spellings that the families of the corpus share."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Case:
    """An expected answer, other spellings of it, and answers that are wrong. Equal values have equal `value`."""

    gold: str
    right: Sequence[str]
    wrong: Sequence[str]
    value: object
    question: str = "?"
    """What ours is told was asked; the other graders have no place for it."""


FAMILIES: dict[str, Callable[[random.Random], Case]] = {}


def family(make: Callable[[random.Random], Case]) -> Callable[[random.Random], Case]:
    """Register a maker of cases under its name."""
    FAMILIES[make.__name__] = make
    return make


SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
SUBSCRIPT = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
WIDE = str.maketrans("0123456789(),", "０１２３４５６７８９（），")


def forms(spec: str, **values: object) -> list[str]:
    """The texts of a specification, with their values."""
    texts = [text.strip(" ") for line in spec.split("\n") for text in line.split(" | ")]
    return [re.sub("@([a-z])", lambda found: str(values[found[1]]), text) for text in texts if text]


def other_digit(text: str, rng: random.Random) -> str:
    """The number with one of its digits changed, and none to 0."""
    place = rng.choice([place for place, char in enumerate(text) if char.isdigit()])
    return text[:place] + rng.choice([digit for digit in "123456789" if digit != text[place]]) + text[place + 1 :]


def frac(value: Fraction, command: str = "frac") -> str:
    """A fraction, or an integer."""
    top, bottom, sign = abs(value.numerator), value.denominator, "-" if value < 0 else ""
    return f"{sign}{top}" if bottom == 1 else rf"{sign}\{command}{{{top}}}{{{bottom}}}"


def fraction(rng: random.Random, most: int = 40) -> Fraction:
    """A fraction in lowest terms that is no integer."""
    while (value := Fraction(rng.choice([-1, 1, 1]) * rng.randint(1, most), rng.randint(2, most))).denominator == 1:
        pass
    return value


def polynomial(terms: Sequence[tuple[int, str]]) -> str:
    """A sum of factors and powers."""
    text = "".join(
        (" - " if factor < 0 else " + ") + ("" if abs(factor) == 1 and power else str(abs(factor))) + power
        for factor, power in terms
    )
    return text[3:] if text.startswith(" + ") else "-" + text[3:]


def listed(items: Sequence[object]) -> str:
    """Items apart by commas."""
    return ", ".join(map(str, items))


def distinct(rng: random.Random, count: int, low: int = -30, high: int = 60) -> list[int]:
    """So many different numbers."""
    return rng.sample(range(low, high), k=count)
