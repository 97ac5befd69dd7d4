"""Equality of two readings.

`same(gold, answer)` is True, False, or None where nothing is said: the texts are read, but whether they mean the same
depends on what was asked (`5` for `5 cm` does not, `0.5%` for `0.5` does).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import sympy
from sympy import Integer, Rational, Symbol, oo

from .formulas import PRECISION, Samples, terms
from .logic import truth_table
from .nodes import Node, is_formula, is_name, is_number, is_plain_name, is_symbol, rename, times, variable_of
from .products import same_ordered
from .sets import INTERVALS, JOINED, REVERSED, as_set, solution_set, union_of
from .texts import is_species
from .values import every, rounds, same_curves, same_scalar
from .vocabulary import ARTICLES, TEMPERATURES, UNITS, canonical

_NEGATIONS = frozenset(("not", "neither", "nor", "no", "never", "non"))
_ALIASES = {
    **dict.fromkeys(("dne", "undefined", "not defined", "is undefined"), "does not exist"),
    **{"divergent": "diverges", "convergent": "converges", "ja": "yes", "oui": "yes", "nein": "no", "non": "no"},
}


def same(gold: Node, answer: Node) -> bool | None:
    """True if two nodes are equal, None if that is uncertain."""
    if gold == answer and gold.kind != "undefined":
        return True
    for kind, compare in _BY_KIND.items():
        if kind in (gold.kind, answer.kind):
            return compare(gold, answer)
    verdict = same_scalar(gold, answer)
    if verdict is False and all(is_number(node) and node.args[0].is_commutative for node in (gold, answer)):
        one, other = (_as_quantity(node) if node.args[0].free_symbols else None for node in (gold, answer))
        if one is not None and other is not None:  # `20 J` and `20 N m` without a font
            return _same_quantity(one, other)
    if verdict and answer.detail == "ordinal" != gold.detail:  # 5 may be given for `fifth`; `5th` for 5 if so asked
        return False if gold.detail == "cardinal" else None
    return verdict


def _verdict_with(gold: Node, answer: Node, old: Node, new: Node) -> bool | None:
    """The verdict with `new` in place of `old`, which is one of both."""
    return same(new, answer) if old is gold else same(gold, new)


def _same_in_order(gold: Sequence[Node], answer: Sequence[Node]) -> bool | None:
    if len(gold) != len(answer):
        return False
    return every([same(one, other) for one, other in zip(gold, answer, strict=True)])


def _same_in_any_order(
    gold: Sequence[Node], answer: Sequence[Node], compare: Callable[[Node, Node], bool | None] = same
) -> bool | None:
    if len(gold) != len(answer):
        return False
    rest, certain = list(answer), True
    for one in gold:
        verdicts = [compare(one, other) for other in rest]
        if True in verdicts:
            rest.pop(verdicts.index(True))
        elif None in verdicts:
            certain = False
        else:
            return False
    return True if certain else None


def _unique(items: Sequence[Node]) -> list[Node]:
    kept: list[Node] = []
    for item in items:
        if not any(same(item, other) for other in kept):
            kept.append(item)
    return kept


# Words


def _letters(node: Node) -> list[str] | None:
    """The capitals of `ABD`, `A, B, D`: several choices."""
    if node.kind == "group" and node.detail == "list":
        parts = [_letters(item) for item in node.args]
        return None if None in parts else sorted(letter for part in parts if part for letter in part)
    name = str(node.args[0]) if node.kind == "word" or is_symbol(node) else ""
    return sorted(name) if re.fullmatch("[A-J]+", name) else None


def _same_word(gold: Node, answer: Node) -> bool | None:
    if "group" in (gold.kind, answer.kind):
        letters, other_letters = _letters(gold), _letters(answer)
        return letters is not None and letters == other_letters
    names = [str(node.args[0]).removeprefix("overline ") for node in (gold, answer) if node.kind in ("word", "scalar")]
    if len(names) < 2:
        return False
    one, other = (_ALIASES.get(name.casefold(), ARTICLES.sub("", " ".join(name.split()))) for name in names)
    if len(one) > 1 or len(other) > 1 or gold.kind == answer.kind == "word":
        one, other = one.casefold(), other.casefold()
    if one == other:
        return True
    words, other_words = {*one.split()}, {*other.split()}
    if any(bool(kind & words) != bool(kind & other_words) for kind in (_NEGATIONS, {"or"})):
        return False
    is_part = gold.kind == answer.kind and (words < other_words or other_words < words)
    return None if is_part or one.casefold() == other.casefold() else False


def _same_phrase(gold: Node, answer: Node) -> bool | None:
    if gold.kind == "scalar":  # `half of 42`
        return False
    inner = [node.args[1] if node.kind == "phrase" else node for node in (gold, answer)]
    return False if same(*inner) is False and all(node.kind == "scalar" for node in inner) else None


def _same_option(gold: Node, answer: Node) -> bool | None:
    if gold.kind == answer.kind:
        return bool(gold.args[0] == answer.args[0]) and same(gold.args[1], answer.args[1]) is not False
    option, other = (gold, answer) if gold.kind == "option" else (answer, gold)
    if other.kind in ("word", "scalar") and re.fullmatch("[A-Ja-j]", str(other.args[0])):
        return bool(option.args[0] == str(other.args[0]).upper())
    return _verdict_with(gold, answer, option, option.args[1])


def _same_logic(gold: Node, answer: Node) -> bool | None:
    r"""Equal are formulas that are true in the same cases; `p \to q` without another connective is a relation."""
    if gold.kind == answer.kind:
        return bool(gold.args == answer.args)
    formula, other = (gold, answer) if gold.kind == "logic" else (answer, gold)
    mark = {("to",): r"\to", ("implies",): r"\implies", ("iff",): r"\iff"}.get(other.detail)
    if other.kind != "relation" or mark is None or not all(map(is_symbol, other.args)):
        return None if other.kind == "word" else False
    return bool(truth_table(f" {mark} ".join(str(side.args[0]) for side in other.args)) == formula.args)


def _same_formula(gold: Node, answer: Node) -> bool | None:
    """Of chemistry: `Co` is not `CO`. A word may be the name of the substance."""
    names = [str(node.args[0]) for node in (gold, answer) if node.kind == "word"]
    return None if any(name[1:].islower() and not is_species(name) for name in names) else False


# Quantities


def _worth(unit: tuple[tuple[str, int], ...]) -> tuple[Any, dict[str, int], list[str]]:
    """The factor of a unit, its dimension, and the names in it that are not units."""
    factor, dimension, nouns = Integer(1), dict[str, int](), []
    for name, power in unit:
        if name not in UNITS:
            nouns.append(name)
            continue
        worth, kind = UNITS[name]
        factor = factor * worth**power
        for base, exponent in kind.items():
            dimension[base] = dimension.get(base, 0) + exponent * power
    return factor, {base: exponent for base, exponent in dimension.items() if exponent}, sorted(nouns)


def _same_quantity(gold: Node, answer: Node) -> bool | None:
    if gold.kind != answer.kind:
        quantity, bare = (gold, answer) if gold.kind == "quantity" else (answer, gold)
        return _same_bare(gold, answer, quantity, bare)
    (one,), unit, (other,), other_unit = gold.args, gold.detail, answer.args, answer.detail
    names = [each[0][0] if len(each) == 1 else "" for each in (unit, other_unit)]
    if all(name in TEMPERATURES for name in names):
        return same(times(one, *TEMPERATURES[names[0]]), times(other, *TEMPERATURES[names[1]]))
    if {*names} == {"sterling", "lb"}:  # pounds
        return same(one, other)
    (factor, dimension, nouns), (other_factor, other_dimension, other_nouns) = _worth(unit), _worth(other_unit)
    if dimension == other_dimension and (nouns == other_nouns or (dimension and not nouns)):  # `5 kg of apples`
        return same(times(one, factor), times(other, other_factor))
    return None if (nouns or other_nouns) and same(one, other) is not False else False


def _same_bare(gold: Node, answer: Node, quantity: Node, bare: Node) -> bool | None:
    """A quantity and something without a unit."""
    inner, unit = quantity.args[0], quantity.detail
    factor, dimension, nouns = _worth(unit)
    if not dimension and not nouns and _verdict_with(gold, answer, quantity, times(inner, factor)):
        return True
    if {*nouns} & {"bc", "bce"}:  # before Christ
        return None
    if is_number(bare) and (spelled := _as_quantity(bare)) is not None:  # `5m` for 5 m
        return _verdict_with(gold, answer, bare, spelled)
    verdict = _verdict_with(gold, answer, quantity, inner)
    if verdict and unit == (("percent", 1),) and is_number(inner) and inner.args[0].is_number:
        if quantity is answer and not inner.args[0].is_Integer and inner.digits is None:
            return False  # nobody writes a percentage as a fraction
        return None if abs(inner.args[0]) < 1 else True
    return verdict


def _as_quantity(node: Node) -> Node | None:
    """A number times symbols that are units, as a quantity."""
    number, rest = node.args[0].as_independent(*node.args[0].free_symbols, as_Add=False)
    powers = rest.as_powers_dict() if rest != 1 else {}
    if not powers or any(str(base) not in UNITS or not isinstance(power, Integer) for base, power in powers.items()):
        return None
    unit = tuple(sorted((canonical(str(base)), int(power)) for base, power in powers.items()))
    return Node("quantity", (Node("scalar", (number,), None, node.digits),), unit)


def _same_time(gold: Node, answer: Node) -> bool | None:
    """Hour, minute and second of the day."""
    time, other = (gold, answer) if gold.kind == "time" else (answer, gold)
    if other.kind == "scalar":  # `9` for 9 p.m.
        return bool(time.args[1:] == (0, 0) and other.args[0] in (time.args[0], (time.args[0] - 1) % 12 + 1))
    if other.kind != "ratio" or not other.detail:
        return False
    parts = tuple(int(part.args[0]) for part in other.args) + (0,) * (3 - len(other.args))
    if parts[1:] != time.args[1:] or (parts[0] - time.args[0]) % 12:
        return False
    is_said = parts[0] == time.args[0] or not 0 < parts[0] <= 12
    return parts[0] == time.args[0] if is_said else None  # which half of the day is not said


def _same_ratio(gold: Node, answer: Node) -> bool | None:
    if gold.kind == answer.kind and len(gold.args) == len(answer.args):
        if (equal := _same_in_order(gold.args, answer.args)) is not False:
            return equal
        if any(part.kind != "scalar" for part in (*gold.args, *answer.args)):
            return False
        first, other = gold.args[0].args[0], answer.args[0].args[0]
        pairs = zip(gold.args, answer.args, strict=True)
        proportional = every([same(times(one, other), times(two, first)) for one, two in pairs])
        return None if proportional and (gold.detail or answer.detail) else proportional
    ratio, other_node = (gold, answer) if gold.kind == "ratio" else (answer, gold)
    if other_node.kind == "scalar" and len(ratio.args) == 2 and all(part.kind == "scalar" for part in ratio.args):
        top, bottom = (part.args[0] for part in ratio.args)
        if bottom != 0:
            verdict = same(Node("scalar", (top / bottom,)), other_node)
            return None if verdict and ratio.detail else verdict
    return False


def _same_based(gold: Node, answer: Node) -> bool | None:
    if gold.kind == answer.kind:
        return None if int(*gold.args) == int(*answer.args) else False  # in another base
    based, other = (gold, answer) if gold.kind == "based" else (answer, gold)
    is_equal = other.kind == "scalar" and bool(other.args[0] == int(*based.args))
    if based.args[1] == 10:
        return is_equal
    # Neither the value nor the digits without their base are what was asked for, unless the question says so.
    return None if is_equal or (other.kind == "scalar" and str(other.args[0]) == based.args[0]) else False


def _same_congruence(gold: Node, answer: Node) -> bool | None:
    if gold.kind != answer.kind:
        congruence, other = (gold, answer) if gold.kind == "congruence" else (answer, gold)
        inner, modulus = congruence.args
        if inner.kind == other.kind == "scalar" and (equal := _same_residues((inner,), (other,), modulus)) is not None:
            is_least = 0 <= inner.args[0] < modulus.args[0]  # then the modulus may be left out, like a unit
            return is_least if inner.args[0] == other.args[0] else None if equal else False
        residue = inner.args[-1] if inner.kind == "relation" else inner
        if other.kind == inner.kind == "relation" and other.detail == ("=",) and all(map(is_number, other.args)):
            value = other.args[1].args[0]
            step = value.diff(*value.free_symbols) if len(value.free_symbols) == 1 else oo
            if step in (modulus.args[0], -modulus.args[0]):  # `n = 7k + 3`
                least = Node("scalar", (value.subs(value.free_symbols.pop(), 0),))
                return same(inner.args[0], other.args[0]) and _same_residues((residue,), (least,), modulus)
        return None if other.kind in ("scalar", "relation") and same(residue, other) is not False else False
    (one, modulus), (other, other_modulus) = gold.args, answer.args
    relations = [node for node in (one, other) if node.kind == "relation"]
    names = [node.args[0] for node in relations]
    if not same(modulus, other_modulus) or len({node.detail for node in relations}) > 1:
        return False
    if len(names) == 2 and not same(*names):
        return False
    residues = [node.args[-1] if node.kind == "relation" else node for node in (one, other)]
    one_list, other_list = (node.args if node.kind == "group" else (node,) for node in residues)
    equal = _same_residues(one_list, other_list, modulus)
    return same(*residues) if equal is None else equal


def _same_residues(gold: Sequence[Node], answer: Sequence[Node], modulus: Node) -> bool | None:
    """None where they are no whole numbers."""
    if (
        not all(is_number(part) and part.args[0].is_Integer for part in (*gold, *answer, modulus))
        or not modulus.args[0]
    ):
        return None
    one, other = ({part.args[0] % modulus.args[0] for part in parts} for parts in (gold, answer))
    return one == other


def _same_cases(gold: Node, answer: Node) -> bool | None:
    for node, other in ((gold, answer), (answer, gold)):
        if node.kind == "relation" and other.kind == "cases" and node.detail == ("=",):
            return _verdict_with(gold, answer, node, node.args[1])
    if gold.kind != answer.kind:
        return False
    if len(answer.args) != len(gold.args):
        fewer, more = sorted((gold.args, answer.args), key=len)
        return False if all(any(_same_row(row, other) for other in more) for row in fewer) else None
    return _same_in_any_order(gold.args, answer.args, _same_row)


def _same_row(gold: Node, answer: Node) -> bool | None:
    """A value and its conditions; None where a condition is in words."""
    if same(gold.args[0], answer.args[0]) is False:
        return False
    verdict = _same_in_order(gold.args[1:], answer.args[1:])
    is_in_words = any(arg.kind == "word" for arg in (*gold.args[1:], *answer.args[1:]))
    return None if verdict is False and (is_in_words or len(gold.args) != len(answer.args)) else verdict


# Relations


def _same_relation(gold: Node, answer: Node) -> bool | None:
    if gold.kind == answer.kind:
        return _same_relations(gold, answer)
    relation, other = (gold, answer) if gold.kind == "relation" else (answer, gold)
    if relation.detail == ("in",) and is_name(relation.args[0]):
        return _verdict_with(gold, answer, relation, relation.args[1])
    if other.kind in ("group", "named", "sets") and (solution := solution_set(relation)) is not None:
        return _verdict_with(gold, answer, relation, solution)
    if relation.detail == ("approx",) and not is_name(relation.args[0]):
        exact, rounded = relation.args  # one answer, given twice only if one rounds the other
        if all(is_number(node) and node.args[0].is_number for node in relation.args):
            is_given_twice = rounds(exact, rounded) or rounds(rounded, exact)
            given = relation.args if is_given_twice else relation.args[:1]
            return any(_verdict_with(gold, answer, relation, node) for node in given)
    if not {*relation.detail} <= {"=", "approx"}:
        return False
    first, *middle, last = relation.args
    if any(same(member, last) is False and not is_formula(member) for member in middle):
        return False  # `x = 7 = 8`
    if relation is answer and all(is_symbol(one) and str(one.args[0]) in "ABCDEFGHIJ" for one in (first, last)):
        return None  # `B = A` chooses neither
    if is_name(first) and (relation is gold or is_plain_name(first)):
        return _verdict_with(gold, answer, relation, last)
    if first.kind == "word" and not re.match(r"\\(?:int|lim|sum|prod)", str(first.args[0])):
        return False  # `twice the answer = 5`
    if first.kind == "word" or (last.kind in ("group", "named", "sets") and is_formula(first)):
        return _verdict_with(gold, answer, relation, last)  # the left side is to be computed
    if not is_formula(first) and not is_number(last):
        return bool(same(first, last)) and _verdict_with(gold, answer, relation, last)
    if is_number(first) and is_number(last):
        symbols = first.args[0].free_symbols | last.args[0].free_symbols
        if same(first, last):  # `2^3 = 8`, `(x+1)^2 = x^2+2x+1`
            return _verdict_with(gold, answer, relation, last)
        if not symbols:
            return False
        if len(symbols) == 1 and (symbol := next(iter(symbols))):
            polynomial = (first.args[0] - last.args[0]).as_poly(symbol)
            if polynomial is not None and polynomial.degree() == 1:
                leading, constant = polynomial.all_coeffs()
                root = Node("scalar", (-constant / leading,), None, last.digits)
                return _verdict_with(gold, answer, relation, root)
    return None if relation is answer and _verdict_with(gold, answer, relation, last) is not False else False


def _same_relations(gold: Node, answer: Node) -> bool | None:
    members, operators, others, other_operators = gold.args, gold.detail, answer.args, answer.detail
    if operators == other_operators and (verdict := _same_in_order(members, others)) is not False:
        return verdict
    turned = tuple(REVERSED.get(operator, operator) for operator in reversed(other_operators))
    is_turnable = all(operator in (*REVERSED, "=", "!=", "equiv") for operator in other_operators)
    if is_turnable and operators == turned and (verdict := _same_in_order(members, others[::-1])) is not False:
        return verdict
    if {*operators, *other_operators} == {"="}:
        if len(members) > 2 or len(others) > 2:  # what a chain ends in
            chains = [Node("relation", (chain[0], chain[-1]), ("=",)) for chain in (members, others)]
            consistent = all(same(member, others[-1]) is not False or is_formula(member) for member in others[1:])
            return _same_relations(*chains) if consistent else False
        return _same_equation(members, others)
    solution, other_solution = solution_set(gold), solution_set(answer)
    if solution is not None and other_solution is not None and variable_of(gold) == variable_of(answer):
        return same(solution, other_solution)
    if len(members) == len(others) == 2 and operators[0] in REVERSED and other_operators[0] in REVERSED:
        ratio = _ratio_of_sides(members, others)
        if ratio is None:
            return False
        return bool(other_operators[0] == (operators[0] if ratio > 0 else REVERSED[operators[0]]))
    is_logic = {"equiv", "in", "to", "implies", "iff"} & {*operators, *other_operators}
    return None if is_logic and operators != other_operators else False


def _same_equation(members: Sequence[Node], others: Sequence[Node]) -> bool | None:
    are_known = all(side.kind != "scalar" or not side.args[0].free_symbols for side in (members[1], others[1]))
    if is_symbol(members[0]) and members[0] == others[0] and are_known:
        return same(members[1], others[1])
    calls = [sides[0] for sides in (members, others) if sides[0].kind == "call"]
    if len(calls) == 2:
        (call, value), (other_call, other_value) = (_by_place(*sides) for sides in (members, others))
        return call == other_call and same(value, other_value)
    if calls and Node("scalar", (Symbol("y"),)) in (members[0], others[0]):
        return same(members[1], others[1])
    if terms().has_constants and all(map(is_number, (*members, *others))):  # of the same family of solutions
        if is_symbol(members[0]) and members[0] == others[0]:
            return same(members[1], others[1])
        if same_curves(members[0].args[0] - members[1].args[0], others[0].args[0] - others[1].args[0]):
            return True
    return _ratio_of_sides(members, others) is not None


def _by_place(call: Node, value: Node) -> tuple[tuple[str, str], Node]:
    """A function and its value, with variables named by their places: `f(t) = t` is `f(x) = x`, `f(y) = x` is not."""
    name, variables = call.args
    letters = variables.split(",")
    if all(re.fullmatch("[a-z]", letter) for letter in letters):
        variables = str(len(letters))
        for place, letter in enumerate(letters):
            value = rename(value, Symbol(letter), Symbol(f"argument {place}"))
    return (name, variables), value


def _ratio_of_sides(members: Sequence[Node], others: Sequence[Node]) -> Any:
    """The constant that one difference of sides is of the other; None without one."""
    if not all(map(is_number, (*members, *others))):
        return None
    one, other = (pair[0].args[0] - pair[1].args[0] for pair in (members, others))
    if not one.free_symbols or one.free_symbols != other.free_symbols:
        return None
    if not (one.is_commutative and other.is_commutative):
        return next((Integer(sign) for sign in (1, -1) if same_ordered(one, sign * other)), None)
    samples, ratios = Samples(one, other), []
    for left, right in samples:
        left, right = left.evalf(PRECISION), right.evalf(PRECISION)
        if not left.is_number or not right.is_number or not right or not left:
            return None
        ratios.append(left / right)
        if abs(ratios[-1] - ratios[0]) > abs(ratios[0]) * Rational(1, 10 ** (PRECISION - 12)):
            return None
    if len(ratios) < 3 or not ratios[0].is_real:
        return None
    terms().sampled |= not samples.prove(one - sympy.nsimplify(ratios[0], rational=True) * other)
    return ratios[0]


# Groups and sets

_UNIT_VECTORS = tuple(Symbol(f"vec {letter}") for letter in "ijk")


def _same_group(gold: Node, answer: Node) -> bool | None:
    if "dots" in (gold.kind, answer.kind):
        return False
    if gold.kind == answer.kind:
        return _same_groups(gold, answer)
    group, other = (gold, answer) if gold.kind == "group" else (answer, gold)
    if other.kind == "scalar" and not is_number(other):
        return _verdict_with(gold, answer, other, _rows(other.args[0], other.digits))
    if other.kind == "scalar" and (units := [symbol for symbol in _UNIT_VECTORS if other.args[0].has(symbol)]):
        parts = [other.args[0].coeff(symbol) for symbol in _UNIT_VECTORS[: max(len(group.args), len(units))]]
        if sum(part * symbol for part, symbol in zip(parts, _UNIT_VECTORS, strict=False)) != other.args[0].expand():
            return False
        vector = Node("group", tuple(Node("scalar", (part,), None, other.digits) for part in parts), "tuple")
        return _verdict_with(gold, answer, other, vector)
    if group.detail == "set" and other.kind not in ("named", "sets") and len(single := _unique(group.args)) == 1:
        return (
            _verdict_with(gold, answer, group, single[0]) if single[0].kind not in ("named", "sets", "group") else False
        )
    if other.kind != "scalar" and (interval := union_of(group)) is not None:
        return _verdict_with(gold, answer, group, interval)
    return _same_sets(gold, answer) if other.kind in ("named", "sets", "such", "solved") else False


def _rows(matrix: Any, digits: int | None) -> Node:
    """A matrix as a tuple of its rows, a vector as a tuple of its elements."""
    lists = [list(matrix)] if 1 in matrix.shape else matrix.tolist()
    rows = [Node("group", tuple(Node("scalar", (one,), None, digits) for one in row), "tuple") for row in lists]
    return rows[0] if len(rows) == 1 else Node("group", tuple(rows), "tuple")


def _same_groups(gold: Node, answer: Node) -> bool | None:
    kinds = {gold.detail, answer.detail}
    if kinds & {*JOINED}:
        one, other = (union_of(node) if node.detail in JOINED else node for node in (gold, answer))
        if one is not None and other is not None:
            return _same_sets(one, other)
        gold, answer = _share_name(gold), _share_name(answer)
    brackets = kinds - {"list"}
    if brackets and brackets <= {"set", "tuple", "()", "[]"}:
        gold, answer = _as_assignment(gold), _as_assignment(answer)
        kinds = {gold.detail, answer.detail}
    ordered = _same_in_order(gold.args, answer.args)
    if kinds == {"list"} and _has_names(gold) and not any(item.kind == "relation" for item in answer.args):
        return ordered  # `a = 2, b = 3` as `2, 3`
    if (len(kinds) == 1 and kinds <= {"sequence", "tuple", "image", *INTERVALS}) or kinds in (
        {"tuple", "[]"},
        {"tuple", "()"},
    ):
        return ordered
    if kinds == {"list"} and len({str(one.args[0]) for one in gold.args if one.kind == "word"}) not in (
        0,
        len(gold.args),
    ):
        return ordered  # `True, False, True`
    unordered = _same_in_any_order(gold.args, answer.args)
    if kinds in ({"all", "list"}, {"all"}, {"any"}):
        return unordered
    if kinds <= {"list", "set"}:
        unique = _same_in_any_order(_unique(gold.args), _unique(answer.args))
        if "set" in kinds or unordered is not False or len(gold.args) == len(answer.args):
            return unique if "set" in kinds else unordered
        return None if unique is not False else False  # whether repeated ones count is not said
    if "list" in kinds and kinds <= {"list", "tuple", "()", "[]"}:
        return ordered if ordered is not False else None if unordered is not False else False
    return None if "sequence" in kinds and kinds <= {"sequence", "list", "set", "tuple"} and ordered else False


def _share_name(group: Node) -> Node:
    """`x = 1, 2` and `x = 1, x = 2` as the values of one name."""
    items: list[Node] = []
    for item in group.args:
        if item.kind != "relation" and items and items[-1].kind == "relation" and items[-1].detail == ("=",):
            item = Node("relation", (items[-1].args[0], item), ("=",))
        items.append(item)
    names = [item.args[0] if item.kind == "relation" and item.detail == ("=",) else None for item in items]
    if len(items) > 1 and names[0] is not None and names.count(names[0]) == len(names) and is_plain_name(names[0]):
        items = [item.args[1] for item in items]
    return Node("group", tuple(items), group.detail)


def _has_names(group: Node) -> bool:
    """True if each item is the value of a different name."""
    names = [item.args[0] for item in group.args if item.kind == "relation" and item.detail == ("=",)]
    return len({*names}) == len(names) == len(group.args) and all(map(is_plain_name, names))


def _as_assignment(group: Node) -> Node:
    """`y = 2, x = 1` beside brackets: the tuple of the values in the order of the names."""
    names = [str(item.args[0].args[0]) for item in group.args if item.kind == "relation" and is_name(item.args[0])]
    if group.detail != "list" or len({*names}) < len(group.args) or any(item.detail != ("=",) for item in group.args):
        return group
    order = sorted(group.args, key=lambda item: str(item.args[0].args[0]))
    return Node("group", tuple(item.args[1] for item in order), "tuple")


def _same_sets(gold: Node, answer: Node) -> bool | None:
    compare = _same_in_order if gold.detail == "minus" else _same_in_any_order
    if gold.kind == answer.kind == "sets" and gold.detail == answer.detail and compare(gold.args, answer.args):
        return True
    if gold.kind == answer.kind == "such" and _same_in_order(gold.args, answer.args):
        return True
    is_empty = Node("named", (), "empty") in (gold, answer)
    if gold.kind == answer.kind == "named" or "scalar" in (gold.kind, answer.kind):
        return False
    if is_empty and "group" in (gold.kind, answer.kind):
        return False
    one, other = as_set(gold), as_set(answer)
    if one is None or other is None:
        return None
    difference = sympy.SymmetricDifference(one, other)
    if one == other or difference.is_empty:
        return True
    is_known = difference.is_empty is False or not difference.has(sympy.Intersection, sympy.Complement)
    return False if is_known else None


_BY_KIND: dict[str, Callable[[Node, Node], bool | None]] = {
    "undefined": lambda gold, answer: None if gold.kind == "undefined" else False,
    "option": _same_option,
    "phrase": _same_phrase,
    "formula": _same_formula,
    "logic": _same_logic,
    "date": lambda gold, answer: terms().asks_year and gold.args[:1] == answer.args[:1],
    "cases": _same_cases,
    "congruence": _same_congruence,
    "relation": _same_relation,
    "word": _same_word,
    "time": _same_time,
    "quantity": _same_quantity,
    "dots": _same_group,
    "group": _same_group,
    "named": _same_sets,
    "sets": _same_sets,
    "solved": _same_sets,
    "such": _same_sets,
    "ratio": _same_ratio,
    "based": _same_based,
    "call": lambda gold, answer: False,
}
"""By kind, the first that one of both nodes has; scalars come last."""
