r"""Products whose order counts: of matrices, of elements of groups, of vectors, and of letters that are a word.

Letters commute unless a text shows that they do not. Two texts that are equal by that are read once more, with symbols
that do not commute for the letters that these texts show.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

import sympy
from sympy import Symbol

from .lexing import lex, normalise, require

_FACTOR = re.compile(r"([A-Za-z])(?:_(?:\{[^{}]*\}|\w))?(?:\^(?:\{[^{}]*\}|\w))?")
_PRODUCT = re.compile(rf"(?:{_FACTOR.pattern.replace('([A-Za-z])', '[A-Za-z]')})+")
_MATRIX = re.compile(r"(?:[A-Z]|[A-Z][^()]*\))\^(?:\{-1\}|\{-?T\}|T)")
_DIVISOR = re.compile(r"(?:/|\\frac\s*(?:\{[^{}]*\}|\w)\s*)\{?\d*[A-Z]")
_VECTOR = re.compile("(?:vec|overrightarrow|hat) |nabla$")


def ordered_letters(gold: str, answer: str, is_about_matrices: bool) -> frozenset[str]:
    """The letters that do not commute in these texts: of words; of matrices; of `xyx`, or of `xy` beside `yx`."""
    texts = [
        "".join(token.value if token.kind in ("letter", "number", "mark") else " " for token in lex(normalise(text)))
        for text in (gold, answer)
    ]
    texts = [re.sub(r"e(?=\^)", " ", text) for text in texts]  # no letter of a word: `Axe^x`
    products = [["".join(_FACTOR.findall(run)) for run in _PRODUCT.findall(text)] for text in texts]
    runs = list(itertools.chain(*products))
    ordered = {letter for run in runs if reads_as_word(run, runs) for letter in run}
    letters = {*"".join(runs)} - {"e", "i"}
    is_ordered = any(map(_has_order, products)) or (any(map(_MATRIX.search, texts)) and not _DIVISOR.search(gold))
    if is_ordered or is_about_matrices:
        ordered |= {letter for letter in letters if is_ordered or letter.isupper()}
    return frozenset(ordered)


def reads_as_word(run: str, runs: Sequence[str]) -> bool:
    """True if adjacent letters are a word: `god`, but not `mgh`, which has no vowel, nor `abc` for `cba`."""
    letters = sorted(run)
    is_product = {*run} <= {*"abcdxyz"} and any(list(each) == letters for each in runs)
    return len(run) > 2 and bool(re.search("(?i)[aeiou]", run)) and not is_product


def _has_order(products: Sequence[str]) -> bool:
    """True if nobody would write these products if their letters commuted."""
    pairs = {pair for product in products for pair in itertools.pairwise(product) if pair[0] != pair[1]}
    is_split = any(re.search(r"(.)(?!\1).*\1", product) for product in products)
    return is_split or any(pair[::-1] in pairs for pair in pairs)


def cross(left: Any, right: Any) -> Any:
    """The cross product of two sums of vectors, one symbol for each pair; their product where they are not vectors."""
    sums = []
    for side in (left, right):
        sums.append({symbol: side.coeff(symbol) for symbol in side.free_symbols if _VECTOR.match(symbol.name)})
        is_sum = not sums[-1] or sum(one * factor for one, factor in sums[-1].items()) == side.expand()
        require(is_sum, "a product of vectors in a product of vectors")
    if not all(sums):
        return left * right
    product = sympy.Integer(0)
    for (one, factor), (other, other_factor) in itertools.product(*(each.items() for each in sums)):
        first, second = sorted((one.name, other.name))
        sign = (one.name < other.name) - (one.name > other.name)
        product += sign * factor * other_factor * Symbol(f"vec {first}×{second}")
    return product


def same_ordered(one: Any, other: Any) -> bool | None:
    """True if two formulas of noncommuting symbols are equal; None if inverses of sums may hide it."""
    difference = sympy.expand(one - other)
    hides = any(power.base.is_Add and power.exp.is_negative for power in difference.atoms(sympy.Pow))
    return True if difference == 0 else None if hides else False
