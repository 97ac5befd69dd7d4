"""Equality of two formulas of letters, decided where that can be decided, and sampled otherwise.

A difference at one point of the domain is a proof that formulas differ. Equality is proved where the difference
simplifies to zero, case by case inside absolute values, maxima and minima; otherwise it rests on samples: points of
several sizes and both signs, independent for every letter, of the kind and in the range that question and gold state,
and on both sides of every place where an absolute value, a root or a logarithm changes its case. Where a proof and a
sample disagree, nothing is said.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import sympy
from sympy import Integer, Rational, Symbol, pi

PRECISION = 40
SCALES = (2, 2, 6, 1, 40, 1, 1000, 6, 10**6, 3, 20, 10**4, 2, 4, 9, 100)
"""Sizes of the values of real letters, point by point."""
USABLE = 9
"""Points at which formulas are compared."""
MAX_OPERATIONS = 150
"""Size of a difference that is simplified."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """Statements of question and gold about a letter."""

    is_whole: bool = False
    is_complex: bool = False
    low: Any = None
    high: Any = None


@dataclass(slots=True, kw_only=True)
class Terms:
    """Assumptions that a comparison may make, and those it used.

    Attributes:
        letters: Facts stated of letters, by name.
        mentioned: Letters of the question.
        has_constants: Constants of integration may be in the formulas.
        asks_year: A year may be given as the date that is in it.
        sampled: Set where an equality was sampled and not proved.
    """

    letters: Mapping[str, Letter] = field(default_factory=dict)
    mentioned: frozenset[str] = frozenset()
    has_constants: bool = False
    asks_year: bool = False
    sampled: bool = False


TERMS: ContextVar[Terms] = ContextVar("TERMS")


def terms() -> Terms:
    """Assumptions of the comparison under way."""
    return TERMS.get(None) or Terms()


@contextlib.contextmanager
def comparing_under(found: Terms) -> Iterator[Terms]:
    """Compare under these terms."""
    token = TERMS.set(found)
    try:
        yield found
    finally:
        TERMS.reset(token)


def same_formula(one: Any, other: Any, close: Callable[[Any, Any], bool | None], *, is_exact: bool) -> bool | None:
    """True if an expected formula and another agree wherever both are defined; None if that is uncertain.

    Args:
        close: Compares two numbers.
        is_exact: Neither formula has decimals, so that their difference may be simplified.
    """
    samples = Samples(one, other)
    verdicts: list[bool | None] = []
    for left, right in samples:
        verdicts.append(close(left, right))
        if verdicts[-1] is False:
            break
    if False in verdicts:
        # At a point outside of what the formulas are meant for, both may be defined: then a proof disagrees.
        is_rational = one.is_rational_function() and other.is_rational_function()
        return None if is_exact and not is_rational and samples.prove(one - other) else False
    if not verdicts or None in verdicts or samples.says_less:
        return False if samples.are_apart else None
    if not (is_exact and samples.prove(one - other, force=True)):
        terms().sampled = True
    return True


class Samples:
    """Values of two formulas at points where both are defined.

    Attributes:
        says_less: The second formula is not defined where the first one is.
        are_apart: It never is.
    """

    def __init__(self, one: Any, other: Any) -> None:
        both = sympy.Tuple(one, other)
        self.symbols = sorted(both.free_symbols, key=str)
        self._stated = terms().letters
        self._whole = {symbol for symbol in self.symbols if self._is_whole(symbol, both)}
        self._complex = {symbol for symbol in self.symbols if self._is_complex(symbol, both)}
        self._has_reals = not both.has(sympy.I) and not self._complex
        self._one, self._other = (real_roots(formula) if self._has_reals else formula for formula in (one, other))
        self._needs = [needs(self._one, self._whole), needs(self._other, self._whole)]
        self._caps = {symbol: _cap(symbol, both) for symbol in self.symbols}
        # SymPy factors the base of an exact power: `x^y` has halves in the exponent, and a base of few digits.
        powers = [part for part in both.atoms(sympy.Pow) if part.base.free_symbols and part.exp.free_symbols]
        self._halves = set().union(*(part.free_symbols for part in powers))
        counted = both.atoms(sympy.factorial, sympy.binomial)
        self._counted = {count for part in counted for count in part.args if count.free_symbols}
        self._counts = {symbol for count in self._counted for symbol in count.free_symbols}
        self._keeps_sign = one.has(sympy.Abs) and not other.has(sympy.Abs)
        self.places: list[dict[Any, Any]] = []
        self.says_less = self.are_apart = False

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        undefined: list[dict[Any, Any]] = []
        has_positive, lacks_positive = False, False
        turns = self._turns()
        zeros = 0  # where both are zero they tell little apart
        for place in itertools.chain(turns, self._points()):
            if len(self.places) - zeros >= USABLE + len(turns):
                break
            if any(not _is_not_negative(count.xreplace(place)) for count in self._counted):
                continue
            defined = [
                not self._has_reals or all(is_met(condition.xreplace(place)) for condition, is_met in conditions)
                for conditions in self._needs
            ]
            is_positive = all(value.is_nonnegative for value in place.values())
            if defined == [True, True]:
                left, right = self._one.xreplace(place), self._other.xreplace(place)
                if left.has(sympy.nan, sympy.zoo, sympy.oo) or right.has(sympy.nan, sympy.zoo, sympy.oo):
                    continue
                if self._complex:
                    left, right = sympy.expand(left), sympy.expand(right)
                self.places.append(place)
                zeros += left == right == 0
                has_positive |= is_positive
                yield left, right
            elif defined == [True, False]:
                self.says_less |= self._keeps_sign  # `ln x` says less than an expected `ln |x|`
                self.says_less |= is_positive and self._whole == {*self.symbols}
                lacks_positive |= is_positive
                self.are_apart = True
            elif defined == [False, False]:
                undefined.append(place)
        self.are_apart &= not self.places
        self.says_less |= lacks_positive and not has_positive
        for place in [] if self.places or self.says_less else undefined[:USABLE]:  # no domain in the reals
            self.places.append(place)
            yield self._one.xreplace(place), self._other.xreplace(place)

    # ---- letters ----------------------------------------------------------------------------------------------------

    def _is_whole(self, symbol: Any, both: Any) -> bool:
        if symbol.name in self._stated:
            return self._stated[symbol.name].is_whole
        if symbol.name in ("any Z", "any N"):
            return True
        is_index = symbol.name[0] in "nmkN"
        for part in sympy.preorder_traversal(both):
            if not part.args or not part.has(symbol):
                continue
            if part.is_Pow and part.exp.has(symbol) and (part.base.is_negative or part.base.has(sympy.I)):
                return True
            if isinstance(part, sympy.factorial | sympy.binomial):
                return True
            is_periodic = isinstance(part, sympy.sin | sympy.cos | sympy.tan) and part.has(pi)
            is_periodic |= isinstance(part, sympy.exp) and part.has(pi) and part.has(sympy.I)
            if is_index and (is_periodic or isinstance(part, sympy.floor | sympy.ceiling)):
                return True
        return False

    def _is_complex(self, symbol: Any, both: Any) -> bool:
        name = symbol.name.split()[-1]
        stated = self._stated.get(name)
        is_conjugated = any(str(each) in (f"bar {name}", f"overline {name}") for each in both.free_symbols)
        return (stated is not None and stated.is_complex) or (name in ("z", "w") and is_conjugated)

    # ---- points -----------------------------------------------------------------------------------------------------

    def _points(self) -> Iterator[dict[Any, Any]]:
        rng = random.Random(53)
        for row, scale in enumerate((*SCALES, *SCALES)):
            is_signed = row % 4 != 0
            place = {}
            for symbol in self.symbols:
                size = scale if row < 4 or row % 3 == 0 else rng.choice(SCALES)
                place[symbol] = self._value(symbol, row, size, is_signed, rng)
            for symbol in self._complex:
                twin = Symbol(symbol.name.split()[-1])
                if symbol != twin:  # its conjugate
                    place[symbol] = sympy.conjugate(place.get(twin, place[symbol]))
            yield place

    def _value(self, symbol: Any, row: int, scale: int, is_signed: bool, rng: random.Random) -> Any:
        """A value of a letter, of about this size, in its range."""
        letter = self._stated.get(symbol.name, Letter())
        scale = min(scale, self._caps[symbol])
        if symbol in self._whole:
            count = len(self.symbols)
            # One after the other, so that all remainders of small numbers occur; independent for every letter.
            size = Integer(row + 1 if row < 9 and count == 1 else rng.randint(0, max(4, min(scale, 60))))
        else:
            parts = 2 if symbol in self._halves else 10_007
            size = Rational(rng.randint(1, parts * min(scale, 40 if parts == 2 else scale)), parts)
        if letter.low is not None and letter.high is not None:
            share = Rational(rng.randint(1, 10_006), 10_007)
            value = letter.low + (letter.high - letter.low) * share
            return sympy.floor(value) if symbol in self._whole else value
        if letter.low is not None or letter.high is not None:
            return letter.low + size if letter.low is not None else letter.high - size
        value = -size if is_signed and symbol not in self._counts and rng.random() < 0.5 else size
        if symbol in self._complex:
            value += sympy.I * Rational(rng.randint(-30_000, 30_000), 10_007)
        return value

    def _turns(self) -> list[dict[Any, Any]]:
        """Points on both sides of every place where an absolute value, a root or a logarithm changes its case.

        And points at which a rounded number is whole: only there `floor(x) + 1` is not `ceiling(x)`.
        """
        inner: list[Any] = []
        steps = [part.args[0] for part in sympy.Tuple(self._one, self._other).atoms(sympy.floor, sympy.ceiling)]
        for part in sympy.preorder_traversal(sympy.Tuple(self._one, self._other)):
            if isinstance(part, sympy.Abs | sympy.sign | sympy.log):
                argument = part.args[0].args[0] if isinstance(part.args[0], sympy.Abs) else part.args[0]
                inner += [argument, argument - 1, argument + 1] if isinstance(part, sympy.log) else [argument]
            elif isinstance(part, sympy.Max | sympy.Min):
                inner += [left - right for left, right in itertools.combinations(part.args, 2)]
            elif part.is_Pow and part.exp.is_Rational and not part.exp.is_Integer:
                inner.append(part.base)
        found: list[dict[Any, Any]] = []
        base = next(self._points(), {})
        for formula in list(dict.fromkeys([*inner[:8], *sorted(steps, key=str)[:4]])):
            for symbol in sorted(formula.free_symbols - self._complex, key=str)[:2]:
                others = {each: value for each, value in base.items() if each != symbol}
                find = _at_steps if formula in steps else _between_roots
                for value in find(formula.xreplace(others), symbol):
                    value = sympy.floor(value) if symbol in self._whole else value
                    letter = self._stated.get(symbol.name, Letter())
                    is_low = letter.low is not None and value <= letter.low
                    if not (is_low or (letter.high is not None and value >= letter.high)):
                        found.append({**others, symbol: value})
        return found[:32]

    # ---- proofs -----------------------------------------------------------------------------------------------------

    def prove(self, difference: Any, *, force: bool = False) -> bool:
        """True if a difference simplifies to zero, in every case that the sampled points are in.

        Args:
            force: Logarithms of products may be split: samples have agreed.
        """
        if difference == 0:
            return True
        if sympy.count_ops(difference) > MAX_OPERATIONS or self._complex:
            return False
        known = {}
        for symbol in self.symbols:
            low = self._stated.get(symbol.name, Letter()).low
            kind = {"integer": True} if symbol in self._whole else {} if symbol in self._complex else {"real": True}
            known[symbol] = Symbol(symbol.name, **kind, **({"positive": True} if low is not None and low >= 0 else {}))
        with contextlib.suppress(NotImplementedError, ValueError, TypeError, AttributeError, sympy.PolynomialError):
            cases = {_in_case(difference, place) for place in self.places}
            return all(is_zero(case.xreplace(known), force=force) for case in cases)
        return False


def needs(formula: Any, whole: set[Any]) -> list[tuple[Any, Callable[[Any], bool]]]:
    """Parts of a formula with the condition under which it is defined in the reals."""
    found: list[tuple[Any, Callable[[Any], bool]]] = []
    for part in sympy.preorder_traversal(formula):
        if not part.free_symbols:
            continue
        if part.is_Pow and part.exp.is_Rational and part.exp.q % 2 == 0:
            found.append((part.base, _is_not_negative))
        elif part.is_Pow and part.exp.free_symbols and not part.base.is_positive:
            found.append((sympy.Tuple(part.base, part.exp), _has_real_power))
        elif isinstance(part, sympy.log):
            found.append((part.args[0], _is_not_negative))
        elif isinstance(part, sympy.asin | sympy.acos):
            found.append((1 - part.args[0] ** 2, _is_not_negative))
    return found


def _is_not_negative(value: Any) -> bool:
    value = value.evalf(20)
    return bool(value.is_real and value >= 0)


def _has_real_power(power: Any) -> bool:
    base, exponent = power
    return bool(exponent.is_Integer) or _is_not_negative(base)


def real_roots(formula: Any) -> Any:
    """The formula with odd roots as functions of the reals: the cube root of -8 is -2."""

    def is_odd_root(part: Any) -> bool:
        exponent = part.exp if part.is_Pow else None
        return bool(exponent is not None and exponent.is_Rational and exponent.q > 1 and exponent.q % 2)

    def real(power: Any) -> Any:
        sign = sympy.sign(power.base) if power.exp.p % 2 else Integer(1)
        return sign * sympy.Abs(power.base) ** power.exp

    return formula.replace(lambda part: is_odd_root(part) and bool(part.free_symbols), real)


def _cap(symbol: Any, both: Any) -> int:
    """The largest size of a letter: those in exponents and factorials must be small."""
    cap = 10**9
    for part in sympy.preorder_traversal(both):
        is_steep = part.is_Pow and part.exp.has(symbol)
        is_steep |= isinstance(part, sympy.exp | sympy.factorial | sympy.binomial | sympy.gamma) and part.has(symbol)
        is_steep |= isinstance(part, sympy.sinh | sympy.cosh | sympy.tanh) and part.has(symbol)
        if is_steep:
            inner = part.exp if part.is_Pow else sympy.Tuple(*part.args)
            is_nested = _cap(symbol, inner) < 10**9
            cap = min(cap, 3 if is_nested else 20)
    return cap


def _between_roots(formula: Any, symbol: Any) -> list[Any]:
    """Points below, between and above the real roots of a polynomial; of other formulas, points of both signs."""
    polynomial = formula.as_poly(symbol)
    if polynomial is None or not 0 < polynomial.degree() <= 6 or len(polynomial.gens) > 1:
        return _of_both_signs(formula, symbol)
    try:
        spans = polynomial.sqf_part().intervals(eps=Rational(1, 100))
    except (sympy.PolynomialError, NotImplementedError, TypeError, ValueError):  # no rational numbers
        return _of_both_signs(formula, symbol)
    roots = [float((left + right) / 2) for (left, right), _ in spans]
    if not roots:
        return []
    inner = [(left + right) / 2 for left, right in itertools.pairwise(roots)]
    values = (roots[0] - 1.37, roots[0] - 0.31, *inner, roots[-1] + 0.29, roots[-1] + 1.37)
    return [Rational(round(value * 10_007), 10_007) for value in values]


def _of_both_signs(formula: Any, symbol: Any) -> list[Any]:
    found: dict[bool, Any] = {}
    for size in (1, 3, 6, 12, 18, 40, Rational(1, 3)):
        for value in (Rational(size) + Rational(1, 97), Rational(1, 89) - size):
            result = formula.xreplace({symbol: value}).evalf(15)
            if result.is_real:
                found.setdefault(bool(result > 0), value)
        if len(found) > 1:
            break
    return list(found.values())


def _at_steps(formula: Any, symbol: Any) -> list[Any]:
    """Points at which a linear formula is whole; of other formulas, squares, at which roots and powers are."""
    polynomial = formula.as_poly(symbol)
    if polynomial is None or polynomial.degree() != 1 or len(polynomial.gens) > 1:
        return [Integer(4), Integer(9)]
    slope, start = polynomial.all_coeffs()
    return [(step - start) / slope for step in (-1, 2)]


def _in_case(formula: Any, place: dict[Any, Any]) -> Any:
    """The formula with the case of each absolute value, maximum and minimum in which a point lies."""

    def signed(inner: Any) -> Any:
        return inner if _is_not_negative(inner.xreplace(place)) else -inner

    def chosen(part: Any) -> Any:
        pick = max if isinstance(part, sympy.Max) else min
        return pick(part.args, key=lambda each: each.xreplace(place).evalf(20))

    def is_square_root(part: Any) -> bool:
        return bool(part.is_Pow and part.exp == Rational(1, 2) and part.free_symbols)

    formula = formula.replace(is_square_root, lambda part: sympy.sqrt(sympy.factor(part.base)))
    formula = formula.replace(
        lambda part: is_square_root(part) and part.base.is_Pow and part.base.exp == 2,
        lambda part: signed(part.base.base),
    )
    formula = formula.replace(lambda part: isinstance(part, sympy.Max | sympy.Min), chosen)
    formula = formula.replace(sympy.sign, lambda inner: signed(inner) / inner)
    return formula.replace(sympy.Abs, signed)


def is_zero(formula: Any, *, force: bool = False) -> bool:
    """True if a formula simplifies to zero by fast rules; False if they do not show it."""
    if sympy.expand(formula) == 0:
        return True
    if formula.has(sympy.factorial, sympy.binomial, sympy.gamma) and sympy.combsimp(formula) == 0:
        return True
    if formula.has(sympy.log):
        formula = sympy.expand_log(formula, force=force)
    if formula.has(
        sympy.sin, sympy.cos, sympy.tan, sympy.cot, sympy.sec, sympy.csc, sympy.sinh, sympy.cosh, sympy.tanh
    ):
        formula = formula.rewrite(sympy.exp)
    top, _ = sympy.fraction(sympy.together(sympy.expand(formula)))
    top = sympy.expand(top)
    return bool(top == 0 or sympy.powsimp(top) == 0)
