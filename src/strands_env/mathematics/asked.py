"""What a question settles that an expected answer leaves out: its unit, its base, and whether it asks for a rank.

It is read only where it says one thing: of two units, or two bases, none is taken.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sympy import Integer

from .nodes import Node, is_number
from .texts import Reading, readings
from .vocabulary import NUMBER_WORDS, UNITS, is_bare_unit

_UNIT = re.compile(
    r"(?i)\bhow\s+many\s+(?:(?:more|fewer|total|whole|full|additional)\s+)?(?P<counted>(?:(?:square|cubic)\s+)?(?:[a-z]+s|feet))\b"
    r"(?!\s*(?:,|/|per\b|and\b|or\b|an?\b|each\b|every\b))"
    r"|\bin\s+(?P<measured>[a-z][a-z/]*(?:\^?[23²³])?(?:\s+[a-z]+){0,4})(?=\s*(?:[.,;?!)\]]|$))"
    r"|多少(?P<chinese>[^\W\d_]{1,2})"
)
_BASE = re.compile(
    r"(?i)\bbase[\s~$-]*(\d+|[a-z]+)|\b(binary|ternary|octal|decimal|hexadecimal)\b|\d_\{?(\d+|\\text\s*\{\s*[a-z]+)"
)
_BASES = {"binary": 2, "ternary": 3, "octal": 8, "decimal": 10, "hexadecimal": 16, **NUMBER_WORDS}
_RANK = re.compile(
    r"(?i)\b(?:which|(?:what|in\s+the)\s+(?:place|position|rank|floor|grade|century|day|term|row)|first|second|third|last)\b"
    r"|\d\s*(?:st|nd|rd|th)\b"
)


def as_asked(
    gold: Sequence[Reading], answer: Sequence[Reading], question: str
) -> tuple[Sequence[Reading], Sequence[Reading]]:
    """Both with what the question adds to them; as they are where no question is known."""
    if not re.search(r"[^\W\d_]{2}|多少", question):
        return gold, answer
    names = {next(filter(None, groups)).rpartition("{")[2].strip().lower() for groups in _BASE.findall(question)}
    bases = {int(name) if name.isdigit() else _BASES.get(name, 0) for name in names} - {0}
    units: set[Any] = {unit for found in _UNIT.finditer(question) if (unit := _unit(found)) is not None}
    golds, answers = ([replace(each, node=_in_base(each.node, bases)) for each in side] for side in (gold, answer))
    rank = "ordinal" if _RANK.search(question) else "cardinal"
    for index, each in enumerate(golds):
        if is_number(each.node) and each.node.args[0].is_number:
            node = replace(each.node, detail=each.node.detail or rank) if each.node.args[0].is_Integer else each.node
            golds[index] = replace(each, node=Node("quantity", (node,), *units) if len(units) == 1 else node)
    return golds, answers


def _unit(found: re.Match[str]) -> tuple[tuple[str, int], ...] | None:
    """The unit that a question names; None for other words and for one without a dimension."""
    name = found[found.lastgroup or 0]
    is_named = len(name) > 3 or found.lastgroup == "chinese" or is_bare_unit(name)
    nodes = [each.node for each in readings(rf"1 \text{{ {name} }}")] if is_named else []
    unit = nodes[0].detail if nodes and nodes[0].kind == "quantity" else ()
    return unit if unit and all(UNITS.get(each, (1, {}))[1] for each, _ in unit) else None


def _in_base(node: Node, bases: set[int]) -> Node:
    """Digits in the only base that is named; where none is, what is written in a base by its value."""
    if node.kind == "based" and not bases:
        return Node("scalar", (Integer(int(*node.args)),))
    if is_number(node) and node.args[0].is_Integer and node.digits is None and len(bases) == 1 and bases != {10}:
        (base,), digits = bases, str(node.args[0])
        is_valid = base < 11 and all(int(digit) < base for digit in digits.removeprefix("-"))
        return Node("based", (digits, base)) if is_valid else node
    return replace(node, args=tuple(_in_base(arg, bases) if isinstance(arg, Node) else arg for arg in node.args))
