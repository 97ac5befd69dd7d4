r"""The readings of a text, and the text without its looks.

readings("3 1/2")                  [Node("scalar", (7/2,))]
readings(r"x \in [1, 2)")          [Node("relation", (x, Node("group", (1, 2), "[)")), ("in",))]
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
from sympy import Integer, Rational, Symbol

from .formulas import Letter, Terms
from .lexing import Token, Undefined, Unreadable, lex, normalise
from .logic import truth_table
from .nodes import Node, is_number
from .reading import Reader
from .vocabulary import COUNTED, MULTIPLIERS, NUMBER_WORDS, TEMPERATURES, UNITS, canonical, is_bare_unit, words


@dataclass(frozen=True, slots=True)
class Reading:
    """A way to read a text; one that is not `certain` is possible, but another comes first."""

    node: Node
    certain: bool = True


def _both(plus: Node, minus: Node) -> Node:
    """The two values of a text with plus-minus signs."""
    if plus.kind == minus.kind == "congruence":
        return Node("congruence", (_both(plus.args[0], minus.args[0]), plus.args[1]))
    if plus.kind == minus.kind == "relation" and plus.args[0] == minus.args[0] and len(plus.args) == 2:
        right = _both(plus.args[1], minus.args[1])
        return Node("relation", (plus.args[0], right), plus.detail)
    if plus.kind == minus.kind == "group" and plus.detail == "list":
        pairs = zip(plus.args, minus.args, strict=True)
        return Node(
            "group", tuple(item for pair in pairs for item in (pair if pair[0] != pair[1] else pair[:1])), "list"
        )
    return Node("group", (plus, minus), "list")


def readings(text: str, ordered: frozenset[str] = frozenset()) -> list[Reading]:
    """Readings of a text, the most likely first; empty if it cannot be read whole.

    Products of the letters `ordered` do not commute.
    A text that is read and denotes nothing is of kind "undefined".
    `1,234` is a number and may be a list; `3,14` is a list and may be a number; `1/2x` is x/2 and may be 1/(2x).
    """
    text = normalise(text)
    parts = _PART.split(text)
    if len(parts) > 2 and not parts[0].strip():  # `(1) 4; (2) 5`: answers to parts of a question
        inner = [readings(_AROUND_PART.sub("", part), ordered) for part in parts[1:]]
        return [Reading(Node("group", tuple(each[0].node for each in inner), "tuple"))] if all(inner) else []
    if (day := date(text)) is not None:
        return [Reading(day)]
    if (_CONNECTIVE.search(text) or _EVENTS.fullmatch(text)) and (table := truth_table(text)) is not None:
        return [Reading(Node("logic", table))]
    found = [] if (substance := formula(text)) is None else [Reading(substance)]

    def add(source: str, *, certain: bool, commas: bool, **options: bool) -> bool:
        try:
            reader = Reader(lex(source, commas=commas), ordered=ordered, **options)
            node, is_loose = reader.whole(), reader.is_loose
            if reader.has_signs:
                minus = Reader(lex(source, commas=commas), sign=-1, ordered=ordered, **options).whole()
                node = _both(node, minus)
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


_PART = re.compile(
    r"(?:^|(?<=[;,.\s]))\s*(?:\\text\w*\s*\{\s*)?(?:\(?[a-e]\)(?=[\s\\{}\d+-])|\((?:[1-5]|i{1,3})\)(?=[\s\\}]))(?:\s*\})?"
)
_AROUND_PART = re.compile(r"^(?:[\s,;~]|\\[,;: ]|\\\\)+|(?:[\s,;~]|\\[,;: ]|\\q?quad|\\\\|\band\b)+$")
_CONNECTIVE = re.compile(r"\\(?:wedge|land|vee|lor|neg|lnot|oplus|leftrightarrow)(?![A-Za-z])|[∧∨¬⊕↔]")
_EVENTS = re.compile(
    r"(?=.*\\c[au]p)(?:[A-Z()\s{}]|\\(?:cap|cup|setminus|overline|bar)(?![A-Za-z])|\^\s*(?:\{\s*[cC]\s*\}|[cC])|(?<=[A-Z)}])')+"
)
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
    except Exception:  # any text that it cannot read
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
        is_unit = token.value in UNITS  # `mJ` is not `MJ`
        text += token.value.lower() if is_word and len(token.value) > 1 and not is_unit else token.value
        last = token
    return text.strip()


# ---- dates -----------------------------------------------------------------------------------------------------------


_MONTHS = words("jan feb mar apr may jun jul aug sep oct nov dec")
_NAME = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sep(?:t(?:ember)?)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)\.?"
)
_FORMS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?:the\s+)?(?P<day>\d{{1,2}})\s*(?:of\s+)?{_NAME}(?:\s*,?\s*(?P<year>\d{{4}}))?",
        rf"{_NAME}\s*(?P<day>\d{{1,2}})(?:\s*,?\s*(?P<year>\d{{4}}))?",
        r"(?P<year>\d{4})-(?P<month>\d{2})-(?P<day>\d{2})",
    )
]
_AS_TEXT = re.compile(r"\d+(?:-\d+){2,}|\d{1,2}/\d{1,2}/\d{4}|\d{3,4}-\d{4}")
"""`2021-05-05`, `3/4/2020`, `1914-1918`, `555-1234`: text, not arithmetic."""
_DATE_LOOKS = re.compile(r"\\ordinal|\\(?:text|mathrm|textrm)(?=\s*\{)|[{}]|\\(?=[ ,;])|\\[,;]")


def date(text: str) -> Node | None:
    """Year, month and day of a normalised text; None where it is no date."""
    plain = " ".join(_DATE_LOOKS.sub(" ", text).split())
    found = next((match for form in _FORMS if (match := form.fullmatch(plain))), None)
    if found is None:
        return Node("word", (plain,)) if _AS_TEXT.fullmatch(plain) else None
    month = found["month"].lower()
    number = int(month) if month.isdigit() else _MONTHS.index(month[:3]) + 1
    return Node("date", (int(found["year"] or 0), number, int(found["day"])))


# ---- chemistry -------------------------------------------------------------------------------------------------------


_ELEMENTS = words(
    "H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr Rb Sr Y Zr "
    "Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb Lu Hf Ta W Re Os Ir "
    "Pt Au Hg Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U Np Pu Am Cm Bk Cf Es Fm Md No Lr"
)
_ATOM = rf"(?:{'|'.join(sorted(_ELEMENTS, key=len, reverse=True))})"
_GROUP = rf"(?:{_ATOM}\d*|[(\[](?:{_ATOM}\d*|\((?:{_ATOM}\d*)+\)\d*)+[)\]]\d*)"
_SPECIES = re.compile(rf"(?P<count>\d*)(?P<atoms>(?:{_GROUP})+)(?:\^?(?P<charge>[-+]\d*|(?<=\^)\d*[-+]))?")
_CHEMICAL_LOOKS = re.compile(r"\\(?:text|mathrm|textrm|ce)(?=\s*\{)|\\[,;:! ]|[\s{}_$]")


def formula(text: str) -> Node | None:
    r"""The substances of each side; None for a text that may as well be a product of variables.

    Without the command `\ce` it is one substance, with an index above 1, a charge, or symbols of two letters.
    """
    if re.fullmatch("[A-F]{2,}16", _CHEMICAL_LOOKS.sub("", text)):  # digits in base sixteen
        return None
    is_marked = re.match(r"\s*\\(?:ce|mathrm\s*\{\s*\\ce)\s*\{", text) is not None
    sides = []
    for side in re.split(r"\\to\b|\\rightarrow\b|=", text) if is_marked else [text]:
        substances = []
        for part in re.split(r"\s\+\s", side):
            species = _SPECIES.fullmatch(_CHEMICAL_LOOKS.sub("", part))
            if species is None:
                return None
            atoms = re.findall(r"[A-Z][a-z]?", species["atoms"])
            is_chemical = species["charge"] or re.search(r"[2-9]|1\d", species["atoms"])
            is_chemical = is_chemical or (len(atoms) > 1 and any(len(atom) > 1 for atom in atoms))
            if not is_marked and (not is_chemical or species["count"] or re.search(r"(?<!\d)1(?!\d)", part)):
                return None
            charge = species["charge"] or ""
            charge = charge[1:] + charge[0] if charge[1:].isdigit() else charge
            substances.append(f"{species['count']}{species['atoms']} {charge}".strip())
        sides.append(" + ".join(sorted(substances)))
    return Node("formula", (" = ".join(sides),))


def is_species(name: str) -> bool:
    """True if a word is made of symbols of elements: `Fe`."""
    return _SPECIES.fullmatch(name) is not None


# ---- facts that a question settles -----------------------------------------------------------------------------------


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


_CALCULUS = re.compile(
    r"(?i)\\int(?![A-Za-z])|∫|\b(?:integra(?:l|te|tion)|anti-?derivatives?|primitives?|differential\s+equation|O\.?D\.?E)\b"
    r"|\bd[a-z]\s*/\s*d[a-z]\b|\\frac\s*\{\s*d\^?\d?\s*[a-z]\s*\}\s*\{\s*d|[a-z]''|\b[yfgux]'\s*(?:\([a-z]\))?\s*[-+=]|\\dot"
)
_DEFINITE = re.compile(r"(?i)\\int\s*(?:\\limits)?\s*_|∫_|\bdefinite\b|\bfrom\b.*\bto\b")
_PLUS_C = re.compile(r"[-+]\s*C(?:_\{?\d\}?)?\s*[.$]*\s*$|\b[Cc]_\{?[12]\}?")
"""An expected answer with a constant of integration."""
_MENTIONED = re.compile(r"(?<![A-Za-z\\])([A-Za-z](?:_\d)?)(?![A-Za-z'’])(?!\s[a-z]{2})")
_LETTERS = r"(?<![A-Za-z\\])([A-Za-z](?:\s*(?:,|and|,\s*and)\s*[A-Za-z](?![A-Za-z]))*)(?![A-Za-z])"
_KIND = (
    r"((?:(?:non-?negative|positive|negative|real|complex|whole|natural|even|odd|distinct|rational|prime)[\s,]+)*"
    r"(?:integers?|numbers?|reals|primes?))"
)
_STATED = re.compile(
    rf"(?i:{_KIND})\s+{_LETTERS}"
    rf"|{_LETTERS}\s+(?i:(?:is|are|be|denotes?)\s+(?:both\s+|all\s+)?(?:an?\s+|any\s+|some\s+|the\s+|two\s+)?{_KIND})"
)
_MEMBER = re.compile(
    rf"{_LETTERS}\s*(?:\\in|∈)\s*(?:\\mathbb\s*\{{?\s*([NZRQC])\s*\}}?|([ℕℤℝℚℂ]))\s*(?:\^\s*\{{?\s*([+*]))?"
)
_BOUND = re.compile(
    r"(?:(?<![\w.^}])(-?\d+(?:\.\d+)?)\s*(<|\\leq?(?![a-z])|≤)\s*)?"
    rf"{_LETTERS}\s*(<|>|\\(?:leq?|geq?)(?![a-z])|≤|≥)\s*(-?\d+(?:\.\d+)?)(?![\w^\\]|\.\d)"
)


def _mentioned(text: str) -> list[str]:
    """The letters of a question's formulas, but not a `C` that it calls a constant."""
    if "constant" in text:
        text = re.sub(r"\b[Cc](?:_\d)?\b", " ", text)
    products = re.findall(r"(?<![A-Za-z\\])[A-Zb-df-hj-np-tv-z]{2,5}(?![A-Za-z])", text)  # `kx`, which is no word
    return [*_MENTIONED.findall(text), *"".join(products)]


