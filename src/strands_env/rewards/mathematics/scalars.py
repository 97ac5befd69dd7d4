r"""Scalars: numbers, formulas and matrices, read from tokens to SymPy by recursive descent."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any, Never, TypeVar

import sympy
from sympy import E, I, Integer, Matrix, Rational, Symbol, oo, pi
from sympy.matrices.exceptions import ShapeError

from .lexing import Token, Undefined, Unreadable, require
from .logic import truth_table
from .nodes import Node
from .products import cross
from .vocabulary import FUNCTIONS, NAMING, OPERATORS, SYMBOLS

_T = TypeVar("_T")
FAILURES = (Unreadable, TypeError, ShapeError)
"""Of a text that is not understood, or adds and multiplies different things."""
MAX_BITS = 200_000
"""Size of the largest whole number that is computed."""


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: getattr(sympy, "a" + re.sub("^ar(c(?!osh))?", "", name) if name.startswith("ar") else name)
    for name in FUNCTIONS
    if re.search("sin|cos|tan|cot|sec|csc", name) and not re.match("a[sct]", name)
} | {"exp": sympy.exp, "ln": sympy.log, "floor": sympy.floor, "ceil": sympy.ceiling}
LOG_BASE = Symbol("ln(base of log)", positive=True)
"""Logarithm of the base of a log without one: for some it is 10, for others e."""


def _power(base: Any, exponent: Any) -> Any:
    is_small = isinstance(exponent, Integer) and abs(exponent) < 50
    require(is_small or not isinstance(base, sympy.MatrixBase), "a power of a matrix")
    if isinstance(base, Rational) and isinstance(exponent, Rational) and base not in (0, 1, -1):
        bits = max(abs(base.p), base.q).bit_length() * abs(exponent)
        require(bits <= MAX_BITS, "a number too large", Undefined)
    return base**exponent


class ScalarReader:
    """A pass over the tokens of a text."""

    def __init__(
        self, tokens: list[Token], *, sign: int = 1, tight: bool = False, ordered: frozenset[str] = frozenset()
    ) -> None:
        self._tokens = tokens
        self._at = 0
        self._sign, self._tight, self._ordered = sign, tight, ordered
        self._depth = 0
        self._bars = 0
        self.has_signs = False
        self.is_loose = False
        """A product of factors side by side follows a slash: `1/2x`."""

    # Tokens

    def _peek(self, ahead: int = 0) -> Token:
        index = self._at + ahead
        return self._tokens[index] if index < len(self._tokens) else Token("end", "", True)

    def _take(self, *values: str) -> str | None:
        """The next token's value where it is one of these; it is consumed."""
        token = self._peek()
        if token.kind != "end" and token.value in values:
            self._at += 1
            return token.value
        return None

    def _expect(self, *values: str) -> str:
        found = f"{self._peek().value or 'the end'!r} where {' or '.join(values)} was expected"
        return self._take(*values) or self._fail(found)

    def _attempt(self, read: Callable[[], _T]) -> _T | None:
        """Return the result of `read`, or None without consuming anything if it fails."""
        before = (self._at, self._depth, self._bars)
        try:
            return read()
        except FAILURES:
            self._at, self._depth, self._bars = before
            return None

    def _name(self) -> str:
        self._expect("{")
        name = ""
        while not self._take("}"):
            require(self._peek().kind != "end", "a name")
            name += self._peek().value
            self._at += 1
        return name

    def _text_argument(self) -> str:
        """Tokens of an index or the like, unread."""
        return self._name() if self._peek().value == "{" else self._token().value

    def _scalar(self) -> Node:
        start = self._at
        value = self._fraction()
        require(not value.has(sympy.nan, sympy.zoo), "undefined", Undefined)
        numbers = [token.value for token in self._tokens[start : self._at] if token.kind == "number"]
        digits = [len(re.sub("[eE].*|[.]", "", text).lstrip("0")) for text in numbers if "." in text]
        is_ordinal = self._take(r"\ordinal") and value.is_Integer
        return Node("scalar", (value,), "ordinal" if is_ordinal else None, min(digits) if digits else None)

    def _sum(self) -> Any:
        value = self._signed_term()
        while self._peek().value in ("+", "-", r"\pm", r"\mp"):
            value = value + self._signed_term()
        return value

    def _signed_term(self) -> Any:
        sign = 1
        while (mark := self._take("+", "-", r"\pm", r"\mp")) is not None:
            if mark == "-":
                sign = -sign
            elif mark != "+":
                self.has_signs = True
                sign *= self._sign if mark == r"\pm" else -self._sign
        term = self._term()
        return -term if sign < 0 else term

    def _term(self) -> Any:
        value, is_divided = self._factor(), False
        while True:
            mark = self._take(r"\cdot", r"\times", "/", r"\div")
            if mark is None:
                if not self._starts_factor():
                    return value
                self.is_loose |= is_divided
                value = value * self._factor()
                continue
            sign = -1 if self._take("-") else 1
            factor, is_divided = sign * self._factor(), mark in ("/", r"\div")
            while (mark == r"\times" or (is_divided and self._tight)) and self._starts_factor():
                factor = factor * self._factor()
            product = cross if mark == r"\times" else operator.mul
            value = self._divide(value, factor) if is_divided else product(value, factor)

    def _divide(self, left: Any, right: Any) -> Any:
        require(right != 0, "division by zero", Undefined)
        return left / right

    def _starts_factor(self) -> bool:
        token = self._peek()
        if token.kind in ("letter", "symbol"):
            return True
        if token.kind == "number":  # `3!7!`
            return self._peek(-1).value == "!" or (self._peek(-1).value == ")" and not token.spaced)
        if token.kind == "command":
            name = token.value[1:]
            return name in _STARTING or name in FUNCTIONS
        if token.value == "(":  # `5 (cm)`, `1 (mod 3)` are none
            return self._peek(1).kind != "word" and self._peek(1).value not in (r"\bmod", r"\mod", "mod", r"\pmod")
        return token.value == "{" or (token.value == "|" and not self._bars) or (token.value == "[" and self._depth > 0)

    def _factor(self) -> Any:
        value = self._postfix(self._atom())
        if not self._take("^"):
            return value
        exponent = self._argument(signed=True)
        if not value.is_commutative and str(exponent) in ("T", "-T"):
            return sympy.transpose(value) if str(exponent) == "T" else sympy.transpose(value) ** -1
        return self._postfix(_power(value, exponent))

    def _postfix(self, value: Any) -> Any:
        while True:
            if self._take("!"):
                require(not self._take("!"), "a double factorial")
                is_defined = not isinstance(value, Rational) or (value.is_Integer and 0 <= value <= 10_000)
                require(is_defined, "a factorial", Undefined)
                value = sympy.factorial(value)
            elif self._depth and (mark := self._take(r"\degree", "%")):
                value = value / 100 if mark == "%" else value * pi / 180
            elif isinstance(value, Symbol) and self._take("'"):
                value = Symbol(value.name + "'")
            else:
                return value

    def _inner(self, read: Callable[[], Any]) -> Any:
        """Read inside of brackets or arguments, where bars open again."""
        bars, self._bars, self._depth = self._bars, 0, self._depth + 1
        try:
            return read()
        finally:
            self._bars, self._depth = bars, self._depth - 1

    def _argument(self, *, signed: bool = False) -> Any:
        """The argument of a command: a group in braces, or one token."""
        if self._take("{"):
            return self._group()
        if signed and (mark := self._take("-", "+")):
            return self._argument() * (-1 if mark == "-" else 1)
        return self._inner(self._atom)

    def _group(self) -> Any:
        value = self._inner(self._fraction)
        self._expect("}")
        return value

    def _fraction(self) -> Any:
        r"""A sum; `a \over b` is a fraction."""
        value = self._sum()
        if mark := self._take(r"\over", r"\choose"):
            value = (self._divide if mark == r"\over" else self._binomial)(value, self._sum())
        return value

    def _binomial(self, top: Any, bottom: Any) -> Any:
        is_large = any(isinstance(part, Rational) and abs(part) >= 5000 for part in (top, bottom))
        require(not is_large, "a number too large", Undefined)
        return sympy.binomial(top, bottom)

    def _digit_argument(self) -> Any:
        r"""As TeX takes it: of `\frac12` the digits go apart."""
        token = self._peek()
        if token.kind == "number" and len(token.value) > 1 and token.value.isdigit():
            self._tokens[self._at : self._at + 1] = [
                Token("number", token.value[0], token.spaced),
                Token("number", token.value[1:], False),
            ]
        return self._argument()

    def _atom(self) -> Any:
        token = self._peek()
        self._at += 1
        match token.kind:
            case "number":
                return self._number(token)
            case "letter":
                if token.value in {"e", "i"} - self._ordered and self._peek().value != "_":
                    value = E if token.value == "e" else I
                    if value is I and self._peek().kind == "number" and not self._peek().spaced:
                        value *= self._number(self._token())
                    return value
                return self._symbol(token.value)
            case "symbol":
                return self._symbol(token.value)
            case "command":
                return self._command(token.value[1:])
        match token.value:
            case "(" | "[":
                value = self._inner(self._sum)
                self._expect(")" if token.value == "(" else "]")
                return value
            case "{":
                return self._group()
            case "|":
                self._bars += 1
                value = self._sum()
                self._expect("|")
                self._bars -= 1
                if isinstance(value, sympy.MatrixBase):
                    return value.det() if value.is_square else self._fail("a determinant")
                return sympy.Abs(value)
        return self._fail(f"{token.value or 'the end'!r} is not understood here")

    def _token(self) -> Token:
        self._at += 1
        return self._peek(-1)

    def _fail(self, what: str) -> Never:
        raise Unreadable(what)

    def _number(self, token: Token) -> Any:
        if repeated := re.fullmatch(r"(\d+)\.(\d*)\((\d+)\)", token.value):  # `0.1(6)`
            whole, fixed, period = repeated.groups()
            return Rational(f"{whole}.{fixed or 0}") + Rational(int(period), 10 ** len(fixed) * (10 ** len(period) - 1))
        require(not re.search(r"[eE][-+]?[5-9]\d{3}", token.value), "a number too large", Undefined)
        value = Rational(token.value)
        part = self._attempt(self._part) if token.value.isdigit() else None
        return value if part is None else value + part

    def _part(self) -> Any:
        r"""`1/2` or `\frac12` behind a whole number."""
        if self._take(r"\frac"):
            top, bottom = self._digit_argument(), self._digit_argument()
        elif self._peek().spaced and self._peek().kind == self._peek(2).kind == "number" and self._peek(1).value == "/":
            top, _, bottom = (self._token().value for _ in range(3))
            top, bottom = Rational(top), Rational(bottom)
        else:
            return self._fail("no fraction")
        require(isinstance(top, Integer) and isinstance(bottom, Integer) and 0 < top < bottom, "a product")
        return Rational(top, bottom)

    def _symbol(self, name: str) -> Any:
        r"""A symbol with its index; `P(A \cap B)`, the probability of an event."""
        if name == "P" and (event := self._attempt(self._event)) is not None:
            return Symbol(f"P {event}")
        commutes = name not in self._ordered
        if self._take("_"):
            name += "_" + self._text_argument()
        return Symbol(name, commutative=commutes)

    def _event(self) -> tuple[Any, ...]:
        """The cases of which an event consists, and those of its condition."""
        self._expect("(")
        start, depth = self._at, 1
        while depth:
            token = self._token()
            depth += (token.value == "(") - (token.value == ")")
            require(token.value, "brackets that do not end")
        texts = [token.value for token in self._tokens[start : self._at - 1]]
        is_event = {"|", r"\mid", r"\cap", r"\cup", ",", "'", "overline"} & {*texts} or r"\overline" in texts
        parts = re.split(r"\||\\mid", " ".join(texts).replace(",", r"\cap"))
        tables = tuple(truth_table(part) for part in parts)
        return tables if is_event and len(parts) < 3 and None not in tables else self._fail("no event")

    def _command(self, name: str) -> Any:
        match name:
            case "frac":
                start = self._at
                above, below = self._attempt(self._name) or "", self._attempt(self._name) or ""
                derived = re.fullmatch(r"d(?:\^2)?([a-z]?)", above)
                if derived and re.fullmatch(r"d[a-z](?:\^2)?", below):
                    return Symbol(f"{above}/{below}") if derived[1] else self._fail("something to differentiate")
                self._at = start
                top, bottom = self._digit_argument(), self._digit_argument()
                return self._divide(top, bottom)
            case "sqrt":
                degree = None
                if self._take("["):
                    degree = self._inner(self._sum)
                    self._expect("]")
                value = self._inner(self._atom) if self._peek().value == "(" else self._digit_argument()
                require(not isinstance(value, sympy.MatrixBase) and degree != 0, "a root")
                if degree is not None and isinstance(degree, Integer) and degree % 2 and value.is_negative:
                    return -((-value) ** (1 / degree))
                return value ** (Rational(1, 2) if degree is None else 1 / degree)
            case "binom":
                return self._binomial(self._digit_argument(), self._digit_argument())
            case "pi" | "infty":
                return pi if name == "pi" else oo
            case "lfloor" | "lceil":
                value = self._inner(self._sum)
                self._expect(rf"\r{name[1:]}")
                return (sympy.floor if name == "lfloor" else sympy.ceiling)(value)
            case "begin":
                return self._matrix()
        if name in FUNCTIONS:
            return self._function(name)
        if name in NAMING:
            return self._named_thing(name)
        if name in OPERATORS or (name in ("Gamma", "zeta") and self._peek().value == "("):
            return self._operator(name)
        if name in SYMBOLS:
            return self._symbol(name)
        return self._fail(f"\\{name} is not known")

    def _operator(self, name: str) -> Any:
        r"""`\\gcd(12, 18)`, `\\det A`: computed of numbers and matrices, otherwise the name of something."""
        if self._take("("):
            values = [self._inner(self._sum)]
            while self._take(","):
                values.append(self._inner(self._sum))
            self._expect(")")
        else:
            values = [self._inner(self._atom)]
        is_large = name == "Gamma" and values[0].is_Rational and abs(values[0]) > 10_000
        require(not is_large, "a number too large", Undefined)
        if isinstance(values[0], sympy.MatrixBase):
            return getattr(values[0], _OF_MATRICES[name])() if name in _OF_MATRICES else self._fail("of a matrix")
        known = _OF_FORMULAS | (_OF_NUMBERS if all(value.is_number for value in values) else {})
        if name in known:
            return known[name](*values)
        return Symbol(f"{name} {', '.join((sorted if name in ('gcd', 'lcm') else list)(map(str, values)))}")

    def _named_thing(self, prefix: str) -> Any:
        r"""`\\angle ABC`, `\\overline{AB}`: the name of something."""
        if self._peek().value == "{":
            name = self._name()
        else:
            name = self._token().value
            while prefix in ("angle", "triangle") and self._peek().kind in ("letter", "symbol"):
                name += self._token().value
        name = name.removeprefix("vec ") if prefix == "hat" else name
        name = name[1] if name in (r"\imath", r"\jmath") else name
        require(re.fullmatch(r"[^\W\d]+|\\[a-z]+", name), "no name")
        return self._symbol(f"vec {name}" if prefix == "hat" and name in ("i", "j", "k") else f"{prefix} {name}")

    def _function(self, name: str) -> Any:
        base = LOG_BASE
        if name in ("log", "lg") and self._take("_"):
            base = sympy.log(self._argument() if self._peek().kind == "number" else self._digit_argument())
        power = self._argument(signed=True) if self._take("^") else 1
        value = self._function_argument()
        is_matrix = isinstance(value, sympy.MatrixBase)
        require(not is_matrix and base not in (0, sympy.zoo), "a function of a matrix, or no base")
        is_large = name == "exp" and value.is_Rational and abs(value) > 10_000
        require(not is_large, "a number too large", Undefined)
        if power == -1 and name not in ("exp", "ln"):
            return getattr(sympy, "a" + name)(value) if hasattr(sympy, "a" + name) else self._fail("an inverse")
        return _power(sympy.log(value) / base if name in ("log", "lg") else _FUNCTIONS[name](value), power)

    def _function_argument(self) -> Any:
        r"""Brackets, or the factors up to the next function or sign: `\\sin 2x \\cos x` are two factors."""
        if self._peek().value in ("(", "[") or self._peek().value == "{":
            return self._inner(self._atom)
        sign = -1 if self._take("-") else 1

        def read() -> Any:
            value = self._factor()
            while (
                self._starts_factor()
                and self._peek().value not in ("(", "|")
                and self._peek().value[1:] not in {*FUNCTIONS} - {"sqrt"}
            ):
                value = value * self._factor()
            if self._peek().value == "/" and self._peek(1).kind == "number":  # `sin pi/6`
                self._at += 1
                value = self._divide(value, self._factor())
            return value

        return sign * self._inner(read)

    def _matrix(self) -> Any:
        name = self._name()
        require("matrix" in name or name == "array", f"environment {name!r}")
        if name == "array":
            self._attempt(self._name)
        rows: list[list[Any]] = [[]]
        while self._peek().value != r"\end":
            rows[-1].append(self._inner(self._sum))
            mark = self._take("&", r"\\") or self._expect(r"\end")
            if mark == r"\\" and self._peek().value != r"\end":
                rows.append([])
            self._at -= mark == r"\end"
        self._expect(r"\end")
        require(self._name() == name and len({len(row) for row in rows}) == 1, "a matrix with uneven rows")
        matrix = Matrix(rows).as_immutable()
        if name == "vmatrix":
            return matrix.det() if matrix.is_square else self._fail("a determinant")
        return matrix


_OF_FORMULAS = {
    "sgn": sympy.sign,
    "sign": sympy.sign,
    "max": sympy.Max,
    "min": sympy.Min,
    "Gamma": sympy.gamma,
    "zeta": sympy.zeta,
}
_OF_MATRICES = {"det": "det", "tr": "trace", "rank": "rank"}
_OF_NUMBERS = {
    **{"Re": sympy.re, "Im": sympy.im, "arg": sympy.arg},
    **{"gcd": lambda *values: sympy.gcd(values), "lcm": lambda *values: sympy.lcm(values)},
}
_STARTING = frozenset(
    ("frac", "sqrt", "binom", "pi", "infty", "lfloor", "lceil", "begin", *SYMBOLS, *NAMING, *OPERATORS)
)
