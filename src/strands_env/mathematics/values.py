"""Whether two scalars are the same number, formula or matrix.

Numbers are compared exactly where both are exact; a decimal is exact too, unless it rounds the other number: with at
least `DIGITS` significant digits it stands for every number that is rounded or cut off to it. So the tolerance is
relative, at most 1e-5 of the value, the precision at which people write results down, and tiny and huge numbers differ
like all others. Formulas are compared at points, with `PRECISION` digits, which needs no simplification that may hang.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

import sympy
from sympy import Integer, MatrixBase, Rational, Symbol, oo

from .nodes import Node
from .products import same_ordered
from .scalars import LOG_BASE

DIGITS = 6
"""Significant digits from which on a decimal may stand for a number that it rounds."""
FLOAT_DIGITS = (15, 17)
"""Significant digits that a float has, and that it is printed with; what differs between them is noise."""
PRECISION = 40
POINTS = tuple(
    Rational(numerator, 10_007) for numerator in (6151, 23417, -8123, 14009, 34567, -21911, 2741, 17123, 9343)
)


def every(verdicts: Sequence[bool | None]) -> bool | None:
    """All of them: False where one is, else None where one is."""
    return False if False in verdicts else None if None in verdicts else True


def same_scalar(gold: Node, answer: Node) -> bool | None:
    """Whether two scalars are the same; None where that cannot be computed."""
    one, other = gold.args[0], answer.args[0]
    if isinstance(one, MatrixBase) or isinstance(other, MatrixBase):
        return _same_matrix(gold, answer)

    def compare(one: Any, other: Any) -> bool | None:
        return _same_values(one, other, gold.digits, answer.digits)

    if one == other or not (one.is_commutative and other.is_commutative):
        return compare(one, other)
    if LOG_BASE in one.free_symbols | other.free_symbols:
        bases = (LOG_BASE, Integer(1), sympy.log(10))
        return any(compare(one.subs(LOG_BASE, base), other.subs(LOG_BASE, base)) for base in bases)
    whole, constants = Symbol("any Z"), [_constant(formula) for formula in (one, other)]
    if one.has(whole) and other.has(whole):  # `k pi` for every whole k: a period more or less
        period, other_period = one.diff(whole), other.diff(whole)
        if period in (other_period, -other_period) and not period.free_symbols:
            shift = sympy.nsimplify((one.subs(whole, 0) - other.subs(whole, 0)) / period)
            return bool(shift.is_Integer) or compare(one, other)
    elif None not in constants:
        return _same_up_to_constant(one - constants[0], other - constants[1])
    return compare(one, other)


def _constant(formula: Any) -> Any:
    """The `C` of an antiderivative; None without one."""
    symbols = {str(symbol): symbol for symbol in formula.free_symbols}
    names = [name for name in symbols if re.fullmatch("[CcKk](_[01])?", name)]
    others = [name for name in symbols if name not in names]
    if len(names) != 1 or len(others) != 1 or not others[0][0].islower() or formula.diff(symbols[names[0]]) != 1:
        return None
    return symbols[names[0]]


def _same_up_to_constant(one: Any, other: Any) -> bool | None:
    """Whether two functions of a variable differ by a constant."""
    difference = one - other
    symbols = sorted(difference.free_symbols, key=str)
    values = [difference.subs(place).evalf(PRECISION) for place in places(symbols)]
    values = [value for value in values if value.is_real]
    if not difference.free_symbols or (len(values) > 2 and all(abs(value - values[0]) < 1e-25 for value in values)):
        lacks_sign = one.has(sympy.Abs) and not other.has(sympy.Abs)
        return None if lacks_sign and len(values) < len(POINTS) else True
    return False if len(values) > 2 else None


def _same_matrix(gold: Node, answer: Node) -> bool | None:
    one, other = gold.args[0], answer.args[0]
    if not (isinstance(one, MatrixBase) and isinstance(other, MatrixBase)):
        matrix, scalar = (one, other) if isinstance(one, MatrixBase) else (other, one)
        return bool(matrix.shape == (1, 1) and matrix[0, 0] == scalar)
    if one.shape != other.shape:
        return False
    pairs = zip(one.flat(), other.flat(), strict=True)
    return every([_same_values(a, b, gold.digits, answer.digits) for a, b in pairs])


def _same_values(one: Any, other: Any, digits: int | None, other_digits: int | None) -> bool | None:
    if one == other:
        return True
    if not (one.is_commutative and other.is_commutative):
        return same_ordered(one, other)
    exact = digits is None and other_digits is None
    if isinstance(one, Rational) and isinstance(other, Rational) and exact:
        return False
    if one.has(oo, -oo) or other.has(oo, -oo):
        return False
    symbols = sorted(one.free_symbols | other.free_symbols, key=str)
    if not symbols:
        return _close(one, other, digits, other_digits)
    both = one + other
    is_whole = {str(symbol) for symbol in symbols} <= {"n", "k", "m"} and both.has(sympy.sin, sympy.cos)
    is_whole |= any(power.base.is_negative and power.exp.free_symbols for power in both.atoms(sympy.Pow))
    verdicts: list[bool | None] = []
    for place in places(symbols, is_whole=is_whole):
        left, right = one.subs(place), other.subs(place)
        if left.has(sympy.nan, sympy.zoo, oo) or right.has(sympy.nan, sympy.zoo, oo):
            continue
        is_positive = all(value > 0 for value in place.values())
        if not is_positive and not both.has(sympy.I) and (_is_complex(left) or _is_complex(right)):
            # Roots and logarithms where they are not defined; `ln x` says less than an expected `ln |x|`.
            verdicts += [None] if one.has(sympy.Abs) and not other.has(sympy.Abs) and not _is_complex(left) else []
            continue
        verdicts.append(_close(left, right, digits, other_digits))
        if verdicts[-1] is False:
            return False
    return every(verdicts) if verdicts else None


def places(symbols: Sequence[Any], *, is_whole: bool = False) -> list[dict[Any, Any]]:
    """Values of symbols at which formulas are compared."""
    if is_whole:
        return [{symbol: Integer(3 * shift + 2 * at + 1) for at, symbol in enumerate(symbols)} for shift in range(7)]
    rows = (itertools.islice(itertools.cycle(POINTS), shift, None) for shift in range(9))
    return [dict(zip(symbols, row, strict=False)) for row in rows]


def _is_complex(value: Any) -> bool:
    imaginary = sympy.im(value.evalf(20))
    return bool(abs(imaginary) > Rational(1, 10**12))


def _close(one: Any, other: Any, digits: int | None, other_digits: int | None) -> bool | None:
    """Whether two numbers are equal, or one is a decimal that rounds the other."""
    if isinstance(one, Rational) and isinstance(other, Rational):
        difference = one - other
        if difference == 0:
            return True
    else:
        difference = (one - other).evalf(PRECISION, maxn=400)
        if not difference.is_number or difference.has(sympy.nan, sympy.zoo, oo):
            return None
        scale = max(abs(one.evalf(PRECISION)), abs(other.evalf(PRECISION)))
        if abs(difference) <= scale * Rational(1, 10**250):  # what is left of zero at 400 digits
            return True
    if digits is None and (other_digits is None or one.is_Integer):  # a whole number is not rounded
        return False
    value, other_value = one.evalf(PRECISION), other.evalf(PRECISION)
    if not (value.is_real and other_value.is_real):
        parts = [(sympy.re(value), sympy.re(other_value)), (sympy.im(value), sympy.im(other_value))]
        return every([a == b or _close(a, b, digits, other_digits) for a, b in parts])
    (coarse, coarser), (fine, finer) = sorted(
        [(value, digits or 0), (other_value, other_digits or 0)], key=lambda pair: pair[1] or math.inf
    )
    least, most = FLOAT_DIGITS
    if least <= max(coarser, finer) <= most and abs(value - other_value) <= abs(value) / 10 ** (least - 1):
        return True
    apart = _digits_apart(coarse, fine, coarser)
    if coarser >= DIGITS and (not finer or finer >= coarser + 2) and -0.5 - 1e-9 <= apart < 1 - 1e-9:
        return True  # rounded or cut off
    is_finer = coarse is value and finer and 3 <= coarser < finer  # an answer of more digits than were expected
    return None if is_finer and abs(apart) <= 0.5 else False


def rounds(decimal: Node, exact: Node) -> bool:
    """Whether a decimal is a number rounded or cut off to its digits: `1.41` is, of the root of 2."""
    value, other = (sympy.re(node.args[0].evalf(PRECISION)) for node in (decimal, exact))
    return bool(
        decimal.digits and decimal.digits > 1 and -0.5 - 1e-9 <= _digits_apart(value, other, decimal.digits) < 1
    )


def _digits_apart(decimal: Any, value: Any, digits: int) -> float:
    """How far a value lies above a decimal of so many significant digits, in units of its last digit."""
    if not digits or decimal * value <= 0:
        return math.inf
    magnitude = int(sympy.floor(sympy.log(abs(decimal), 10).evalf(20)))
    return float((abs(value) - abs(decimal)) / Rational(10) ** (magnitude - digits + 1))
