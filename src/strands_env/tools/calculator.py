"""A calculator: arithmetic of a small language, read with Python's grammar and computed here, never evaluated as code.

Integers are exact. Every operation is bounded before it runs, so no expression takes long or much memory.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any, TypeAlias

from strands import tool

from .results import error_result, text_result

Number: TypeAlias = int | float

MAX_LENGTH = 1000
"""Longest expression, in characters."""
MAX_DEPTH = 100
"""Deepest nesting of operations."""
MAX_BITS = 3322
"""Largest integer, in bits: 1000 decimal digits."""
_LARGEST = 1 << MAX_BITS

# As models and textbooks write them.
_SPELLINGS = str.maketrans({"^": "**", "×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "π": "pi", "√": "sqrt"})


class CalculatorError(ValueError):
    """An expression that cannot be calculated; the text is for the one who wrote it."""


def calculate(expression: str) -> Number:
    """The value of an arithmetic expression.

    Args:
        expression: Numbers, `+ - * / // % **` (also `^`), parentheses, and the functions and constants of this module.

    Returns:
        An integer where the result is one exactly, else a finite float.

    Raises:
        CalculatorError: It is not such an expression, or the result is undefined or too large.
    """
    if not isinstance(expression, str) or not expression.strip():
        raise CalculatorError(f"expected an arithmetic expression such as '2 * (3 + 4)', got {expression!r}")
    if len(expression) > MAX_LENGTH:  # before it is parsed: the parser's memory grows with it
        raise CalculatorError(f"the expression has {len(expression)} characters, at most {MAX_LENGTH} are allowed")
    try:
        tree = ast.parse(expression.translate(_SPELLINGS).strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = getattr(error, "msg", None) or "it is nested too deeply"
        raise CalculatorError(f"{_quote(expression)} is not an arithmetic expression: {reason}") from None
    try:
        value = _value(tree.body, 0)
    except CalculatorError:
        raise
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
        reasons = {
            ZeroDivisionError: "division by zero",
            OverflowError: "a number is too large for this calculation",
            # A chain of names or calls is deep for Python without being an operation.
            RecursionError: f"{_quote(expression)} is nested too deeply",
        }
        raise CalculatorError(reasons.get(type(error), f"the calculation is not defined: {error}")) from None
    return _check(value)


def format_number(value: Number) -> str:
    """Integers in full, floats with 15 significant digits."""
    return str(value) if isinstance(value, int) else format(value, ".15g")


@tool
async def calculator(expression: str) -> dict[str, Any]:
    """Calculate the value of an arithmetic expression.

    Supports + - * / // % **, parentheses, the constants pi, e and tau, and functions such as sqrt, exp, log, sin, cos,
    tan, abs, round, floor, ceil, min, max, sum, factorial, comb, gcd and lcm. Integers are exact.

    Args:
        expression: The expression, for example "(2 + 3) * sqrt(16)".
    """
    try:
        return text_result(format_number(calculate(expression)))
    except CalculatorError as error:
        return error_result(str(error))


def _quote(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")


def _value(node: ast.expr, depth: int) -> Number:
    if depth > MAX_DEPTH:
        raise CalculatorError(f"the expression is nested more than {MAX_DEPTH} levels deep")
    match node:
        case ast.Constant(value=bool()):  # an int to Python
            raise CalculatorError(f"{node.value!r} is not a number")
        case ast.Constant(value=int() | float()):
            return _check(node.value)
        case ast.UnaryOp(op=ast.USub()):
            return -_value(node.operand, depth + 1)
        case ast.UnaryOp(op=ast.UAdd()):
            return _value(node.operand, depth + 1)
        case ast.BinOp() if type(node.op) in _OPERATORS:
            left, right = _value(node.left, depth + 1), _value(node.right, depth + 1)
            return _check(_OPERATORS[type(node.op)](left, right))
        case ast.Name() if node.id.lower() in _CONSTANTS:
            return _CONSTANTS[node.id.lower()]
        case ast.Name():
            raise CalculatorError(f"unknown name {_quote(node.id)}; known constants are {', '.join(_CONSTANTS)}")
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return _call(name, arguments, depth)
    raise CalculatorError(f"{_quote(ast.unparse(node))} is not arithmetic; use numbers, operators and functions only")


def _call(name: str, arguments: list[ast.expr], depth: int) -> Number:
    function = _FUNCTIONS.get(name.lower())
    if function is None:
        raise CalculatorError(f"unknown function {_quote(name)}; known functions are {', '.join(_FUNCTIONS)}")
    if len(arguments) == 1 and isinstance(arguments[0], ast.List | ast.Tuple):  # sum([1, 2, 3])
        arguments = arguments[0].elts
    values = [_value(argument, depth + 1) for argument in arguments]
    if (largest := _WHOLE.get(name.lower())) is not None:  # its cost grows with the numbers
        if not all(isinstance(value, int) for value in values):
            raise CalculatorError(f"{name.lower()} takes whole numbers")
        if any(abs(value) > largest for value in values):
            raise CalculatorError(f"{name.lower()} takes numbers up to {largest}")
    try:
        return _check(function(*values))
    except TypeError:
        text = ", ".join(map(format_number, values))
        raise CalculatorError(f"{name}({_quote(text)[1:-1]}) has the wrong number or kind of arguments") from None


def _check(value: Any) -> Number:
    """The value, if it is a finite number that is not too large."""
    if isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise CalculatorError("the number is too large: more than 1000 digits")
        return value
    if not isinstance(value, float):
        raise CalculatorError("the result is not a real number")
    if math.isnan(value) or math.isinf(value):
        raise CalculatorError("the result is not a finite number")
    return value


def _divide(left: Number, right: Number) -> Number:
    if isinstance(left, int) and isinstance(right, int) and right and left % right == 0:
        return left // right
    return left / right


def _power(base: Number, exponent: Number) -> Any:
    if isinstance(base, int) and isinstance(exponent, int):
        if exponent < 0:
            return 1 / _power(base, -exponent) if base else base**exponent
        # Bounded before it is computed: 9**9**9 would take the machine.
        if abs(base) > 1 and (base.bit_length() - 1) * exponent > MAX_BITS:
            raise CalculatorError("the power is too large: more than 1000 digits")
    return base**exponent


def _sqrt(value: Number) -> Number:
    if isinstance(value, int) and value >= 0 and math.isqrt(value) ** 2 == value:
        return math.isqrt(value)
    return math.sqrt(value)


def _round(value: Number, digits: Number = 0) -> Number:
    if not isinstance(digits, int) or abs(digits) > 1000:
        raise CalculatorError("round(value, digits) takes a whole number of digits between -1000 and 1000")
    return round(value, digits) if digits else round(value)


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.Div: _divide,
    ast.FloorDiv: lambda left, right: left // right,
    ast.Mod: lambda left, right: left % right,
    ast.Pow: _power,
}

_WHOLE = {"factorial": 450, "perm": 450, "comb": 3000, "gcd": _LARGEST, "lcm": _LARGEST}
"""Functions of whole numbers, and the largest number that each takes."""
_CONSTANTS: dict[str, float] = {"pi": math.pi, "e": math.e, "tau": math.tau}

_MATH = "floor ceil cbrt exp log log2 log10 sin cos tan asin acos atan atan2 sinh cosh tanh hypot degrees radians"
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "round": _round,
    "min": lambda *values: min(values),
    "max": lambda *values: max(values),
    "sum": lambda *values: sum(values),
    "sqrt": _sqrt,
    "pow": _power,
    "ln": lambda value: math.log(value),
    **{name: getattr(math, name) for name in (*_MATH.split(), *_WHOLE)},
}
