"""Equality of two scalars: numbers, formulas, matrices.

Numbers are compared exactly where both are exact; a decimal is exact too, unless it rounds the other number: with at
least `DIGITS` significant digits it stands for every number that is rounded or cut off to it. So the tolerance is
relative, at most 1e-5 of the value, the precision at which people write results down, and tiny and huge numbers differ
like all others. How formulas of letters are compared, `formulas` says.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import sympy
from sympy import Integer, MatrixBase, Rational, Symbol, oo, pi

from .formulas import PRECISION, Samples, same_formula, terms
from .nodes import Node
from .products import same_ordered
from .scalars import LOG_BASE

DIGITS = 6
"""Significant digits from which on a decimal may stand for a number that it rounds."""
FLOAT_DIGITS = (15, 17)
"""Significant digits that a float has, and that it is printed with; digits between them are noise."""


def every(verdicts: Sequence[bool | None]) -> bool | None:
    """All of them: False where one is, otherwise None where one is."""
    return False if False in verdicts else None if None in verdicts else True


def same_scalar(gold: Node, answer: Node) -> bool | None:
    """True if two scalars are equal; None if that cannot be computed."""
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
    one, other = _with_one_index(one, other)
    whole = Symbol("any Z")
    if one.has(whole) and other.has(whole):  # `k pi` for every whole k: a period more or less
        period, other_period = one.diff(whole), other.diff(whole)
        if period in (other_period, -other_period) and not period.free_symbols:
            shift = sympy.nsimplify((one.subs(whole, 0) - other.subs(whole, 0)) / period)
            return bool(shift.is_Integer) or compare(one, other)
    if constants := _constants(one, other):
        verdict = _same_family(one, other, *constants)
        value = Symbol("value")
        if verdict is False and same_curves(value - one, value - other):
            return True
        return verdict if verdict is not False else compare(one, other)
    return compare(one, other)


_INDEX = re.compile("any Z|[nkmlNK]")


def _with_one_index(one: Any, other: Any) -> tuple[Any, Any]:
    r"""`2n\\pi` and `2k\\pi` with one letter for any whole number."""
    mine, others = one.free_symbols - other.free_symbols, other.free_symbols - one.free_symbols
    names = [symbol.name for symbol in (*mine, *others)]
    if (
        len(mine) != 1
        or len(others) != 1
        or not all(map(_INDEX.fullmatch, names))
        or not (one.has(pi) and other.has(pi))
    ):
        return one, other
    if names[1] in terms().mentioned and names[0] not in (*terms().mentioned, "any Z"):
        return one, other
    whole = Symbol("any Z")
    return one.xreplace({mine.pop(): whole}), other.xreplace({others.pop(): whole})


# ---- constants of integration ----------------------------------------------------------------------------------------


_CONSTANT = re.compile(r"[CcKkABD](?:_\{?\d\}?)?")


def _constants(one: Any, other: Any) -> tuple[list[Any], list[Any]] | None:
    """The constants of integration of both formulas; None where one has none, or another variable."""
    known = terms()
    if not known.has_constants:
        return None
    names = [sorted(formula.free_symbols, key=str) for formula in (one, other)]
    both = [
        [each for each in group if _CONSTANT.fullmatch(each.name) and each.name not in known.mentioned]
        for group in names
    ]
    # Beside a `C`, other letters are none.
    both = [[each for each in group if each.name[0] in "Cc"] or group for group in both]
    variables = [one.free_symbols - {*both[0]}, other.free_symbols - {*both[1]}]
    are_functions = variables[0] == variables[1] and any(each.name[0].islower() for each in variables[0])
    return (both[0], both[1]) if all(both) and are_functions else None


def _same_family(one: Any, other: Any, constants: Sequence[Any], others: Sequence[Any]) -> bool | None:
    """True if two formulas that are linear in their constants describe the same functions.

    They do where the functions behind the constants span the same space, in which the difference of the rest lies.
    """
    parts, other_parts = (
        [formula.diff(each) for each in names] for formula, names in ((one, constants), (other, others))
    )
    if any(
        part.free_symbols & {*names} for group, names in ((parts, constants), (other_parts, others)) for part in group
    ):
        return False
    rests = [formula.subs(dict.fromkeys(names, 0)) for formula, names in ((one, constants), (other, others))]
    samples = Samples(sympy.Tuple(*parts, rests[0]), sympy.Tuple(*other_parts, rests[1]))
    rows = [[value.evalf(PRECISION) for value in (*left, *right)] for left, right in samples]
    if (
        samples.says_less
        or len(rows) <= 2 * len(constants)
        or not all(value.is_number for row in rows for value in row)
    ):
        return None
    columns = list(zip(*rows, strict=True))
    mine, theirs = columns[: len(parts)], columns[len(parts) + 1 : -1]
    rest = [left - right for left, right in zip(columns[len(parts)], columns[-1], strict=True)]
    rank = _rank(mine)
    same = rank == _rank(theirs) == _rank([*mine, *theirs, rest])
    terms().sampled |= same
    return same


def same_curves(one: Any, other: Any) -> bool:
    """True if two equations of two variables and a constant of integration have the same solution curves.

    Solved for their constants, they do where one is a function of the other: where the gradients are parallel.
    """
    constants = _constants(one, other)
    if constants is None or [len(group) for group in constants] != [1, 1] or sympy.count_ops(one + other) > 60:
        return False
    reals = {
        each: Symbol(each.name, real=True) for each in one.free_symbols - {*constants[0]}
    }  # `|x|` has a derivative
    variables = sorted(reals.values(), key=str)
    one, other = one.xreplace(reals), other.xreplace(reals)
    try:
        levels = [sympy.solve(formula, *group) for formula, group in zip((one, other), constants, strict=True)]
    except (NotImplementedError, ValueError, TypeError):
        return False
    if len(variables) != 2 or not all(levels):
        return False
    (left, right), (x, y) = (level[0] for level in levels), variables
    crossed = left.diff(x) * right.diff(y), left.diff(y) * right.diff(x)
    verdict = same_formula(*crossed, lambda a, b: _close(a, b, None, None), is_exact=True)
    return verdict is True and (left.diff(x), left.diff(y)) != (0, 0)


def _rank(columns: Sequence[Sequence[Any]]) -> int:
    """The number of columns that are independent."""
    rows, rank = [list(column) for column in columns], 0
    for place in range(len(rows[0])):
        pivot = max(rows[rank:], key=lambda row: abs(row[place]), default=None)
        if pivot is None:
            break
        if abs(pivot[place]) < 10**-20 * max(1, *map(abs, pivot)):
            continue
        rows.remove(pivot)
        rows.insert(rank, pivot)
        for row in rows[rank + 1 :]:
            factor = row[place] / pivot[place]
            row[:] = [value - factor * above for value, above in zip(row, pivot, strict=True)]
        rank += 1
    return rank


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
    if not one.free_symbols and not other.free_symbols:
        return _close(one, other, digits, other_digits)

    def close(left: Any, right: Any) -> bool | None:
        return _close(left, right, digits, other_digits)

    return same_formula(one, other, close, is_exact=exact)


def _close(one: Any, other: Any, digits: int | None, other_digits: int | None) -> bool | None:
    """True if two numbers are equal, or one is a decimal that rounds the other."""
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
    """True if a decimal is a number rounded or truncated to its digits: `1.41` for the root of 2."""
    value, other = (sympy.re(node.args[0].evalf(PRECISION)) for node in (decimal, exact))
    return bool(
        decimal.digits and decimal.digits > 1 and -0.5 - 1e-9 <= _digits_apart(value, other, decimal.digits) < 1
    )


def _digits_apart(decimal: Any, value: Any, digits: int) -> float:
    """Distance of a value above a decimal of so many significant digits, in units of its last digit."""
    if not digits or decimal * value <= 0:
        return math.inf
    magnitude = int(sympy.floor(sympy.log(abs(decimal), 10).evalf(20)))
    return float((abs(value) - abs(decimal)) / Rational(10) ** (magnitude - digits + 1))
