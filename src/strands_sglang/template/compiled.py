"""Compiled deltas: constant pieces around new content, assembled without rendering.

Most templates print content as it is. That is proved for a step by rendering it once on *traced* texts in place of the
contents and call ids. A traced text is printed like any other. When the template asks it something (does it start with
`<tool_response>`, is it empty, what is left after trimming), the question and the answer are recorded as a condition;
when the template does anything with it that has no condition here, the step is not compiled. So with other contents for
which all conditions give the same answers, the template takes the same branches and prints the same pieces: the delta
is those pieces with the contents between them. Wherever a condition does not hold, the step is rendered.

Whatever else a step depends on (roles, number and names of calls, which result answers which call) is part of the key
under which it is kept; tools and template variables are fixed for a renderer.
"""

from __future__ import annotations

import functools
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple, NoReturn

import jinja2
import jinja2.visitor
from jinja2 import nodes
from jinja2.runtime import Macro

from .chat_messages import Message, Path, calls_of
from .chat_template import ChatTemplate, Namespace, TemplateEnvironment, configure
from .step import Boundary, StepRenderer

_SALT: Final = secrets.token_hex(3)
_MARKER: Final = re.compile(rf"Z{_SALT}(\d\d)")
_CLOCK: Final = f"Z{_SALT}99"
_MAX_SLOTS: Final = 99
_MESSAGE_KEYS: Final = frozenset({"role", "content", "tool_call_id", "name"})
_CALL_KEYS: Final = frozenset({"id", "type", "function"})

Values = Sequence[str]


def _marker(slot: int) -> str:
    """Stands for a value while a step is traced: nine letters and digits, the strictest rule for call ids seen."""
    return f"Z{_SALT}{slot:02d}"


# ---- the frame of a step --------------------------------------------------------------------------------------------


class Frame(NamedTuple):
    """A step, taken apart; steps with equal keys differ only in `values`: contents of messages and ids of calls."""

    key: tuple[Any, ...]
    values: list[str]


def frame_of(history: Sequence[Message], new: Sequence[Message]) -> Frame | None:
    """Take a step apart; None if it has parts other than text.

    Args:
        history: Leading system messages, the latest user message, and the assistant turn.
        new: Messages that follow, with ids and names filled in.
    """
    key: list[Any] = []
    values: list[str] = []
    ids: dict[str, int] = {}
    for message in history[:-1]:
        content = message["content"]
        if type(content) is not str or len(message) != 2:
            return None
        key.append(message["role"])
        values.append(content)
    for call in calls_of(history[-1]):
        function, call_id = call.get("function"), call.get("id")
        if not function or type(call_id) is not str or not call.keys() <= _CALL_KEYS or call_id in ids:
            return None
        ids[call_id] = len(values)
        values.append(call_id)
        key.append((function["name"], call.get("type")))
    for message in new:
        content = message["content"]
        if type(content) is not str or not message.keys() <= _MESSAGE_KEYS:
            return None
        call_id = message.get("tool_call_id")
        if call_id is not None and call_id not in ids:
            return None
        key.append((message["role"], None if call_id is None else ids[call_id], message.get("name")))
        values.append(content)
    return Frame(tuple(key), values) if len(values) < _MAX_SLOTS else None


def _rebuilt(history: Sequence[Message], new: Sequence[Message], values: Values) -> tuple[list[Message], list[Message]]:
    """The step with other values, in the order of `frame_of`."""
    rest = iter(values)
    base: list[Message] = [{**message, "content": next(rest)} for message in history[:-1]]
    ids = {call["id"]: next(rest) for call in calls_of(history[-1])}
    calls = [{**call, "id": ids[call["id"]]} for call in calls_of(history[-1])]
    last: dict[str, Any] = {"role": "assistant", "content": ""}
    if calls:
        last["tool_calls"] = calls
    following: list[Message] = []
    for message in new:
        changed = {**message, "content": next(rest)}
        if message.get("tool_call_id") is not None:
            changed["tool_call_id"] = ids[message["tool_call_id"]]
        following.append(changed)
    return [*base, last], following


