"""What a question settles that an expected answer leaves out: its unit, its base, and whether it asks for a rank.

It is read only where it says one thing: of two units none is taken.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sympy import Integer

from .nodes import Node, is_number
from .texts import Reading, readings
from .vocabulary import NUMBER_WORDS, TEMPERATURES, UNITS, is_bare_unit

_MARKUP = re.compile(r"\\(?:text|mathrm|rm)\b|\\[,;:]|[{}$]")
_UNIT = re.compile(
    r"(?i)\bhow\s+many\s+(?:(?:more|fewer|total|whole|full)\s+)?((?:(?:square|cubic)\s+)?(?:[a-z]+s|feet))\b"
    r"(?!\s*(?:,|/|and\b|or\b)|[^.?!]*\b(?:(?<!in )an?|per|each|every)\s+(?:second|minute|hour|day|week|month|year)\b)"
    r"|\bin\s+(?!(?:an?|the|one|each)\b)([a-z][a-z/]*(?:\^?[23²³])?(?:\s+[a-z]+){0,4})(?=\s*(?:[.,;?!)\]]|$))"
    r"|多少([^\W\d_]{1,2})"
)
_BASE = re.compile(
    r"(?i)(?:\b(?:in|to|into|from)\s+|\()base[\s~-]*(\d+|[a-z]+)"
    r"|\bbase[\s-](\d+|[a-z]+)\s+(?:number|numeral|repres|expan|nota)"
    r"|(?:\b(?:in|to|into)\s+)?\b(binary|ternary|octal|decimal|hexadecimal)\b|\d_(\d+|[a-z]+)"
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
    if not re.search(r"[^\W\d_]{2}", question):
        return gold, answer
    question = _MARKUP.sub("", question)
    named = [(found[0], found[found.lastindex or 0].lower()) for found in _BASE.finditer(question)]
    named = [(text, int(name) if name.isdigit() else _BASES.get(name, 0)) for text, name in named]
    bases = {base for text, base in named if re.match("(?i)in|to", text)} or {base for _, base in named}
    bases = ({each.node.args[1] for each in gold if each.node.kind == "based"} & bases or bases) - {0}
    bases = {10} if not bases else bases - {10}
    units: set[Any] = {unit for groups in _UNIT.findall(question) if (unit := _unit("".join(groups)))}
    unit = units.pop() if len(units) == 1 else None
    rank = "ordinal" if _RANK.search(question) else "cardinal"
    golds, answers = ([replace(each, node=_in_base(each.node, *bases)) for each in side] for side in (gold, answer))
    return [replace(each, node=_measured(each.node, unit, rank)) for each in golds], answers


def _unit(name: str) -> Any:
    """The unit that a question names; None for other words, and for one without a dimension."""
    is_named = len(name) > 3 or not name.isascii() or is_bare_unit(name)
    node = next((each.node for each in readings(rf"1 \text{{ {name} }}")), None) if is_named else None
    if node is None or node.kind != "quantity":
        return None
    has_dimension = all(UNITS.get(each, (1, {}))[1] or each in ("degree", *TEMPERATURES) for each, _ in node.detail)
    return node.detail if has_dimension else None


def _measured(node: Node, unit: Any, rank: str) -> Node:
    """An expected number with the unit that the question names."""
    if is_number(node):
        node = replace(node, detail=node.detail or rank) if node.args[0].is_Integer else node
        is_bare = unit is not None and not {str(symbol) for symbol in node.args[0].free_symbols} & {*UNITS}
        return Node("quantity", (node,), unit) if is_bare else node
    if node.kind == "relation" and node.detail == ("=",):
        return replace(node, args=(*node.args[:-1], _measured(node.args[-1], unit, rank)))
    if node.kind == "group" and node.detail in ("list", "set", "any", "all"):
        return replace(node, args=tuple(_measured(item, unit, rank) for item in node.args))
    return node


def _in_base(node: Node, *bases: int) -> Node:
    """Digits as a number in the base that was asked for; where none is named, what is written in one by its value."""
    if node.kind == "based" and bases == (10,):
        return Node("scalar", (Integer(int(*node.args)),))
    if is_number(node) and node.args[0].is_Integer and node.digits is None and len(bases) == 1 and bases[0] < 10:
        is_valid = all(int(digit) < bases[0] for digit in str(abs(node.args[0])))
        return Node("based", (str(node.args[0]), *bases)) if is_valid else node
    return replace(node, args=tuple(_in_base(arg, *bases) if isinstance(arg, Node) else arg for arg in node.args))
