"""Whether two readings denote the same.

`same(gold, answer)` is True, False, or None where nothing is said: the texts are read, but whether they mean the same
depends on what was asked (`5` for `5 cm` does not, `0.5%` for `0.5` does).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

import sympy
from sympy import Integer, MatrixBase, Rational, Symbol, oo

from .reading import canonical
from .scalars import Node
from .values import POINTS, PRECISION, every, same_scalar
from .vocabulary import FILLERS, QUANTITIES, UNITS

_LISTS = ("list", "sequence", "set", "tuple", "()", "[]", "(]", "[)")
_INTERVALS = ("()", "[]", "(]", "[)")
_NEGATIONS = frozenset(("not", "neither", "nor", "no", "never", "non"))
_ALIASES = {"dne": "does not exist"}
_PLAIN_NAME = re.compile(r"\|?[A-Z]{1,4}'?\|?|[fghFGHP]'*\(\w+(?:=\d+)?\)")
_REVERSED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}


def same(gold: Node, answer: Node) -> bool | None:
    """Whether two nodes denote the same; None where that is not certain."""
    if gold == answer and gold.kind != "undefined":
        return True
    for kind, compare in _BY_KIND.items():
        if kind in (gold.kind, answer.kind):
            return compare(gold, answer)
    if "row" in (gold.kind, answer.kind):
        return _ordered(gold.args, answer.args)
    return same_scalar(gold, answer)


def _ordered(gold: Sequence[Node], answer: Sequence[Node]) -> bool | None:
    if len(gold) != len(answer):
        return False
    return every([same(one, other) for one, other in zip(gold, answer, strict=True)])


def _unordered(gold: Sequence[Node], answer: Sequence[Node]) -> bool | None:
    if len(gold) != len(answer):
        return False
    rest, certain = list(answer), True
    for one in gold:
        verdicts = [same(one, other) for other in rest]
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


# Structures


def _letters(node: Node) -> list[str] | None:
    """The capitals of `ABD`, `A, B, D`: several choices."""
    if node.kind == "group" and node.detail == "list":
        parts = [_letters(item) for item in node.args]
        return None if None in parts else sorted(letter for part in parts if part for letter in part)
    if node.kind == "scalar" and not isinstance(node.args[0], MatrixBase):
        names = [str(symbol) for symbol in node.args[0].free_symbols]
        is_product = node.args[0] == sympy.Mul(*map(Symbol, names))
    else:
        names, is_product = list(str(node.args[0])) if node.kind == "word" else [], node.kind == "word"
    return sorted(names) if is_product and names and all(re.fullmatch("[A-J]", name) for name in names) else None


def _same_word(gold: Node, answer: Node) -> bool | None:
    if (
        "group" in (gold.kind, answer.kind)
        and (letters := _letters(gold)) is not None
        and (other_letters := _letters(answer)) is not None
    ):
        return letters == other_letters
    words = [
        node.args[0].strip()
        if node.kind == "word"
        else str(node.args[0]).removeprefix("overline ")
        if node.kind == "scalar"
        else None
        for node in (gold, answer)
    ]
    if None in words:
        return False
    one, other = (_ALIASES.get(str(word).casefold(), " ".join(str(word).split())) for word in words)
    if len(one) > 1 or len(other) > 1 or gold.kind == answer.kind == "word":
        one, other = one.casefold(), other.casefold()
    if one == other:
        return True
    if bool(_NEGATIONS & {*one.split()}) != bool(_NEGATIONS & {*other.split()}):
        return False
    if gold.kind == answer.kind == "word" and (
        set(one.split()) < set(other.split()) or set(other.split()) < set(one.split())
    ):
        return None
    return False if one.casefold() != other.casefold() else None


def _same_phrase(gold: Node, answer: Node) -> bool | None:
    if gold.kind == answer.kind and gold.args[0] == answer.args[0]:
        return same(gold.args[1], answer.args[1])
    if gold.kind == "scalar":  # `half of 42`
        return False
    inner = [node.args[1] if node.kind == "phrase" else node for node in (gold, answer)]
    return False if same(*inner) is False and all(node.kind == "scalar" for node in inner) else None


def _same_option(gold: Node, answer: Node) -> bool | None:
    if gold.kind == answer.kind:
        return bool(gold.args[0] == answer.args[0]) and same(gold.args[1], answer.args[1]) is not False
    option, other = (gold, answer) if gold.kind == "option" else (answer, gold)
    if other.kind in ("word", "scalar") and str(other.args[0]).upper() in tuple("ABCDEFGHIJ"):
        return bool(option.args[0] == str(other.args[0]).upper())
    return same(option.args[1], other)


def _worth(unit: tuple[tuple[str, int], ...]) -> tuple[Any, dict[str, int], list[str]]:
    """What a unit is worth, its dimension, and the names in it that are no units."""
    factor, dimension, nouns = Integer(1), dict[str, int](), []
    for name, power in unit:
        if name not in UNITS:
            nouns.append(name)
            continue
        worth, kind = UNITS[name]
        factor = factor * worth**power
        for base, exponent in kind.items():
            dimension[base] = dimension.get(base, 0) + exponent * power
    return factor, {base: exponent for base, exponent in dimension.items() if exponent}, nouns


def _times(node: Node, factor: Any) -> Node:
    if node.kind == "scalar":
        return Node("scalar", (node.args[0] * factor,), node.detail, node.digits)
    return Node(
        node.kind,
        tuple(_times(arg, factor) if isinstance(arg, Node) else arg for arg in node.args),
        node.detail,
        node.digits,
    )


def _same_quantity(gold: Node, answer: Node) -> bool | None:
    (one, unit), (other, other_unit) = (
        (node.args[0], node.detail) if node.kind == "quantity" else (node, ()) for node in (gold, answer)
    )
    halves = [
        node.kind == "quantity" and bool({"am", "pm"} & {name for name, _ in node.detail}) for node in (gold, answer)
    ]
    times = _clock(gold), _clock(answer)
    if any(halves) and times[0] is not None and times[1] is not None:
        if times[0] == times[1] or all(halves) or times[0][1:] != times[1][1:]:
            return times[0] == times[1]
        return None  # which half of the day is not said
    if not unit or not other_unit:
        bare, united = (one, other) if not unit else (other, one)
        named = unit or other_unit
        if bare.kind in ("relation", "option", "word", "phrase", "cases", "congruence"):
            return _BY_KIND[bare.kind](gold, answer)
        factor, dimension, nouns = _worth(named)
        if (
            not dimension
            and not nouns
            and same(*((bare, _times(united, factor)) if not unit else (_times(united, factor), bare)))
        ):
            return True
        if (
            bare.kind == "scalar"
            and not isinstance(bare.args[0], MatrixBase)
            and (spelled := _spelled(bare)) is not None
        ):
            return _same_quantity(*((spelled, answer) if bare is gold else (gold, spelled)))  # `5m` for 5 m
        verdict = same(one, other)
        if verdict and named == (("percent", 1),) and one.kind == "scalar" and one.args[0].is_number:
            if not unit and not one.args[0].is_Integer and one.digits is None:
                return False  # nobody writes a percentage as a fraction
            return None if abs(one.args[0]) < 1 else True
        return verdict
    if unit == other_unit:
        return same(one, other)
    (factor, dimension, nouns), (other_factor, other_dimension, other_nouns) = _worth(unit), _worth(other_unit)
    if dimension == other_dimension and sorted(nouns) == sorted(other_nouns):
        return same(_times(one, factor), _times(other, other_factor))
    if nouns or other_nouns:
        return None if same(one, other) is not False else False
    return False


def _spelled(node: Node) -> Node | None:
    """A number times symbols that are units, as a quantity."""
    number, rest = node.args[0].as_independent(*node.args[0].free_symbols, as_Add=False)
    powers = rest.as_powers_dict() if rest != 1 else {}
    if not powers or any(str(base) not in UNITS or not isinstance(power, Integer) for base, power in powers.items()):
        return None
    unit = tuple(sorted((canonical(str(base)), int(power)) for base, power in powers.items()))
    return Node("quantity", (Node("scalar", (number,), None, node.digits),), unit)


def _clock(node: Node) -> tuple[int, ...] | None:
    """Hour, minute and second of the day of `9:30 pm`."""
    half = ""
    if node.kind == "quantity" and len(node.detail) == 1 and node.detail[0][0] in ("am", "pm"):
        half, node = node.detail[0][0], node.args[0]
    parts = node.args if node.kind == "ratio" and node.detail else (node,) if node.kind == "scalar" and half else ()
    values = [part.args[0] for part in parts if part.kind == "scalar" and part.args[0].is_Integer]
    if not values or len(values) != len(parts):
        return None
    hour = int(values[0]) % 12 + 12 * (half == "pm") if half else int(values[0])
    return (hour, *(int(value) for value in values[1:]), *[0] * (3 - len(values)))


def _same_ratio(gold: Node, answer: Node) -> bool | None:
    if gold.kind == answer.kind and len(gold.args) == len(answer.args):
        if (equal := _ordered(gold.args, answer.args)) is not False:
            return equal
        if any(part.kind != "scalar" for part in (*gold.args, *answer.args)):
            return False
        first, other = gold.args[0].args[0], answer.args[0].args[0]
        proportional = every(
            [same(_times(a, other), _times(b, first)) for a, b in zip(gold.args, answer.args, strict=True)]
        )
        return None if proportional and (gold.detail or answer.detail) else proportional
    ratio, other_node = (gold, answer) if gold.kind == "ratio" else (answer, gold)
    if other_node.kind == "scalar" and len(ratio.args) == 2 and all(part.kind == "scalar" for part in ratio.args):
        top, bottom = (part.args[0] for part in ratio.args)
        if not ratio.detail and bottom != 0:
            return same(Node("scalar", (top / bottom,)), other_node)
    return False


def _same_based(gold: Node, answer: Node) -> bool | None:
    if gold.kind == answer.kind:
        (digits, base), (other_digits, other_base) = gold.args, answer.args
        if base == other_base:
            return bool(int(digits, base) == int(other_digits, other_base))
        return None if int(digits, base) == int(other_digits, other_base) else False
    based, other = (gold, answer) if gold.kind == "based" else (answer, gold)
    if other.kind != "scalar":
        return False
    digits, base = based.args
    if str(other.args[0]) == digits:
        return True if based is gold else None
    return None if other.args[0] == int(digits, base) else False


def _same_congruence(gold: Node, answer: Node) -> bool | None:
    if gold.kind != answer.kind:
        congruence, other = (gold, answer) if gold.kind == "congruence" else (answer, gold)
        residue = congruence.args[0].args[-1] if congruence.args[0].kind == "relation" else congruence.args[0]
        return None if other.kind in ("scalar", "relation") and same(residue, other) is not False else False
    (one, modulus), (other, other_modulus) = gold.args, answer.args
    if not same(modulus, other_modulus):
        return False
    residues = [node.args[-1] if node.kind == "relation" else node for node in (one, other)]
    names = [node.args[0] for node in (one, other) if node.kind == "relation"]
    if len({node.detail for node in (one, other) if node.kind == "relation"}) > 1:
        return False
    if len(names) == 2 and not same(*names):
        return False
    lists = [list(node.args) if node.kind == "group" else [node] for node in residues]
    if (
        all(part.kind == "scalar" and isinstance(part.args[0], Integer) for part in (*lists[0], *lists[1], modulus))
        and modulus.args[0]
    ):
        return sorted({int(part.args[0] % modulus.args[0]) for part in lists[0]}) == sorted(
            {int(part.args[0] % modulus.args[0]) for part in lists[1]}
        )
    return same(*residues)


def _same_cases(gold: Node, answer: Node) -> bool | None:
    for node, other in ((gold, answer), (answer, gold)):
        if node.kind == "relation" and other.kind == "cases" and node.detail == ("=",):
            return same(node.args[1], other) if node is gold else same(other, node.args[1])
    if gold.kind != answer.kind:
        return False
    rest = list(answer.args)
    if len(rest) != len(gold.args):
        fewer, more = sorted((gold.args, answer.args), key=len)
        return False if all(any(same(row, other) for other in more) for row in fewer) else None
    unknown = False
    for row in gold.args:
        found = None
        for index, other in enumerate(rest):
            if same(row.args[0], other.args[0]) is False:
                continue
            if len(row.args) != len(other.args):
                return None
            verdict = every([same(a, b) for a, b in zip(row.args[1:], other.args[1:], strict=True)])
            words = any(arg.kind == "word" for arg in (*row.args[1:], *other.args[1:]))
            if verdict is not False or words:
                found, unknown = index, unknown or verdict is not True
                break
        if found is None:
            return False
        rest.pop(found)
    return None if unknown else True


def _same_relation(gold: Node, answer: Node) -> bool | None:
    if gold.kind == answer.kind:
        return _same_relations(gold, answer)
    relation, other = (gold, answer) if gold.kind == "relation" else (answer, gold)

    def against(node: Node) -> bool | None:
        return same(node, other) if relation is gold else same(other, node)

    if other.kind in ("congruence", "based") and relation.detail != ("=",):
        return False
    if relation.detail == ("in",) and _is_name(relation.args[0]):
        return against(relation.args[1])
    if other.kind in ("group", "named", "sets") and (interval := _interval(relation)) is not None:
        return against(interval)
    if relation.detail == ("approx",) and not _is_name(relation.args[0]):
        exact, rounded = (node.args[0] if node.kind == "scalar" else None for node in relation.args)
        if getattr(exact, "is_number", False) and getattr(rounded, "is_number", False):
            is_near = bool(abs(sympy.N(exact) - sympy.N(rounded)) <= abs(sympy.N(exact)) / 100)
            return is_near and any(against(node) for node in relation.args)
    if not set(relation.detail) <= {"=", "approx"}:
        return False
    first, *middle, last = relation.args
    if middle and any(same(member, last) is False and not _is_formula(member) for member in middle):
        return False  # `x = 7 = 8`
    if _is_name(first) and (relation is gold or _is_plain_name(first)):
        return against(last)
    if first.kind == "word":
        return False  # `twice the answer = 5`
    if (
        first.kind == "scalar"
        and last.kind == "scalar"
        and not isinstance(first.args[0], MatrixBase)
        and not isinstance(last.args[0], MatrixBase)
    ):
        symbols = first.args[0].free_symbols | last.args[0].free_symbols
        if not symbols:  # `2^3 = 8`
            return against(last) if same(first, last) else False
        if same(first, last):  # `(x+1)^2 = x^2+2x+1`
            return against(last)
        if len(symbols) == 1 and (symbol := next(iter(symbols))):
            polynomial = (first.args[0] - last.args[0]).as_poly(symbol)
            if polynomial is not None and polynomial.degree() == 1:
                leading, constant = polynomial.all_coeffs()
                return against(Node("scalar", (-constant / leading,), None, relation.args[-1].digits))
        if isinstance(last.args[0], Symbol) and last.args[0] not in first.args[0].free_symbols:  # `5 = x`
            return against(first)
    return None if relation is answer and against(last) is not False else False


def _is_formula(node: Node) -> bool:
    return node.kind != "scalar" or bool(getattr(node.args[0], "free_symbols", False))


def _is_plain_name(node: Node) -> bool:
    """A symbol, `f(x)`, `AB`, `|AB|`, `the answer`, `Area`: what an answer may have in front of its value."""
    if node.kind == "word":
        name = str(node.args[0])
        return bool(_PLAIN_NAME.fullmatch(name)) or {*name.lower().split()} <= {*FILLERS, *QUANTITIES}
    if node.kind in ("group", "ratio"):
        return all(_is_plain_name(item) for item in node.args)
    value = node.args[0] if node.kind == "scalar" else None
    if isinstance(value, Symbol):
        return True
    if isinstance(value, sympy.Abs) and re.fullmatch(r"[A-Z]\*[A-Z]", str(value.args[0])):
        return True
    parts = value.args if isinstance(value, sympy.Mul) and len(value.args) == 2 else ()
    return (
        bool(parts)
        and all(isinstance(part, Symbol) for part in parts)
        and any(str(part)[0] in "fghpqFGHPEV" and not str(part)[1:].strip("'_0123456789") for part in parts)
    )


def _is_name(node: Node) -> bool:
    """A symbol, words, `f(x)`, `x + y`, `|AB|`: the left side of what gives its value."""
    if node.kind == "word":
        return True
    if node.kind in ("group", "ratio"):
        return all(_is_name(item) for item in node.args)
    if node.kind != "scalar":
        return False
    value = node.args[0]
    symbols = getattr(value, "free_symbols", ())
    if len(symbols) == 1 and (isinstance(value, sympy.Abs) or not isinstance(value, Symbol | sympy.Function)):
        return False  # `-x = 5`, `|x| = 5`
    return (
        bool(getattr(value, "free_symbols", False))
        and not isinstance(value, MatrixBase)
        and all(
            isinstance(part, Symbol) or part == -1 or not part.is_number or part == sympy.E
            for part in sympy.preorder_traversal(value)
        )
    )


def _same_relations(gold: Node, answer: Node) -> bool | None:
    members, operators, others, other_operators = gold.args, gold.detail, answer.args, answer.detail
    if (operators == ("in",)) != (other_operators == ("in",)):
        inside, other = (gold, answer) if operators == ("in",) else (answer, gold)
        if (bounds := _interval(other)) is not None and inside.args[0] == Node("scalar", (_variable(other),)):
            return same(*((inside.args[1], bounds) if inside is gold else (bounds, inside.args[1])))
    if operators == other_operators and (verdict := _ordered(members, others)) is not False:
        return verdict
    turned = tuple(_REVERSED.get(operator, operator) for operator in reversed(other_operators))
    is_turnable = all(operator in (*_REVERSED, "=", "!=", "equiv") for operator in other_operators)
    if is_turnable and operators == turned and (verdict := _ordered(members, others[::-1])) is not False:
        return verdict
    if set(operators) | set(other_operators) == {"="}:
        if len(members) > 2 or len(others) > 2:  # what a chain ends in
            chains = [Node("relation", (chain[0], chain[-1]), ("=",)) for chain in (members, others)]
            consistent = all(same(member, others[-1]) is not False or _is_formula(member) for member in others[1:])
            return _same_relations(*chains) if consistent else False
        return _same_equation(members, others)
    interval, other_interval = _interval(gold), _interval(answer)
    if interval is not None and other_interval is not None and _variable(gold) == _variable(answer):
        return same(interval, other_interval)
    if len(members) == len(others) == 2 and operators[0] in _REVERSED and other_operators[0] in _REVERSED:
        ratio = _ratio_of_sides(members, others)
        if ratio is None:
            return False
        expected = operators[0] if ratio > 0 else _REVERSED[operators[0]]
        return bool(expected == other_operators[0])
    if {"equiv", "in", "to", "implies", "iff"} & (
        set(operators) | set(other_operators)
    ) and operators != other_operators:
        return None
    return False


def _same_equation(members: Sequence[Node], others: Sequence[Node]) -> bool | None:
    if (
        _is_name(members[0])
        and _is_name(others[0])
        and isinstance(members[0].args[0], Symbol)
        and isinstance(others[0].args[0], Symbol)
    ):
        known = members[0].args[0] == others[0].args[0]
        if known and all(side.kind != "scalar" or not side.args[0].free_symbols for side in (members[1], others[1])):
            return same(members[1], others[1])
    function, other = _function(members), _function(others)
    if function and other:
        renamed = Node("scalar", (other[2].subs(other[1], function[1]),), None, others[1].digits)
        return function[0] == other[0] and same(members[1], renamed)
    if (function or other) and Node("scalar", (Symbol("y"),)) in (members[0], others[0]):
        return same(members[1], others[1])
    return _ratio_of_sides(members, others) is not None


def _function(members: Sequence[Node]) -> tuple[str, Any, Any] | None:
    """Name, variable and value of `f(x) = ...`."""
    if any(member.kind != "scalar" or isinstance(member.args[0], MatrixBase) for member in members):
        return None
    names, value = sorted(members[0].args[0].free_symbols, key=str), members[1].args[0]
    if len(names) != 2 or members[0].args[0] != names[0] * names[1] or str(names[0]) not in tuple("fghpFGHP"):
        return None
    return str(names[0]), names[1], value


def _ratio_of_sides(members: Sequence[Node], others: Sequence[Node]) -> Any:
    """The constant that one difference of sides is of the other; None without one."""
    sides = (*members, *others)
    if any(side.kind != "scalar" or isinstance(side.args[0], MatrixBase) for side in sides):
        return None
    one, other = (pair[0].args[0] - pair[1].args[0] for pair in (members, others))
    symbols = sorted(one.free_symbols | other.free_symbols, key=str)
    if not symbols or one.free_symbols != other.free_symbols:
        return None
    ratios = []
    for shift in range(5):
        place = dict(zip(symbols, itertools.islice(itertools.cycle(POINTS), shift, None), strict=False))
        left, right = one.subs(place).evalf(PRECISION), other.subs(place).evalf(PRECISION)
        if not left.is_number or not right.is_number or not right or not left or left.has(sympy.nan, sympy.zoo):
            return None
        ratios.append(left / right)
    is_constant = all(
        abs(ratio - ratios[0]) <= abs(ratios[0]) * Rational(1, 10 ** (PRECISION - 12)) for ratio in ratios
    )
    return ratios[0] if is_constant and ratios[0].is_real else None


def _variable(node: Node) -> Any:
    return next((arg.args[0] for arg in node.args if arg.kind == "scalar" and isinstance(arg.args[0], Symbol)), None)


def _interval(node: Node) -> Node | None:
    """`a < x <= b` as an interval."""
    if node.kind != "relation":
        return None
    members, operators = list(node.args), list(node.detail)
    if operators[0] in (">", ">="):
        members, operators = members[::-1], [_REVERSED.get(operator, operator) for operator in reversed(operators)]
    infinite = Node("scalar", (oo,)), Node("scalar", (-oo,))
    if operators == ["!="] and isinstance(members[0].args[0], Symbol):
        return Node("sets", (Node("named", (), "R"), Node("group", (members[1],), "set")), "minus")
    if (
        not set(operators) <= {"<", "<="}
        or len(members) not in (2, 3)
        or any(part.kind not in ("scalar", "quantity") for part in members)
    ):
        return None
    is_variable = [part.kind == "scalar" and isinstance(part.args[0], Symbol) for part in members]
    if len(members) == 3 and is_variable[1]:
        low, high, low_mark, high_mark = members[0], members[2], operators[0], operators[1]
    elif len(members) == 2 and is_variable[0] and not is_variable[1]:
        low, high, low_mark, high_mark = infinite[1], members[1], "<", operators[0]
    elif len(members) == 2 and is_variable[1]:
        low, high, low_mark, high_mark = members[0], infinite[0], operators[0], "<"
    else:
        return None
    return Node("group", (low, high), ("(" if low_mark == "<" else "[") + (")" if high_mark == "<" else "]"))


def _same_group(gold: Node, answer: Node) -> bool | None:
    if "dots" in (gold.kind, answer.kind):
        return False
    if "word" in (gold.kind, answer.kind):
        return _same_word(gold, answer)
    if gold.kind != "group" or answer.kind != "group":
        group, other = (gold, answer) if gold.kind == "group" else (answer, gold)
        if (
            other.kind == "scalar"
            and isinstance(other.args[0], MatrixBase)
            and group.detail in ("tuple", "()", "[]", "list")
        ):
            if 1 in other.args[0].shape:
                vector = [Node("scalar", (value,), None, other.digits) for value in other.args[0].flat()]
                return _ordered(*((group.args, vector) if group is gold else (vector, group.args)))
            return False
        if group.detail == "set" and len(group.args) == 1 and group.args[0].kind not in ("named", "sets", "group"):
            return same(group.args[0], answer) if group is gold else same(gold, group.args[0])
        if group.detail == "set" and len(_unique(group.args)) == 1 and len(group.args) > 1:
            return same(*((group.args[0], other) if group is gold else (other, group.args[0])))
        if group.detail in _JOINED and (interval := _united(group)) is not None and other.kind != "scalar":
            return same(*((interval, other) if group is gold else (other, interval)))
        if other.kind in ("named", "sets"):
            return _same_sets(gold, answer)
        return False
    kinds = {gold.detail, answer.detail}
    if kinds & {*_JOINED} and not kinds <= {*_JOINED}:
        one, other_one = (_united(node) if node.detail in _JOINED else node for node in (gold, answer))
        if one is not None and other_one is not None:
            return _same_sets(one, other_one)
    if kinds <= {*_JOINED} and (united := _united(gold)) and (other_united := _united(answer)):
        return same(united, other_united)
    if kinds == {"all", "list"}:
        return _unordered(gold.args, answer.args)
    if gold.detail == answer.detail:
        if gold.detail in ("all", "any"):
            return _unordered(gold.args, answer.args)
        if gold.detail == "set":
            return _unordered(_unique(gold.args), _unique(answer.args))
        if gold.detail == "list":
            gold, answer = _inherit(gold), _inherit(answer)
            verdict = _unordered(gold.args, answer.args)
            if verdict is False and len(gold.args) != len(answer.args):  # whether repeated ones count is not said
                return None if _unordered(_unique(gold.args), _unique(answer.args)) is not False else False
            return verdict
        return _ordered(gold.args, answer.args)
    if "list" in kinds:
        group = answer if gold.detail == "list" else gold
        bare = gold if gold.detail == "list" else answer
        bare, is_named = _inherit(bare), False
        if all(item.kind == "relation" and item.detail == ("=",) and _is_name(item.args[0]) for item in bare.args):
            names = [str(item.args[0].args[0]) for item in bare.args]
            order = (
                sorted(bare.args, key=lambda item: str(item.args[0].args[0]))
                if len(set(names)) == len(names)
                else bare.args
            )
            bare, is_named = Node("group", tuple(item.args[1] for item in order), "list"), len(set(names)) == len(names)
        if group.detail == "set":
            return _unordered(
                _unique(gold.args if group is gold else bare.args), _unique(bare.args if group is gold else answer.args)
            )
        if group.detail in ("tuple", "()", "[]"):
            ordered = _ordered(bare.args, group.args)
            if ordered is not False or is_named:
                return ordered
            return None if _unordered(bare.args, group.args) is not False else False
        return False
    if kinds <= {"tuple", "[]"} and not (gold.detail in _INTERVALS and answer.detail in _INTERVALS):
        return _ordered(gold.args, answer.args)
    if kinds <= {"tuple", "()"}:
        return _ordered(gold.args, answer.args)
    if "sequence" in kinds and kinds <= {"sequence", "list", "set", "tuple"}:
        return None if _ordered(gold.args, answer.args) is not False else False
    return False


def _inherit(group: Node) -> Node:
    """`x = 1, 2` as `x = 1, x = 2`."""
    items: list[Node] = []
    for item in group.args:
        if item.kind != "relation" and items and items[-1].kind == "relation" and items[-1].detail == ("=",):
            item = Node("relation", (items[-1].args[0], item), ("=",))
        if (
            item.kind == "relation"
            and item.detail == ("=",)
            and item.args[1].kind == "group"
            and item.args[1].detail == "list"
        ):
            items += [Node("relation", (item.args[0], value), ("=",)) for value in item.args[1].args]
        else:
            items.append(item)
    names = {str(item.args[0]) for item in items if item.kind == "relation" and item.detail == ("=",)}
    if (
        len(names) == 1
        and len(items) > 1
        and all(item.kind == "relation" and item.detail == ("=",) and _is_plain_name(item.args[0]) for item in items)
    ):
        items = [item.args[1] for item in items]
    return Node("group", tuple(items), group.detail)


_JOINED = ("list", "all", "any")
"""Items apart by commas; by `and`, where all hold; by `or`, where one does."""


def _united(group: Node) -> Node | None:
    """`x < 1 or x > 3` as a union of intervals, `x > 1 and x < 3` as what they share; commas as what is not trivial."""
    intervals = [_interval(item) for item in group.args]
    if None in intervals or len({str(_variable(item)) for item in group.args}) != 1:
        return None
    parts = tuple(interval for interval in intervals if interval is not None)
    shared = Node("sets", parts, "cap")
    if group.detail == "list":
        sets = _as_set(shared)
        return Node("sets", parts, "cup") if sets is None or sets.is_empty else shared
    return shared if group.detail == "all" else Node("sets", parts, "cup")


_DOMAINS = {
    "R": sympy.S.Reals,
    "Z": sympy.S.Integers,
    "N": sympy.S.Naturals,
    "Q": sympy.S.Rationals,
    "C": sympy.S.Complexes,
}


def _as_set(node: Node) -> Any:
    """A set of SymPy, None where there is none."""
    if node.kind == "named":
        return sympy.S.EmptySet if node.detail == "empty" else _DOMAINS.get(node.detail)
    if node.kind == "sets":
        parts = [_as_set(arg) for arg in node.args]
        if None in parts:
            return None
        function = {"cup": sympy.Union, "cap": sympy.Intersection, "minus": sympy.Complement}[node.detail]
        return function(*parts)
    if node.kind == "relation" and (interval := _interval(node)) is not None:
        return _as_set(interval)
    if node.kind != "group" or any(item.kind != "scalar" or isinstance(item.args[0], MatrixBase) for item in node.args):
        return None
    values = [item.args[0] for item in node.args]
    if node.detail in _INTERVALS and all(value.is_extended_real for value in values):
        if not values[0] < values[1]:  # no interval
            return None
        return sympy.Interval(*values, left_open=node.detail[0] == "(", right_open=node.detail[1] == ")")
    return sympy.FiniteSet(*values) if node.detail in ("set", "list") else None


def _same_sets(gold: Node, answer: Node) -> bool | None:
    if gold.kind == answer.kind == "sets" and gold.detail == answer.detail:
        compare = _ordered if gold.detail == "minus" else _unordered
        if compare(gold.args, answer.args):
            return True
    if "such" in (gold.kind, answer.kind):
        if gold.kind == answer.kind:
            return True if _ordered(gold.args, answer.args) else None
        return None
    if gold.kind == answer.kind == "named":
        return False
    nodes = [node for node in (gold, answer) if node.kind == "group"]
    if Node("named", (), "empty") in (gold, answer) and nodes:
        return False
    if answer.kind == "scalar" or gold.kind == "scalar" or "word" in (gold.kind, answer.kind):
        return False
    sets = _as_set(gold), _as_set(answer)
    if None in sets:
        return None
    if sets[0] == sets[1]:
        return True
    difference = sympy.SymmetricDifference(*sets)
    return (
        True
        if difference.is_empty
        else False
        if difference.is_empty is False or not difference.has(sympy.Intersection, sympy.Complement)
        else None
    )


def _same_undefined(gold: Node, answer: Node) -> bool | None:
    return None if gold.kind == "undefined" else False


_BY_KIND = {
    "undefined": _same_undefined,
    "option": _same_option,
    "phrase": _same_phrase,
    "cases": _same_cases,
    "congruence": _same_congruence,
    "quantity": _same_quantity,
    "relation": _same_relation,
    "dots": _same_group,
    "group": _same_group,
    "named": _same_sets,
    "sets": _same_sets,
    "such": _same_sets,
    "ratio": _same_ratio,
    "based": _same_based,
    "word": _same_word,
}
"""By kind, the first that one of both nodes has; scalars come last."""