# ---- pieces and conditions ------------------------------------------------------------------------------------------


class _Pieces:
    """A text with slots in it."""

    __slots__ = ("_constants", "_single", "slots")

    def __init__(self, text: str) -> None:
        parts = _MARKER.split(text)
        self._constants = parts
        self.slots = tuple((at, int(parts[at])) for at in range(1, len(parts), 2))
        self._single = self.slots[0][1] if len(self.slots) == 1 and not parts[0] and not parts[2] else None

    def fill(self, values: Values) -> str:
        if self._single is not None:
            return values[self._single]
        parts = self._constants.copy()
        for at, slot in self.slots:
            parts[at] = values[slot]
        return "".join(parts)


@dataclass(frozen=True, slots=True)
class _Condition:
    """A question that a template asked about a text, and the answer.

    Attributes:
        text: The text, with slots.
        method: The method of `str` that answers.
        expected: The answer; None if it was the text, unchanged.
        other: The text it was compared with, with slots; None if the arguments have none.
    """

    text: str
    method: str
    arguments: tuple[Any, ...]
    expected: Any
    other: str | None = None

    def compiled(self) -> Callable[[Values], bool]:
        pieces, method, expected = _Pieces(self.text), self.method, self.expected
        arguments, wrapped = self.arguments, [expected]

        def unchanged(values: Values) -> bool:
            text = pieces.fill(values)
            answer = getattr(text, method)(*arguments)
            return bool(answer == text or answer == [text])

        def same(values: Values) -> bool:
            return bool([getattr(pieces.fill(values), method)(*arguments)] == wrapped)

        if self.other is not None:
            others = _Pieces(self.other)
            return lambda values: (pieces.fill(values) == others.fill(values)) == expected
        return unchanged if expected is None else same


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledDelta:
    """The delta of all steps with one key; `printed` are the slots it prints."""

    boundary: Boundary
    printed: tuple[int, ...]
    _pieces: _Pieces
    _conditions: tuple[Callable[[Values], bool], ...]

    def text(self, values: Values) -> str | None:
        """The text after the end of the turn; None if the step has to be rendered."""
        for holds in self._conditions:
            if not holds(values):
                return None
        return self._pieces.fill(values)


# ---- tracing --------------------------------------------------------------------------------------------------------


class ContentMattersError(Exception):
    """The template does something with a content that no condition captures."""


@dataclass(slots=True)
class _Trace:
    conditions: dict[_Condition, None] = field(default_factory=dict)


_trace: ContextVar[_Trace] = ContextVar("trace")


class _Traced(str):
    """A text whose value stands for others."""

    __slots__ = ()

    def _ask(self, method: str, *arguments: Any, unchanged: bool = False) -> Any:
        if any(map(_holds_traced, arguments)):
            raise ContentMattersError
        text = str.__str__(self)
        answer = getattr(text, method)(*arguments)
        if unchanged and answer not in (text, [text]):
            raise ContentMattersError
        condition = _Condition(text, method, arguments, None if unchanged else answer)
        _trace.get().conditions[condition] = None
        if not unchanged:
            return answer
        return [self] if isinstance(answer, list) else self

    def __str__(self) -> str:
        return self

    def __bool__(self) -> bool:
        return bool(self._ask("__ne__", ""))

    def __eq__(self, other: object) -> Any:
        return self._equals(other) if isinstance(other, str) else False

    def __ne__(self, other: object) -> Any:
        return not self._equals(other) if isinstance(other, str) else True

    def _equals(self, other: str) -> bool:
        if type(other) is not _Traced:
            return bool(self._ask("__eq__", other))
        text, same = str.__str__(self), str.__str__(other)
        _trace.get().conditions[_Condition(text, "__eq__", (), text == same, same)] = None
        return text == same

    def __len__(self) -> int:
        return int(self._ask("__len__"))

    def __contains__(self, other: object) -> bool:
        return bool(self._ask("__contains__", other))

    def __add__(self, other: str) -> str:
        return _retraced(str.__str__(self) + str.__str__(other))

    def __radd__(self, other: str) -> str:
        return _retraced(str.__str__(other) + str.__str__(self))

    def __getitem__(self, key: Any) -> NoReturn:
        raise TypeError if isinstance(key, str) else ContentMattersError


