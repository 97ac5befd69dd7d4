"""Sets of numbers: intervals in all their notations, as sets of SymPy."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import sympy
from sympy import MatrixBase, S, oo

from .nodes import Node, is_symbol, variable_of

REVERSED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
INTERVALS = ("()", "[]", "(]", "[)")
JOINED = ("list", "all", "any")
"""Items apart by commas; by `and`, where all hold; by `or`, where one does."""
_DOMAINS = {"empty": S.EmptySet, "R": S.Reals, "Z": S.Integers, "N": S.Naturals, "Q": S.Rationals, "C": S.Complexes}
_REALS = Node("named", (), "R")
_SETS = {"cup": sympy.Union, "cap": sympy.Intersection, "minus": sympy.Complement}
_INEQUALITIES: dict[str, Callable[[Any, Any], Any]] = {
    **{"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge},
    "!=": sympy.Ne,
}


def solution_set(relation: Node) -> Node | None:
    """The set that `a < x <= b`, `x != a`, `x in S` or an inequality of one variable describes; None without one."""
    if relation.kind != "relation":
        return None
    members, operators = relation.args, relation.detail
    if operators in (("in",), ("notin",)) and is_symbol(members[0]):
        return members[1] if operators == ("in",) else Node("sets", (_REALS, members[1]), "minus")
    if operators == ("!=",) and is_symbol(members[0]):
        return Node("sets", (_REALS, Node("group", (members[1],), "set")), "minus")
    if operators[0] in (">", ">="):
        members, operators = members[::-1], tuple(REVERSED.get(each, each) for each in reversed(operators))
    if not {*operators} <= {"<", "<="}:
        return _inequality(relation)
    if len(members) == 2 and is_symbol(members[0]) and not is_symbol(members[1]):
        members, operators = (Node("scalar", (-oo,)), *members), ("<", *operators)
    elif len(members) == 2 and is_symbol(members[1]):
        members, operators = (*members, Node("scalar", (oo,))), (*operators, "<")
    if len(members) != 3 or not is_symbol(members[1]) or any(one.kind not in ("scalar", "quantity") for one in members):
        return _inequality(relation)
    brackets = ("(" if operators[0] == "<" else "[") + (")" if operators[1] == "<" else "]")
    return Node("group", (members[0], members[2]), brackets)


def _inequality(relation: Node) -> Node | None:
    """`|x - 1| < 2`, solution_set by SymPy."""
    sides = [member.args[0] for member in relation.args if member.kind == "scalar"]
    if len(sides) < len(relation.args) or any(isinstance(side, MatrixBase) for side in sides):
        return None
    symbols = set().union(*(side.free_symbols for side in sides))
    if len(symbols) != 1 or not {*relation.detail} <= {*_INEQUALITIES}:
        return None
    try:
        pairs = zip(relation.detail, sides, sides[1:], strict=False)
        return Node("solved", (sympy.And(*(_INEQUALITIES[mark](one, two) for mark, one, two in pairs)).as_set(),))
    except (NotImplementedError, ValueError, TypeError, AttributeError):  # SymPy cannot solve it
        return None


def union_of(group: Node) -> Node | None:
    """`x < 1 or x > 3` as a union of intervals, `x > 1 and x < 3` as what they share; commas as what is not trivial."""
    if group.kind != "group" or group.detail not in JOINED or len({str(variable_of(item)) for item in group.args}) != 1:
        return None
    parts = tuple(part for item in group.args if (part := solution_set(item)) is not None)
    if len(parts) < len(group.args):
        return None
    shared = Node("sets", parts, "cap")
    is_trivial = group.detail == "list" and ((sets := as_set(shared)) is None or sets.is_empty)
    return Node("sets", parts, "cup") if is_trivial or group.detail == "any" else shared


def as_set(node: Node) -> Any:
    """A set of SymPy, None where there is none."""
    if node.kind == "solved":
        return node.args[0]
    if node.kind == "named":
        return _DOMAINS.get(node.detail)
    if node.kind == "relation":
        return None if (inner := solution_set(node)) is None else as_set(inner)
    if node.kind == "sets":
        parts = [as_set(arg) for arg in node.args]
        return None if None in parts else _SETS[node.detail](*parts)
    if node.kind == "such":  # numbers of a set that fulfil a condition
        domain, condition = (as_set(arg) for arg in node.args)
        if domain is None or condition is None:
            return None
        chosen = domain.intersect(condition)
        return sympy.FiniteSet(*chosen) if isinstance(chosen, sympy.Range) and chosen.is_finite_set else chosen
    if node.kind != "group" or any(item.kind != "scalar" or isinstance(item.args[0], MatrixBase) for item in node.args):
        return None
    values = [item.args[0] for item in node.args]
    if node.detail in INTERVALS and all(value.is_extended_real for value in values):
        is_interval = bool(values[0] < values[1])
        open_left, open_right = node.detail[0] == "(", node.detail[1] == ")"
        return sympy.Interval(*values, left_open=open_left, right_open=open_right) if is_interval else None
    return sympy.FiniteSet(*values) if node.detail in ("set", "list") else None
