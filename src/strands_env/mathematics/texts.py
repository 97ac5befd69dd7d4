r"""What a text may denote, and what it is without its looks.

readings("3 1/2")                  [Node("scalar", (7/2,))]
readings(r"x \in [1, 2)")          [Node("relation", (x, Node("group", (1, 2), "[)")), ("in",))]
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import sympy
from sympy import Symbol

from .chemistry import formula
from .dates import date
from .lexing import Token, Undefined, Unreadable, lex, normalise
from .nodes import Node
from .reading import Reader
from .vocabulary import COUNTED, MULTIPLIERS, UNITS, canonical


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read a text; one that is not `certain` is possible, but another comes first."""

    node: Node
    certain: bool = True


def foreign_nouns(node: Node, known: str, asked: str) -> set[str]:
    """Nouns behind cardinal numbers that are no unit, nothing one counts, and not in these texts: `42 dozen`."""
    is_counted = node.kind == "quantity" and node.args[0].detail != "ordinal"
    found = {name for name, _ in node.detail} if is_counted else set[str]()
    for arg in node.args:
        if isinstance(arg, Node):
            found |= foreign_nouns(arg, known, asked)
    own, others = (
        {canonical(word) for word in re.findall(r"[^\W\d_]+", text)} | set(re.findall(r"[^\W\d_]+", text.lower()))
        for text in (known, asked)
    )
    allowed = own | (others - {canonical(word) for word in MULTIPLIERS}) | {canonical(word) for word in COUNTED}
    return {name for name in found if name not in UNITS and not name.startswith("degree")} - allowed


def _read(text: str, *, commas: bool, **options: Any) -> tuple[Node, bool]:
    reader = Reader(lex(text, commas=commas), **options)
    node = reader.whole()
    if reader.signs:
        other = Reader(lex(text, commas=commas), sign=-1, **options).whole()
        node = _both(node, other, reader.signs)
    return node, reader.is_loose


def _both(plus: Node, minus: Node, signs: int) -> Node:
    """The two values of a text with plus-minus signs."""
    if plus.kind == minus.kind == "congruence":
        return Node("congruence", (_both(plus.args[0], minus.args[0], signs), plus.args[1]))
    if plus.kind == minus.kind == "relation" and plus.args[0] == minus.args[0] and len(plus.args) == 2:
        right = _both(plus.args[1], minus.args[1], signs)
        return Node("relation", (plus.args[0], right), plus.detail)
    if plus.kind == minus.kind == "group" and plus.detail == "list":
        pairs = zip(plus.args, minus.args, strict=True)
        return Node(
            "group", tuple(item for pair in pairs for item in (pair if pair[0] != pair[1] else pair[:1])), "list"
        )
    return Node("group", (plus, minus), "list")


def readings(text: str, ordered: frozenset[str] = frozenset()) -> list[Reading]:
    """What a text may denote, the most likely first; empty where it cannot be read whole.

    Products of the letters `ordered` do not commute.
    What is read and denotes nothing is of kind "undefined".
    `1,234` is a number and may be a list; `3,14` is a list and may be a number; `1/2x` is x/2 and may be 1/(2x).
    """
    text = normalise(text)
    parts = _PART.split(text)
    if len(parts) > 2 and not parts[0].strip():  # `(1) 4; (2) 5`: answers to parts of a question
        inner = [readings(part.strip(" ,;"), ordered) for part in parts[1:]]
        return [Reading(Node("group", tuple(each[0].node for each in inner), "tuple"))] if all(inner) else []
    if (day := date(text)) is not None:
        return [Reading(day)]
    found = [] if (substance := formula(text)) is None else [Reading(substance)]

    def add(source: str, *, certain: bool, **options: bool) -> bool:
        try:
            node, is_loose = _read(source, ordered=ordered, **options)
        except Unreadable:
            return False
        except Undefined as undefined:
            node, is_loose = Node("undefined", (str(undefined),)), False
        if all(other.node != node for other in found):
            found.append(Reading(node, certain and (not found or found[0].certain)))
        return is_loose

    is_loose = add(text, certain=True, commas=True)
    if is_loose:
        add(text, certain=False, commas=True, tight=True)
    if re.search(r"\d,\d{3}", text):
        add(text, certain=True, commas=False)
    if re.fullmatch(r"-?\d+,(?!\d{3}\b)\d+[^\d,]*", text) or re.search(r"\d\{,\}\d(?!\d\d(?!\d))", text):
        add(re.sub(r"(?<=\d)(?:,|\{,\})(?=\d)", ".", text), certain=True, commas=False)
    if not found and _OPERATORS.search(text) and (value := _evaluate(text)) is not None:
        found.append(Reading(Node("scalar", (value,), None, 1 if "." in text else None)))
    return found


_PART = re.compile(r"(?:^|(?<=[;,.\s]))\s*\((?:[a-e1-5]|i{1,3})\)(?=\s)")
_OPERATORS = re.compile(r"\\(?:int|sum|prod|lim)(?![A-Za-z])|\\frac\s*\{?d")


def _evaluate(text: str) -> Any:
    """An integral, sum, product or limit as math-verify's parser reads it; None where it does not read all of it."""
    from latex2sympy2_extended import latex2sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig

    try:
        # Its grammar may stop before the end. What it has read to the end is one side of an equation with the mark.
        config = ConversionConfig(lowercase_symbols=False)
        equation = latex2sympy(text + r" = \Omega", normalization_config=None, conversion_config=config)
        value = equation.lhs.doit() if isinstance(equation, sympy.Eq) and str(equation.rhs) == "Omega" else None
    except Exception:  # whatever it cannot read
        return None
    if not isinstance(value, sympy.Expr) or value.has(sympy.Integral, sympy.Sum, sympy.Product, sympy.Limit, sympy.nan):
        return None
    return value.xreplace({symbol: Symbol(symbol.name) for symbol in value.free_symbols})


def plain(text: str) -> str:
    """The text without spaces, sizes and fonts: two texts that denote different things differ in it."""
    try:
        tokens = lex(normalise(text))
    except Unreadable:
        return re.sub(r"\s+", " ", text).strip()
    text, last = "", Token("end", "", False)
    for token in tokens:
        is_word = token.kind == "word"
        text += " " if is_word or (token.kind == last.kind == "number" and token.spaced) else ""
        text += token.value.lower() if is_word and len(token.value) > 1 else token.value
        last = token
    return text.strip()