def _answered(name: str, *, unchanged: bool) -> Any:
    def method(self: _Traced, *arguments: Any) -> Any:
        return self._ask(name, *arguments, unchanged=unchanged)

    return method


def _refused(*_: Any, **__: Any) -> NoReturn:
    raise ContentMattersError


for _name in ("startswith", "endswith"):
    setattr(_Traced, _name, _answered(_name, unchanged=False))
for _name in ("strip", "lstrip", "rstrip", "replace", "split", "rsplit"):
    setattr(_Traced, _name, _answered(_name, unchanged=True))
_INERT: Final = frozenset(vars(_Traced)) | frozenset(dir(object)) - {"__hash__", "__repr__", "__format__"} - {
    "__lt__", "__le__", "__gt__", "__ge__"
}  # fmt: skip
for _name in (*dir(str), "__rmod__", "__hash__", "__repr__", "__format__", "__lt__", "__le__", "__gt__", "__ge__"):
    if _name not in _INERT:
        setattr(_Traced, _name, _refused)


def _retraced(text: str) -> str:
    return _Traced(text) if _MARKER.search(text) else text


def _holds_traced(value: Any) -> bool:
    if isinstance(value, str):
        return type(value) is _Traced
    if isinstance(value, Mapping):
        return any(map(_holds_traced, value.values()))
    return isinstance(value, list | tuple) and any(map(_holds_traced, value))


_SAFE_FILTERS: Final = frozenset(
    {"trim", "string", "default", "d", "length", "count", "replace", "join", "first", "last", "list", "reverse"}
    | {"items", "map", "select", "reject", "selectattr", "rejectattr"}
)
"""Filters that do nothing with their value but take elements, print, or ask questions that a traced text answers."""
_PRINTED_ARGUMENTS: Final = frozenset({"join", "default", "d"})
"""The ones that only print their arguments."""

_TYPE_TESTS: Final = {"string": True, "defined": True, "sequence": True, "iterable": True} | dict.fromkeys(
    ["none", "mapping", "number", "integer", "float", "boolean", "undefined", "callable", "true", "false"], False
)
"""The answers to tests of its type, the same for any text."""


def _traced_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    value_at = 1 if hasattr(function, "jinja_pass_arg") else 0  # behind the context or environment

    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        arguments = (*args[value_at + 1 :], *kwargs.values())
        looks_at = () if name in _PRINTED_ARGUMENTS else arguments
        if name not in _SAFE_FILTERS:
            looks_at = (*args, *arguments)
        if any(map(_holds_traced, looks_at)):
            raise ContentMattersError
        answer = function(*args, **kwargs)
        return _retraced(answer) if type(answer) is str else answer

    return inner


def _traced_test(name: str, function: Any) -> Callable[..., Any]:
    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        if any(type(arg) is _Traced for arg in args):
            if name in _TYPE_TESTS:
                return _TYPE_TESTS[name]
            if name not in ("eq", "==", "equalto", "ne", "!=", "in") or (name == "in" and type(args[-1]) is str):
                raise ContentMattersError
        return function(*args, **kwargs)

    return inner