def _stated(text: str) -> dict[str, Letter]:
    r"""Facts that a question and its answer state of letters: `positive integers a and b`, `n \in Z`, `0 < x < 5`."""
    found: dict[str, Letter] = {}
    bounds: dict[str, set[tuple[Any, Any]]] = {}

    def names(letters: str) -> list[str]:
        return re.findall(r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])", letters)

    for kind, behind, before, other_kind in _STATED.findall(text):
        kind = (kind or other_kind).lower()
        is_whole = re.search("integer|whole|natural|prime|even|odd", kind) is not None
        low = Rational(int(is_whole)) if re.search("(?<!non)(?<!non-)positive|natural|prime", kind) else None
        low = Rational(0) if re.search("non-?negative|whole", kind) else low
        high = Rational(-1 if is_whole else 0) if re.search("(?<!non)(?<!non-)negative", kind) else None
        for name in names(behind or before):
            found[name] = Letter(is_whole=is_whole, is_complex="complex" in kind, low=low, high=high)
    for letters, plain_set, double, mark in _MEMBER.findall(text):
        domain = plain_set or "NZRQC"["ℕℤℝℚℂ".index(double)]
        low = Rational(int(domain in "NZ")) if mark or domain == "N" else None
        for name in names(letters):
            found[name] = Letter(is_whole=domain in "NZ", is_complex=domain == "C", low=low)
    for low, _, letters, mark, high in _BOUND.findall(text):
        is_low = mark in (">", r"\ge", r"\geq", "≥")
        for name in names(letters):
            pair = (Rational(high), None) if is_low else (Rational(low) if low else None, Rational(high))
            bounds.setdefault(name, set()).add(pair)
    for name, pairs in bounds.items():
        if len(pairs) == 1:  # of several, each holds for a case
            (low, high), letter = next(iter(pairs)), found.get(name, Letter())
            if low is None or high is None or low < high:
                found[name] = replace(
                    letter, low=letter.low if low is None else low, high=letter.high if high is None else high
                )
    return found


