r"""A mathematical text to its meaning, read whole or not at all.

A recursive descent over the tokens of `lexing`: anything that it does not know, and anything left at the end, makes the
text unreadable. So a number inside of something unknown never stands for the whole.

`Node.kind` is one of: scalar, word, group (list, set, brackets), relation, call, sets, named, such, quantity, time,
ratio, congruence, cases, based, option, phrase, formula, logic, dots.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import partial

from sympy import Integer, Rational, Symbol

from strands_env.rewards.numerals import number_in_words

from .lexing import Undefined, Unreadable, require
from .nodes import Node, is_symbol, rename, variable_of
from .scalars import ScalarReader
from .vocabulary import (
    FACTORS,
    FILLERS,
    MULTIPLES,
    NOT_NOUNS,
    NUMBER_WORDS,
    ORDINALS,
    PARTS,
    QUANTITIES,
    RELATIONS,
    UNITS,
    canonical,
    words,
)

_SET_OPERATORS = {r"\cup": "cup", r"\cap": "cap", r"\setminus": "minus"}
_MONEY = {r"\dollar": "dollar", r"\euro": "euro", r"\pounds": "sterling", r"\yen": "yen", r"\rupee": "rupee"}
_WORDS = {
    name: node
    for names, node in (
        (
            "none;no solution;no solutions;no real solution;no real solutions;no integer solutions;"
            "empty set;the empty set",
            Node("named", (), "empty"),
        ),
        ("all real numbers;all reals;real numbers;the real numbers;all real", Node("named", (), "R")),
        ("all integers;the integers;integers", Node("named", (), "Z")),
        ("noon;midday;at noon", Node("time", (12, 0, 0))),
        ("midnight;at midnight", Node("time", (0, 0, 0))),
    )
    for name in names.split(";")
}
_HALVES = {((name, 1),): hours for name, hours in (("am", 0), ("midnight", 0), ("pm", 12), ("noon", 12))}
_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}
_CLOSERS = {"(": ")]", "[": ")]", "]": "[]"}


class Reader(ScalarReader):
    """A pass over the tokens of a text: lists, relations, sets, units around scalars."""

    # Lists, relations, structures

    def whole(self) -> Node:
        """The text as one node."""
        node = self._attempt(self._option) or self._items()
        require(self._peek().kind == "end", f"{self._peek().value!r} is not understood here")
        return node

    def _option(self) -> Node:
        """`(C) 15`, `C. 15`: the letter of a choice, and its option."""
        bracket = self._take("(")
        letter = self._token()
        require(letter.kind in ("letter", "word") and re.fullmatch("[A-J]", letter.value), "no letter of a choice")
        self._expect(*((")",) if bracket else (")", ".", ":")))
        following = self._peek()
        is_apart = letter.kind == "word" or following.spaced or not bracket
        is_expression = following.kind in ("end", "mark") or following.value in (*RELATIONS, *_SET_OPERATORS)
        require(is_apart and not is_expression, "no choice")
        return Node("option", (letter.value, self._items()))

    def _items(self) -> Node:
        """Members apart by commas, semicolons, `and`, `or`."""
        items = [self._item()]
        is_ordered, joints = False, set[str | None]()
        while self._peek(1).value not in ("&", r"\\", r"\end") and (joint := self._take(",", ";", "and", "or")):
            joints |= {joint, self._take("and", "or")} & {"and", "or"}
            is_ordered |= self._peek().value == r"\ldots"
            items.append(self._item())
        if len(items) == 1:
            return items[0]
        domains = [item for item in items if item.kind == "relation" and item.detail == ("in",)]
        domains = [item for item in domains if item.args[0].kind == "scalar" and item.args[1].kind == "named"]
        for item in domains if len(domains) < len(items) else ():  # `k in Z`: any letter is as good
            items = [rename(other, item.args[0].args[0], Symbol(f"any {item.args[1].detail}")) for other in items]
        items = [item for item in items if "any " not in str(item.args[:1]) or item.detail != ("in",)]
        if len(items) == 1:
            return items[0]
        if (congruence := _congruence(items)) is not None:
            return congruence
        if joints and all(item.kind == "relation" and {*item.detail} & {"<", ">", "<=", ">=", "!="} for item in items):
            require(len(joints) == 1, "and beside or")
            return Node("group", tuple(items), "all" if "and" in joints else "any")
        are_letters = all(re.fullmatch("[A-J]", str(item.args[0])) for item in items if item.args)
        are_names = len({item.args[0] for item in items if item.kind == "relation"}) == len(items)
        if "or" in joints and (are_letters or are_names):  # `A or B`, `x = 1 or y = 2`
            return Node("group", tuple(items), "any")
        return Node("group", tuple(items), "sequence" if is_ordered else "list")

    def _item(self) -> Node:
        if self._take(r"\ldots"):
            return Node("dots", ())
        return self._attempt(self._relation) or self._name_or_phrase()

    def _name_or_phrase(self) -> Node:
        """Words in front of something: a name (`Area = 5`), or a phrase."""
        start = self._at
        words = []
        while self._peek().kind == "word":
            words.append(self._peek().value)
            self._at += 1
        if words and self._peek().value in (",", ";", "and", "or", ")", r"\}", "}", "&", r"\\", ""):
            name = re.sub("^there (?:is|are) (?=no )", "", " ".join(words).lower())
            return _WORDS.get(name) or Node("word", (" ".join(words),))
        if words and self._take("=", ":", r"\approx"):
            return Node("relation", (Node("word", (" ".join(words).lower(),)), self._relation()), ("=",))
        if words:
            inner = self._item()
            if {word.lower() for word in words} <= {*FILLERS, *QUANTITIES}:
                name = " ".join(word.lower() for word in words if word.lower() not in FILLERS)
                is_value = name and inner.kind in ("scalar", "quantity")  # `width 5, length 10`
                return Node("relation", (Node("word", (name,)), inner), ("=",)) if is_value else inner
            return Node("phrase", (" ".join(words).lower(), inner))
        # A left side that has no meaning to us is a name: everything up to the equals sign.
        self._at, depth = start, 0
        for index in range(start, len(self._tokens)):
            value = self._tokens[index].value
            depth += (value in ("(", "[", "{", r"\{")) - (value in (")", "]", "}", r"\}"))
            if depth < 0 or value in (",", ";", "and", "or"):
                break
            if value == "=" and not depth and index > start:
                name = "".join(token.value for token in self._tokens[start:index])
                name = re.sub(r"^\\(?=max$|min$)", "", name)
                self._at = index + 1
                return Node("relation", (Node("word", (name,)), self._relation()), ("=",))
        return self._fail(f"{self._peek().value!r} is not understood here")

    def _relation(self) -> Node:
        if self._peek().value in (r"\approx", "="):  # what is left of it is in the question
            self._at += 1
        members, operators = [self._attempt(self._call) or self._ratio()], []
        while (mark := self._peek().value) in RELATIONS and self._peek().kind in ("mark", "command"):
            self._at += 1
            operators.append(RELATIONS[mark])
            members.append(self._ratio())
        node = members[0] if not operators else Node("relation", tuple(members), tuple(operators))
        if (modulus := self._attempt(self._modulus)) is not None:
            return Node("congruence", (node, modulus))
        return node

    def _call(self) -> Node:
        """`f(x)`, `P(A)`, `f'(2)` as the name of the value behind the equals sign."""
        call = _CALL.match("".join(token.value for token in self._tokens[self._at :])) or self._fail("no function")
        length = 0
        while length < call.end():
            length += len(self._token().value)
        return Node("call", call.groups())

    def _modulus(self) -> Node:
        bracket = self._take("(")
        self._expect(r"\pmod", r"\bmod", r"\mod", "mod", r"\pod")
        modulus = self._scalar()
        if bracket:
            self._expect(")")
        return modulus

    def _ratio(self) -> Node:
        members, is_clock = [self._sets()], True
        while self._peek().value in (":", "to") and self._peek(1).kind in ("number", "letter", "command", "mark"):
            self._at += 1
            token = self._peek()
            is_clock &= token.kind == "number" and len(token.value) == 2 and not token.spaced and int(token.value) < 60
            members.append(self._sets())
        *first, last = members
        if last.kind == "quantity" and last.detail in _HALVES:  # `9:30 pm`
            hour, *rest = (part.args[0] for part in (*first, last.args[0]))
            is_time = is_clock and last.args[0].kind == "scalar" and all(part.is_Integer for part in (hour, *rest))
            require(is_time, "no time")
            return Node("time", (int(hour) % 12 + _HALVES[last.detail], *map(int, rest), *[0] * (2 - len(rest))))
        if len(members) == 1:
            return last
        if last.kind == "quantity":
            return Node("quantity", (Node("ratio", (*first, last.args[0]), is_clock),), last.detail)
        return Node("ratio", tuple(members), is_clock)

    def _sets(self) -> Node:
        node = self._member()
        while (mark := self._take(*_SET_OPERATORS)) is not None:
            node = Node("sets", (node, self._member()), _SET_OPERATORS[mark])
        return node

    def _member(self) -> Node:
        """A structure, or a scalar with or without a unit."""
        for structure in (
            *(self._capitals, self._brackets),
            *(self._environment, self._named_set, self._base_number),
        ):
            start = self._at
            node = self._attempt(structure)
            if node is not None:
                if self._peek().value == "^" and self._peek(1).value == "T" and node.kind == "group":
                    self._at += 2  # a column
                is_whole = self._peek().kind in ("end", "word") or self._peek().value in _AFTER
                if is_whole or node.kind not in ("group", "word"):
                    return node
                self._at = start
        unit = Counter[str]()
        is_negative = self._peek().value == "-" and self._peek(1).value in _MONEY
        is_negative |= self._peek().kind == "word" and self._peek().value.lower() in ("negative", "minus")
        self._at += is_negative
        if (mark := self._take(*_MONEY)) is not None:
            unit[_MONEY[mark]] = 1
        node = self._cardinal() if self._peek().kind == "word" else self._scalar()
        if is_negative:
            node = Node("scalar", (-node.args[0],), None, node.digits)
        unit.update(self._unit())
        for name, factor in FACTORS.items():
            if unit.pop(name, 0):
                node = Node("scalar", (node.args[0] * factor,), None, node.digits)
        powers = tuple(sorted((name, power) for name, power in unit.items() if power))
        if len(powers) == 1 and powers[0][1] == 1:
            return self._with_smaller(node, powers[0][0])
        return Node("quantity", (node,), powers) if powers else node

    def _cardinal(self) -> Node:
        """`forty-two`, `one hundred twenty`, `two thirds`."""
        self._take("the", "The")
        spelled: list[str] = []
        while (word := self._peek().value.lower()) in NUMBER_WORDS or word in MULTIPLES:
            self._at += 1
            spelled.append(word)
            joint = "and" if word in MULTIPLES else "-" if NUMBER_WORDS[word] > 19 else ""
            self._at += self._peek().value == joint and self._peek(1).value.lower() in NUMBER_WORDS
        if (value := number_in_words(" ".join(spelled)) if spelled else 0) is None or not (spelled or word in ORDINALS):
            raise Unreadable("words that are no number")
        has_hyphen = self._peek().value == "-"
        ordinal = ORDINALS.get(self._peek(has_hyphen).value.lower(), 0)
        if ordinal and (value == 0 or (value % 100 >= 20 and ordinal < 10 and not value % 10)):
            self._at += 1 + has_hyphen  # `twenty-first`
            return Node("scalar", (Integer(value + ordinal),), "ordinal")
        self._at += has_hyphen and self._peek(1).value.lower() in PARTS
        parts = PARTS.get(self._peek().value.lower(), 1)
        self._at += parts > 1
        return Node("scalar", (Rational(value, parts),))

    def _capitals(self) -> Node:
        """`CAT`, `HHT`: capitals side by side are a word, not a product whose order is free."""
        name = ""
        while self._peek().kind == "letter" and self._peek().value.isupper() and not (name and self._peek().spaced):
            name += self._token().value
        return Node("word", (name,)) if len(name) > 1 else self._fail("no word of capitals")

    def _with_smaller(self, node: Node, name: str) -> Node:
        """`3 hours 20 minutes`, `30° 15'` in the smaller unit."""
        if (rest := self._attempt(partial(self._smaller, name))) is None:
            return Node("quantity", (node,), ((name, 1),))
        factor = UNITS[name][0] / UNITS[rest.detail[0][0]][0]
        return Node("quantity", (Node("scalar", (node.args[0] * factor + rest.args[0].args[0],)),), rest.detail)

    def _smaller(self, name: str) -> Node:
        self._take("and", ",")
        require(self._peek().kind == "number", "no number")
        if name in ("degree", "arcminute") and self._peek(1).value in ("'", '"'):
            node, mark = Node("scalar", (self._number(self._token()),)), self._token().value
            return self._with_smaller(node, "arcsecond" if mark == '"' or self._take("'") else "arcminute")
        rest = self._member()
        smaller = rest.detail[0][0] if rest.kind == "quantity" and len(rest.detail) == 1 else ""
        require(name in UNITS and smaller in UNITS and UNITS[name][1], "no units")
        (size, kind), (small_size, small_kind) = UNITS[name], UNITS[smaller]
        require(kind == small_kind and small_size < size, "no smaller unit")
        return rest

    def _unit(self) -> Counter[str]:
        """The unit or noun after a number: `cm^2`, `miles per hour`, `%`, apples."""
        unit = Counter[str]()
        sign, last, power = 1, "", 1
        bracket = self._peek(1).kind == "word" and self._take("(")
        while True:
            token = self._peek()
            if mark := self._take("%", r"\degree"):
                last = "percent" if mark == "%" else "degree" + (self._take("C", "F", "K") or "")
                unit[last] += sign
                sign = 1
            elif not unit and (mark := self._take(*_MONEY)):
                unit[_MONEY[mark]] = 1
            elif token.kind == "word" and token.value != "to":
                self._at += 1
                name = token.value if token.value in UNITS else token.value.lower()
                if name == "per":
                    sign = -1
                elif name in _POWERS and name.endswith("ed") and last:
                    unit[last] *= _POWERS[name]
                elif name in _POWERS and self._peek().kind == "word":
                    power = _POWERS[name]
                elif name in NOT_NOUNS or (token.value not in UNITS and re.fullmatch("[A-Zb-z]|MM", token.value)):
                    self._fail(f"{name!r} is no unit")
                elif name in UNITS or name not in (_UNCOUNTED if last else _ARTICLES):
                    last = canonical(name)
                    unit[last] += sign * power
                    sign = power = 1
            elif last and self._take("^"):
                exponent = self._argument(signed=True)
                require(isinstance(exponent, Integer), "a power of a unit")
                unit[last] *= int(exponent)
            elif last and self._peek(1).kind == "word" and (mark := self._take("/", r"\cdot")):
                sign = -1 if mark == "/" else sign
            else:
                break
        if bracket:
            self._expect(")")
        return unit if len(unit) <= 6 else self._fail("a sentence")

    def _brackets(self) -> Node:
        """Tuples, intervals, sets."""
        mark = self._expect("(", "[", "]", r"\{", r"\langle")
        if mark == r"\{":
            if self._take(r"\}"):
                return Node("named", (), "empty")
            builder = self._attempt(self._builder)
            if builder is not None:
                return builder
            inner = self._items()
            self._expect(r"\}")
            items = inner.args if inner.kind == "group" and inner.detail in ("list", "sequence") else (inner,)
            return Node("group", items, "sequence" if any(item.kind == "dots" for item in items) else "set")
        inner = self._items()
        closer = self._expect(r"\rangle") if mark == r"\langle" else self._expect(*_CLOSERS[mark])
        if not (inner.kind == "group" and inner.detail in ("list", "sequence")):
            if mark in ("(", "[") and inner.kind != "scalar":
                return inner
            self._fail("brackets around one thing")
        if mark == "]" or closer == "[":
            mark, closer = "(" if mark == "]" else mark, ")" if closer == "[" else closer
        if len(inner.args) == 2 and mark != r"\langle":
            return Node("group", inner.args, mark + closer)
        require(mark + closer not in ("(]", "[)"), "brackets of two kinds")
        return Node("group", inner.args, "tuple")

    def _builder(self) -> Node:
        r"""`\{x \mid x > 3\}`, behind its brace."""
        variable = self._sets()
        domain = self._sets() if self._take(r"\in") else Node("named", (), "R")
        self._expect("|", r"\mid", ":")
        condition = self._items()
        self._expect(r"\}")
        parts = condition.args if condition.kind == "group" and condition.detail in ("all", "any") else (condition,)
        is_known = is_symbol(variable) and all(variable_of(part) == variable.args[0] for part in parts)
        if is_known and domain == Node("named", (), "R"):
            return condition
        if condition.kind == "relation" and condition.detail == ("in",) and condition.args[1].kind == "named":
            letter, members = condition.args
            if is_symbol(letter) and variable.kind == "scalar" and letter.args[0] in variable.args[0].free_symbols:
                any_member = Symbol(f"any {members.detail}")  # `{2n : n in Z}`
                return Node("group", (rename(variable, letter.args[0], any_member),), "image")
        return Node("such", (Node("relation", (variable, domain), ("in",)), condition))

    def _named_set(self) -> Node:
        if self._take(r"\emptyset"):
            return Node("named", (), "empty")
        require(self._peek().value.startswith(r"\mathbb"), "no set")
        name = self._token().value.removeprefix(r"\mathbb")
        while mark := self._take("^", "_"):
            name += mark + self._text_argument()
        return Node("named", (), name)

    def _base_number(self) -> Node:
        """`1011_2`, `2A_{16}`, `(1011)_2`: digits in a base."""
        sign, bracket, digits = self._take("-") or "", self._take("("), ""
        while self._peek().kind in ("number", "letter", "word") and not (digits and self._peek().spaced):
            digits += self._token().value
        if bracket:
            self._expect(")")
        self._expect("_")
        name = self._text_argument().lower()
        base = int(name) if name.isdigit() else NUMBER_WORDS.get(name, 0)
        form = r"\d[\dA-Za-z]*|[0-9A-F]{2,}" if base == 16 else r"\d[\dA-Za-z]*"
        require(base and re.fullmatch(form, digits), "no digits")
        try:
            int(digits, base)
        except ValueError as error:
            raise Undefined("no number in this base") from error
        return Node("based", (sign + (digits.upper().lstrip("0") or "0"), base))

    def _environment(self) -> Node:
        """Cases; matrices are scalars."""
        self._expect(r"\begin")
        name = self._name()
        require(name in ("cases", "dcases", "rcases"), f"environment {name!r}")
        rows: list[list[Node]] = []
        while not self._take(r"\end"):
            rows.append([self._items()])
            self._take(",", ".", ";")
            while self._take("&") or (self._peek().kind == "word" and self._peek().value.lower() in _CONDITIONS):
                rows[-1].append(self._condition())
                self._take(",", ".", ";")
            mark = self._take(r"\\") or self._expect(r"\end")
            self._at -= mark == r"\end"
        require(self._name() == name, "environments do not match")
        if any(len(row) > 1 for row in rows):
            return Node("cases", tuple(Node("row", tuple(row)) for row in rows))
        items = [item for (row,) in rows for item in (row.args if row.detail == "list" else (row,))]
        return items[0] if len(items) == 1 else Node("group", tuple(items), "list")

    def _condition(self) -> Node:
        while self._peek().kind == "word" and (word := self._peek().value.lower()) in (*_CONDITIONS, "and"):
            self._at += 1
            if word in ("otherwise", "else"):
                return Node("word", ("otherwise",))
        return self._items()


_CALL = re.compile(
    r"((?:[fghpqFGHPEVCST]|\\(?:zeta|Gamma|phi|varphi))(?:'|[_^](?:\{[^{}]*\}|\w))*)"
    r"\(([^()]*(?:\([^()]*\)[^()]*)*)\)(?==|\\approx)"
)
_CONDITIONS = ("if", "for", "when", "where", "otherwise", "else")
_ARTICLES = ("of", "a", "an", "the", "in")
_UNCOUNTED = (*_ARTICLES, "old", "long", "tall", "wide", "high", "deep", "thick", "away", "apart", "left", "total")
"""Behind a unit or noun, words that change nothing: `42 years old`."""
_AFTER = frozenset(
    (*words(r", ; and or ) ] [ \} } & \\ \end | : \rangle \pmod \bmod \mod"), *RELATIONS, *_SET_OPERATORS)
)
"""Behind a structure that is not part of a product."""


def _congruence(items: Sequence[Node]) -> Node | None:
    """`n = 1, 5 (mod 6)`, `n = 1 (mod 6) or n = 5 (mod 6)` as one; None for other items."""
    if items[-1].kind != "congruence":
        return None
    inner = [item.args[0] if item.kind == "congruence" else item for item in items]
    moduli = {item.args[1] for item in items if item.kind == "congruence"}
    names = {(one.args[0], one.detail) for one in inner if one.kind == "relation"}
    if len(moduli) != 1 or len(names) != 1 or inner[0].kind != "relation":
        return None
    residues = Node("group", tuple(one.args[-1] if one.kind == "relation" else one for one in inner), "list")
    return Node("congruence", (Node("relation", (inner[0].args[0], residues), inner[0].detail), items[-1].args[1]))