class _ByCalls(jinja2.visitor.NodeTransformer):
    """Rewrites operators (`~`, `in`) as filters and tests, which are traced."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return nodes.Filter(nodes.List(node.nodes), "join", [], [], None, None, lineno=node.lineno)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        if not any(operand.op in ("in", "notin") for operand in node.ops):
            return node
        if len(node.ops) > 1:
            raise ContentMattersError
        test = nodes.Test(node.expr, "in", [node.ops[0].expr], [], None, None, lineno=node.lineno)
        return test if node.ops[0].op == "in" else nodes.Not(test, lineno=node.lineno)


class _TracingEnvironment(TemplateEnvironment):
    intercepted_binops = frozenset({"%", "*", "//", "/", "-", "**"})

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        return _retraced("".join(parts))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = _ByCalls().visit(super()._parse(source, name, filename))
        assert isinstance(tree, nodes.Template)
        tree.set_environment(self)
        return tree

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if _holds_traced(left) or _holds_traced(right):
            raise ContentMattersError
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        # jinja passes the variables of the surrounding loop and block along.
        given = [value for name, value in kwargs.items() if name not in ("_loop_vars", "_block_vars")]
        if any(map(_holds_traced, (*args, *given))):
            owner = getattr(__obj, "__self__", None)
            joins = isinstance(owner, str) and __obj.__name__ == "join"
            passes = isinstance(__obj, Macro) or __obj is Namespace or isinstance(owner, Mapping)
            if not (joins or passes):
                raise ContentMattersError
        answer = super().call(__context, __obj, *args, **kwargs)
        return _retraced(answer) if type(answer) is str else answer


@lru_cache(maxsize=256)
def _tracing_template(text: str) -> jinja2.Template:
    environment = configure(_TracingEnvironment)
    environment.filters = {name: _traced_filter(name, filter) for name, filter in environment.filters.items()}
    environment.tests = {name: _traced_test(name, test) for name, test in environment.tests.items()}
    return environment.from_string(text)


class _TracingTemplate:
    def __init__(self, template: ChatTemplate) -> None:
        self._template = template

    def render(self, messages: Sequence[Message], **options: Any) -> str:
        text, variables = self._template.inputs(messages, **options)
        variables["strftime_now"] = lambda *_: _Traced(_CLOCK)
        return str.__str__(_tracing_template(text).render(variables))


def compile_delta(step: StepRenderer, history: Sequence[Message], new: Sequence[Message]) -> CompiledDelta | None:
    """Compile the step; None if its text depends on the contents in a way that conditions do not capture.

    Args:
        step: Renders it; must have rendered it once.
        history, new: As for `frame_of`.
    """
    frame = frame_of(history, new)
    if frame is None or step.template.text(tools_present=step.tools is not None) is None:
        return None
    count = len(frame.values)
    token = _trace.set(trace := _Trace())
    try:
        tracing: Any = replace(step, template=_TracingTemplate(step.template))  # type: ignore[arg-type]
        traced = _rebuilt(history, new, [_Traced(_marker(slot)) for slot in range(count)])
        suffix = tracing.suffix(*traced, Path.COMPACT)
    except Exception:  # templates raise all kinds, and tracing adds its own
        return None
    finally:
        _trace.reset(token)
    pieces = _Pieces(suffix.text)
    printed = tuple(dict.fromkeys(slot for _, slot in pieces.slots))
    asked = {
        int(slot)
        for condition in trace.conditions
        for slot in _MARKER.findall(condition.text + (condition.other or ""))
    }
    if not {*printed, *asked} <= set(range(count)) or not set(range(count - len(new), count)) <= set(printed):
        return None  # it shows the clock, or not every new content
    conditions = tuple(condition.compiled() for condition in trace.conditions)
    compiled = CompiledDelta(boundary=suffix.boundary, printed=printed, _pieces=pieces, _conditions=conditions)
    compared = [_agrees(compiled, step, history, new, content) for content in _TRIED]
    return compiled if any(compared) and False not in compared else None


_TRIED: Final = ("Plain.", ' "a"\t<b>&amp;\\n\n', "0", "")
"""Contents with which a compiled delta is compared with the rendering before it is used."""


def _agrees(
    compiled: CompiledDelta, step: StepRenderer, history: Sequence[Message], new: Sequence[Message], content: str
) -> bool | None:
    """True if both print the same for a content; None where the compiled delta leaves it to the rendering."""
    frame = frame_of(history, new)
    assert frame is not None
    values = [*frame.values[: -len(new)], *[content] * len(new)]
    text = compiled.text(values)
    if text is None:
        return None
    try:
        return text == step.suffix(*_rebuilt(history, new, values), Path.COMPACT).text
    except Exception:  # templates raise all kinds
        return False
