"""The meaning of a text as a tree of nodes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import sympy
from sympy import MatrixBase, Symbol

from .vocabulary import FILLERS, QUANTITIES


@dataclass(frozen=True, slots=True)
class Node:
    """The value that a text denotes.

    `detail` tells nodes of the same kind apart. `digits` is the least number of significant digits of a decimal in a
    scalar; None where it has no decimals and is exact.
    """

    kind: str
    args: tuple[Any, ...]
    detail: Any = None
    digits: int | None = None


def is_number(node: Node) -> bool:
    """A scalar that is no matrix."""
    return node.kind == "scalar" and not isinstance(node.args[0], MatrixBase)


def is_symbol(node: Node) -> bool:
    """True if a node is a single letter or the like."""
    return node.kind == "scalar" and isinstance(node.args[0], Symbol)


def variable_of(node: Node) -> Any:
    """The symbol that a relation is about: a member of its own, or the only one."""
    members = [arg for arg in node.args if arg.kind == "scalar"] if node.kind == "relation" else []
    symbols = set().union(*(arg.args[0].free_symbols for arg in members))
    return next((arg.args[0] for arg in members if is_symbol(arg)), symbols.pop() if len(symbols) == 1 else None)


def is_formula(node: Node) -> bool:
    """True if a node is not a number: it depends on a symbol, or is not a scalar."""
    return node.kind != "scalar" or bool(getattr(node.args[0], "free_symbols", False))


def is_plain_name(node: Node) -> bool:
    """A symbol, `f(x)`, `AB`, `|AB|`, `the answer`, `Area`: the names in front of an answer's value."""
    if node.kind == "word":
        name = str(node.args[0])
        return bool(re.fullmatch(r"\|?[A-Z]{1,4}'?\|?", name)) or {*name.lower().split()} <= {*FILLERS, *QUANTITIES}
    if node.kind in ("group", "ratio"):
        return all(is_plain_name(item) for item in node.args)
    return node.kind == "call" or is_symbol(node) or bool(re.fullmatch(r"Abs\([A-Z]\*[A-Z]\)", str(node.args[0])))


def is_name(node: Node) -> bool:
    """A symbol, words, `f(x)`, `x + y`, `|AB|`: the left side of an equation that gives its value."""
    if node.kind in ("word", "call"):
        return True
    if node.kind in ("group", "ratio"):
        return all(is_name(item) for item in node.args)
    if not is_number(node):
        return False
    value = node.args[0]
    if len(value.free_symbols) == 1:  # `-x = 5`, `|x| = 5` are to be solution_set
        return isinstance(value, Symbol | sympy.Function) and not isinstance(value, sympy.Abs)
    return bool(value.free_symbols) and all(
        isinstance(part, Symbol) or part == -1 or not part.is_number or part == sympy.E
        for part in sympy.preorder_traversal(value)
    )


def times(node: Node, factor: Any, offset: Any = 0) -> Node:
    """The numbers of a node shifted and multiplied, in another unit."""
    if node.kind == "scalar":
        return Node("scalar", ((node.args[0] + offset) * factor,), node.detail, node.digits)
    args = tuple(times(arg, factor, offset) if isinstance(arg, Node) else arg for arg in node.args)
    return Node(node.kind, args, node.detail, node.digits)


def rename(node: Node, old: Any, new: Any) -> Node:
    """The node with one symbol in place of another."""
    args: list[Any] = []
    for arg in node.args:
        is_formula = isinstance(arg, sympy.Basic)
        args.append(rename(arg, old, new) if isinstance(arg, Node) else arg.subs(old, new) if is_formula else arg)
    return Node(node.kind, tuple(args), node.detail, node.digits)
