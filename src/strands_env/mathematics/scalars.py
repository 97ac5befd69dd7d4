r"""Scalars: numbers, formulas and matrices, read from tokens to SymPy by recursive descent."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import sympy
from sympy import E, I, Integer, Matrix, Rational, Symbol, oo, pi

from .lexing import Token, Undefined, Unreadable
from .vocabulary import FUNCTIONS, NAMING, SYMBOLS

_T = TypeVar("_T")
MAX_BITS = 200_000
"""Size of the largest whole number that is computed."""


@dataclass(frozen=True, slots=True)
class Node:
    """What a text denotes.

    `detail` tells apart what has the same kind. `digits` is the least number of significant digits of a decimal in a
    scalar; None where it has no decimals and is exact.
    """

    kind: str
    args: tuple[Any, ...]
    detail: Any = None
    digits: int | None = None


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: getattr(sympy, "a" + re.sub("^ar(c(?!osh))?", "", name) if name.startswith("ar") else name)
    for name in FUNCTIONS
    if re.search("sin|cos|tan|cot|sec|csc", name) and not re.match("a[sct]", name)
} | {"exp": sympy.exp, "ln": sympy.log}
LOG_BASE = Symbol("ln(base of log)", positive=True)
"""Logarithm of the base of a log without one: for some it is 10, for others e."""


def _power(base: Any, exponent: Any) -> Any:
    if isinstance(base, Rational) and isinstance(exponent, Rational) and base not in (0, 1, -1):
        bits = max(abs(base.p), base.q).bit_length() * abs(exponent)
        if bits > MAX_BITS:
            raise Undefined("a number too large")
        if base == 0 and exponent < 0:
            raise Undefined("division by zero")
    return base**exponent


class ScalarReader:
    """One pass over the tokens of a text."""

    def __init__(self, tokens: list[Token], *, sign: int = 1, tight: bool = False) -> None:
        self._tokens = tokens
        self._at = 0
        self._sign, self._tight = sign, tight
        self._depth = 0
        self._bars = 0
        self.signs = 0
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
        if (value := self._take(*values)) is None:
            raise Unreadable(f"{self._peek().value or 'the end'!r} where {' or '.join(values)} was expected")
        return value

    def _attempt(self, read: Callable[[], _T]) -> _T | None:
        """What `read` gives; None, and nothing consumed, where it fails."""
        before = (self._at, self._depth, self._bars)
        try:
            return read()
        except Unreadable:
            self._at, self._depth, self._bars = before
            return None

    def _name(self) -> str:
        self._expect("{")
        name = ""
        while not self._take("}"):
            if self._peek().kind == "end":
                raise Unreadable("a name")
            name += self._peek().value
            self._at += 1
        return name

    def _scalar(self) -> Node:
        start = self._at
        value = self._sum()
        if self._take(r"\over"):
            value = self._divide(value, self._sum())
        elif self._take(r"\choose"):
            value = self._binomial(value, self._sum())
        if value is sympy.nan or value is sympy.zoo or getattr(value, "has", lambda *_: False)(sympy.nan, sympy.zoo):
            raise Undefined("undefined")
        numbers = [token.value for token in self._tokens[start : self._at] if token.kind == "number"]
        digits = [len(re.sub("[eE].*|[.]", "", text).lstrip("0")) for text in numbers if "." in text]
        return Node("scalar", (value,), None, min(digits) if digits else None)

    def _sum(self) -> Any:
        value = self._signed_term(first=True)
        while (mark := self._peek().value) in ("+", "-", r"\pm", r"\mp"):
            value = self._combine(value, self._signed_term(first=False))
            del mark
        return value

    def _combine(self, left: Any, right: Any) -> Any:
        try:
            return left + right
        except TypeError as error:
            raise Unreadable("a sum of different things") from error

    def _signed_term(self, *, first: bool) -> Any:
        sign = 1
        found = False
        while (mark := self._take("+", "-", r"\pm", r"\mp")) is not None:
            found = True
            if mark == "-":
                sign = -sign
            elif mark != "+":
                self.signs += 1
                sign *= self._sign if mark == r"\pm" else -self._sign
        if not first and not found:
            raise Unreadable("a sum")
        term = self._term()
        return -term if sign < 0 else term

    def _term(self) -> Any:
        value = self._factor()
        is_divided = False
        while True:
            mark = self._take(r"\cdot", r"\times", "/", r"\div")
            if mark is None:
                if not self._starts_factor():
                    return value
                if is_divided:
                    self.is_loose = True
                value = self._multiply(value, self._factor())
                continue
            sign = -1 if self._take("-") else 1
            if mark in (r"\cdot", r"\times"):
                value = self._multiply(value, sign * self._factor())
                is_divided = False
                continue
            divisor = sign * self._factor()
            while self._tight and self._starts_factor():
                divisor = self._multiply(divisor, self._factor())
            value, is_divided = self._divide(value, divisor), True

    def _multiply(self, left: Any, right: Any) -> Any:
        try:
            return left * right
        except (TypeError, sympy.matrices.exceptions.ShapeError) as error:
            raise Unreadable("a product of different things") from error

    def _divide(self, left: Any, right: Any) -> Any:
        if isinstance(right, sympy.MatrixBase):
            raise Unreadable("division by a matrix")
        if right == 0:
            raise Undefined("division by zero")
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
        if self._take("^"):
            exponent = self._argument(signed=True)
            if isinstance(value, sympy.MatrixBase):
                if isinstance(exponent, Integer) and abs(exponent) < 50 and value.is_square:
                    return value**exponent
                if exponent == Symbol("T"):
                    return value.T
                raise Unreadable("a power of a matrix")
            if isinstance(exponent, sympy.MatrixBase):
                raise Unreadable("a matrix as exponent")
            return self._postfix(_power(value, exponent))
        return value

    def _postfix(self, value: Any) -> Any:
        while True:
            if self._take("!"):
                if self._take("!"):
                    raise Unreadable("a double factorial")
                if isinstance(value, Rational) and not (value.is_Integer and 0 <= value <= 10_000):
                    raise Undefined("a factorial")
                value = sympy.factorial(value)
            elif self._depth and self._take(r"\degree"):
                value = value * pi / 180
            elif self._depth and self._peek().value == "%":
                self._at += 1
                value = value / 100
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
        """What a command takes: a group in braces, or one token."""
        if self._take("{"):
            return self._group()
        if signed and (mark := self._take("-", "+")):
            return self._argument() * (-1 if mark == "-" else 1)
        return self._inner(self._atom)

    def _group(self) -> Any:
        r"""What stands in braces; `{a \over b}` is a fraction."""
        value = self._inner(self._sum)
        if self._take(r"\over"):
            value = self._divide(value, self._inner(self._sum))
        elif self._take(r"\choose"):
            value = self._binomial(value, self._inner(self._sum))
        self._expect("}")
        return value

    def _binomial(self, top: Any, bottom: Any) -> Any:
        if any(isinstance(part, Rational) and abs(part) >= 5000 for part in (top, bottom)):
            raise Undefined("a number too large")
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
                if token.value in ("e", "i") and self._peek().value != "_":
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
        raise Unreadable(f"{token.value or 'the end'!r} is not understood here")

    def _token(self) -> Token:
        self._at += 1
        return self._peek(-1)

    def _fail(self, what: str) -> Any:
        raise Unreadable(what)

    def _number(self, token: Token) -> Any:
        text = token.value
        value = Rational(_exponent_checked(text.removesuffix(".")))
        following = self._peek()
        if "." in text and (following.value in (r"\overline", r"\dot", r"\bar", "(") or following.value == r"\ldots"):
            repeated = self._attempt(partial(self._repeating, text))
            if repeated is not None:
                return repeated
        if not text.isdigit():
            return value
        whole = int(text)
        if following.value == r"\frac":
            start = self._at
            self._at += 1
            top, bottom = self._digit_argument(), self._digit_argument()
            if isinstance(top, Integer) and isinstance(bottom, Integer) and 0 < top < bottom:
                return whole + Rational(top, bottom)
            self._at = start
        elif (
            following.kind == "number"
            and following.spaced
            and self._peek(1).value == "/"
            and self._peek(2).kind == "number"
        ):
            top, bottom = following.value, self._peek(2).value
            if top.isdigit() and bottom.isdigit() and 0 < int(top) < int(bottom):
                self._at += 3
                return whole + Rational(int(top), int(bottom))
        return value

    def _repeating(self, text: str) -> Any:
        r"""`0.\overline{72}`, `0.\dot{1}42\dot{7}`, `0.(3)`, `0.333\ldots`."""
        _, _, fixed = text.partition(".")
        if self._take(r"\ldots"):
            found = re.fullmatch(r"(\d*?)(\d+?)\2{2,}", fixed) or re.fullmatch(r"(\d*?)(\d{2,}?)\2+", fixed)
            if found is None:
                raise Unreadable("digits that go on")
            fixed, period = found[1], found[2]
        elif self._take("("):
            period = self._digits()
            self._expect(")")
        elif self._take(r"\overline", r"\bar"):
            if self._take("{"):
                period = self._digits()
                self._expect("}")
            else:
                period = self._digits()
        else:
            period = ""
            while self._peek().value == r"\dot" or (period and self._peek().kind == "number"):
                if self._take(r"\dot"):
                    brace = self._take("{")
                    period += self._digits()
                    if brace:
                        self._expect("}")
                else:
                    period += self._digits()
        value = Rational(text if not text.endswith(".") else text + "0")
        if fixed != text.partition(".")[2]:
            value = Rational(text.partition(".")[0] + "." + (fixed or "0"))
        return value + Rational(int(period), 10 ** len(fixed) * (10 ** len(period) - 1))

    def _digits(self) -> str:
        token = self._peek()
        if token.kind != "number" or not token.value.isdigit():
            raise Unreadable("digits")
        self._at += 1
        return token.value

    def _symbol(self, name: str) -> Any:
        """A symbol with its index."""
        if self._take("_"):
            brace = self._take("{")
            index, depth = "", 1
            while True:
                token = self._peek()
                if token.kind == "end":
                    raise Unreadable("an index")
                depth += (token.value == "{") - (token.value == "}")
                if brace and not depth:
                    self._at += 1
                    break
                index += token.value
                self._at += 1
                if not brace:
                    break
            name += "_" + index
        return Symbol(name)

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
                if isinstance(value, sympy.MatrixBase) or degree == 0:
                    raise Unreadable("a root")
                if degree is not None and isinstance(degree, Integer) and degree % 2 and value.is_negative:
                    return -((-value) ** (1 / degree))
                return value ** (Rational(1, 2) if degree is None else 1 / degree)
            case "binom":
                return self._binomial(self._digit_argument(), self._digit_argument())
            case "pi":
                return pi
            case "infty":
                return oo
            case "lfloor" | "lceil":
                value = self._inner(self._sum)
                self._expect(r"\rfloor" if name == "lfloor" else r"\rceil")
                return (sympy.floor if name == "lfloor" else sympy.ceiling)(value)
            case "begin":
                return self._matrix()
            case "log" | "lg":
                return self._log()
            case "floor" | "ceil":
                return (sympy.floor if name == "floor" else sympy.ceiling)(self._inner(self._atom))
            case "gcd" | "lcm" | "max" | "min":
                return self._many(name)
        if name in _FUNCTIONS:
            return self._function(name)
        if name in NAMING:
            return self._named(name)
        if name in SYMBOLS:
            return self._symbol(name)
        raise Unreadable(f"\\{name} is not known")

    def _named(self, prefix: str) -> Any:
        r"""`\\angle ABC`, `\\overline{AB}`: the name of something."""
        if self._peek().kind == "number":
            raise Unreadable("a number with a bar")
        brace = self._take("{")
        name = ""
        while self._peek().kind in ("letter", "symbol", "word") and not (
            name and not brace and prefix not in ("angle", "triangle")
        ):
            name += self._peek().value
            self._at += 1
        if brace:
            self._expect("}")
        if not name:
            raise Unreadable("no name")
        return self._symbol(f"vec {name}" if prefix == "hat" and name in ("i", "j", "k") else f"{prefix} {name}")

    def _function(self, name: str) -> Any:
        power = None
        if self._take("^"):
            power = self._argument(signed=True)
        value = self._function_argument()
        if isinstance(value, sympy.MatrixBase):
            raise Unreadable("a function of a matrix")
        if name == "exp" and value.is_Rational and abs(value) > 10_000:
            raise Undefined("a number too large")
        function = _FUNCTIONS[name]
        if power == -1 and name not in ("exp", "ln"):
            return getattr(sympy, "a" + name)(value) if hasattr(sympy, "a" + name) else self._fail("an inverse")
        result = function(value)
        return result if power is None else _power(result, power)

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
                value = self._multiply(value, self._factor())
            if self._peek().value == "/" and self._peek(1).kind == "number":  # `sin pi/6`
                self._at += 1
                value = self._divide(value, self._factor())
            return value

        return sign * self._inner(read)

    def _log(self) -> Any:
        base = power = None
        if self._take("_"):
            base = self._digit_argument() if self._peek().kind != "number" else self._argument()
        if self._take("^"):
            power = self._argument()
        value = self._function_argument()
        if isinstance(value, sympy.MatrixBase) or base in (0, 1):
            raise Unreadable("a logarithm")
        result = sympy.log(value) / (LOG_BASE if base is None else sympy.log(base))
        return result if power is None else _power(result, power)

    def _many(self, name: str) -> Any:
        self._expect("(")
        values = [self._inner(self._sum)]
        while self._take(","):
            values.append(self._inner(self._sum))
        self._expect(")")
        function = {"gcd": sympy.gcd, "lcm": sympy.lcm, "max": sympy.Max, "min": sympy.Min}[name]
        return function(values) if name in ("gcd", "lcm") else function(*values)

    def _matrix(self) -> Any:
        name = self._name()
        if not ("matrix" in name or name == "array"):
            raise Unreadable(f"environment {name!r}")
        if name == "array":
            self._attempt(self._name)
        rows: list[list[Any]] = [[]]
        while True:
            if self._take(r"\hline"):
                continue
            if self._peek().value == r"\end":
                break
            rows[-1].append(self._inner(self._sum))
            if self._take("&"):
                continue
            if self._take(r"\\"):
                if self._peek().value != r"\end":
                    rows.append([])
                continue
            if self._peek().value != r"\end":
                raise Unreadable("a matrix")
        self._expect(r"\end")
        if self._name() != name or len({len(row) for row in rows}) != 1:
            raise Unreadable("a matrix with uneven rows")
        matrix = Matrix(rows).as_immutable()
        if name == "vmatrix":
            return matrix.det() if matrix.is_square else self._fail("a determinant")
        return matrix


_STARTING = frozenset(("frac", "sqrt", "binom", "pi", "infty", "lfloor", "lceil", "begin", *SYMBOLS, *NAMING))


def _exponent_checked(text: str) -> str:
    if abs(int(re.split("[eE]", text)[1] if re.search("[eE]", text) else 0)) > 5000:
        raise Undefined("a number too large")
    return text