class Question:
    """Facts that a question settles and an expected answer omits: its unit, its base, a rank that it asks for.

    Each only where the question says one thing: of two units none is taken.

    Attributes:
        nouns: Words that may stand behind a number: those of the question and of the gold, and counted things.
        is_about_matrices: Capitals in it may be matrices.
        terms: Facts it states of letters.
    """

    def __init__(self, text: str, gold: str, expected: Sequence[Reading]) -> None:
        own, others = (
            {canonical(word) for word in re.findall(r"[^\W\d_]+", each)} | set(re.findall(r"[^\W\d_]+", each.lower()))
            for each in (gold, text)
        )
        self.nouns = own | (others - {canonical(word) for word in MULTIPLIERS}) | {canonical(word) for word in COUNTED}
        self.is_about_matrices = re.search(r"(?i)\bmatri(?:x|ces)\b", text) is not None
        self._is_known = re.search(r"[^\W\d_]{2}", text) is not None
        has_constants = _CALCULUS.search(f"{text} {gold}") is not None and not _DEFINITE.search(f"{text} {gold}")
        has_constants |= _PLUS_C.search(gold) is not None
        text = _MARKUP.sub("", text)
        named = [(found[0], found[found.lastindex or 0].lower()) for found in _BASE.finditer(text)]
        named = [(text, int(name) if name.isdigit() else _BASES.get(name, 0)) for text, name in named]
        bases = {base for text, base in named if re.match("(?i)in|to", text)} or {base for _, base in named}
        bases = ({each.node.args[1] for each in expected if each.node.kind == "based"} & bases or bases) - {0}
        self._bases = {10} if not bases else bases - {10}
        units: set[Any] = {unit for groups in _UNIT.findall(text) if (unit := _unit("".join(groups)))}
        self._unit = units.pop() if len(units) == 1 else None
        apart = re.search(r"[\d})](?:\s|~|\\[ ,;])+([A-Za-z]+)$", gold.strip(" $."))
        self._apart = apart and apart[1]
        self._rank = "ordinal" if _RANK.search(text) else "cardinal"
        self.terms = Terms(
            letters=_stated(f"{text} ; {gold}"),
            mentioned=frozenset(_mentioned(text)),
            asks_year=re.search(r"(?i)\byear\b", text) is not None,
            has_constants=has_constants,
        )

    def settle(self, readings: Sequence[Reading], *, is_gold: bool) -> Sequence[Reading]:
        """Readings with the facts that the question adds; unchanged where no question is known."""
        if not self._is_known:
            return readings
        nodes = [_in_base(each.node, *self._bases) for each in readings]
        if is_gold:
            nodes = [_with_unit(self._as_quantity(node), self._unit, self._rank) for node in nodes]
        return [replace(each, node=node) for each, node in zip(readings, nodes, strict=True)]

    def _as_quantity(self, node: Node) -> Node:
        """A gold such as `5 m` as five metres where its letters stand apart, and are no variable of the question."""
        if not is_number(node):
            return node
        number, unit = node.args[0].as_coeff_Mul()
        is_unit = str(unit) in UNITS and (str(unit) == self._apart or ((str(unit), 1),) == self._unit)
        if number == 1 or not is_unit or str(unit) in self.terms.mentioned:
            return node
        return Node("quantity", (replace(node, args=(number,)),), ((str(unit), 1),))

    def knows_nouns(self, node: Node) -> bool:
        """Behind cardinal numbers are only units and nouns of the texts, or counted things: not `42 dozen`."""
        is_counted = node.kind == "quantity" and node.args[0].detail != "ordinal"
        found = {name for name, _ in node.detail} if is_counted else set[str]()
        found = {name for name in found if name not in UNITS and not name.startswith("degree")}
        return found <= self.nouns and all(self.knows_nouns(arg) for arg in node.args if isinstance(arg, Node))


def _unit(name: str) -> Any:
    """The unit that a question names; None for other words, and for one without a dimension."""
    is_named = len(name) > 3 or not name.isascii() or is_bare_unit(name)
    node = next((each.node for each in readings(rf"1 \text{{ {name} }}")), None) if is_named else None
    if node is None or node.kind != "quantity":
        return None
    has_dimension = all(UNITS.get(each, (1, {}))[1] or each in ("degree", *TEMPERATURES) for each, _ in node.detail)
    return node.detail if has_dimension else None


def _with_unit(node: Node, unit: Any, rank: str) -> Node:
    """An expected number with the unit that the question names."""
    if is_number(node):
        node = replace(node, detail=node.detail or rank) if node.args[0].is_Integer else node
        is_bare = unit is not None and not {str(symbol) for symbol in node.args[0].free_symbols} & {*UNITS}
        return Node("quantity", (node,), unit) if is_bare else node
    if node.kind == "relation" and node.detail == ("=",):
        return replace(node, args=(*node.args[:-1], _with_unit(node.args[-1], unit, rank)))
    if node.kind == "group" and node.detail in ("list", "set", "any", "all"):
        return replace(node, args=tuple(_with_unit(item, unit, rank) for item in node.args))
    return node


def _in_base(node: Node, *bases: int) -> Node:
    """Digits as a number in the base that was asked for; where none is named, a number with a base by its value."""
    if node.kind == "based" and bases == (10,):
        return Node("scalar", (Integer(int(*node.args)),))
    if is_number(node) and node.args[0].is_Integer and node.digits is None and len(bases) == 1 and bases[0] < 10:
        is_valid = all(int(digit) < bases[0] for digit in str(abs(node.args[0])))
        return Node("based", (str(node.args[0]), *bases)) if is_valid else node
    return replace(node, args=tuple(_in_base(arg, *bases) if isinstance(arg, Node) else arg for arg in node.args))
