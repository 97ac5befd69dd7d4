"""Proof from the syntax tree that what a template prints after the messages begin does not depend on the tools.

Rendering the schemas of many tools is the main cost of a short rendering, and it ends up in the part that is cut away.
It may be left out only if nothing behind it can change, for any tools and any content. So the template is run on two
bits instead of values: may this depend on the tools, and may it show a message other than the first. Both branches of
every condition are taken (except those on variables that are never set), what is set or printed under a condition
depends on it, and loops run until nothing changes. The proof fails as soon as text that may depend on the tools is
printed with or after a message. It is conservative: where it fails, the tools are rendered.

The proof has a budget. A macro called again under the same conditions is not run again, so almost every template costs
a few hundred statements; one that needs more than `_BUDGET` (macros that call each other in many ways) is not proved.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Final

from jinja2 import nodes

from strands_sglang.template.environment import global_names, parse_template

_TOOLS: Final = 1
_MESSAGES: Final = 2
_WHOLE: Final = 4  # the variable `messages` as it was passed: its first element is the first message
_BITS: Final = _TOOLS | _MESSAGES
_BUDGET: Final = 10_000  # statements, under half a second; the public template that needs most takes 553


class _BudgetSpentError(Exception):
    """The template needs more statements than the proof may take."""


class _Namespace:
    """A namespace object: what any of its fields may hold."""

    __slots__ = ("bits",)

    def __init__(self, bits: int) -> None:
        self.bits = bits


_Value = int | _Namespace
_Scope = dict[str, _Value]


@lru_cache(maxsize=256)
def tools_end_before_messages(source: str, variables: frozenset[str]) -> bool:
    """Whether the proof succeeds for a template.

    Args:
        source: Jinja text.
        variables: Names of all variables that are passed besides `messages`, `tools` and `add_generation_prompt`.
    """
    try:
        tree = parse_template(source)
    except Exception:  # does not parse here: nothing is proved
        return False
    run = _Run(variables | {name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"})
    try:
        return run.proves(tree.body)
    except (_BudgetSpentError, RecursionError):
        return False


class _Run:
    """Runs a template on bits.

    Args:
        variables: Names that may have a value.
    """

    def __init__(self, variables: frozenset[str]) -> None:
        self.variables = variables | global_names() | {"messages", "tools", "add_generation_prompt", "loop", "caller"}
        self.top: _Scope = {"messages": _MESSAGES | _WHOLE, "tools": _TOOLS}
        self.macros: dict[str, nodes.Macro] = {}
        self.active: list[str] = []
        self.captures: list[int] = []
        self.loops: list[int] = []
        self.growth = 0  # how often a namespace or what has been printed changed
        self.messages_began = False
        self.failed = False
        self.budget = _BUDGET
        self.called: dict[Hashable, int] = {}

    def proves(self, body: list[nodes.Node]) -> bool:
        """Run the template."""
        self.block(body, self.top, 0)
        return self.messages_began and not self.failed

    # ---- statements -------------------------------------------------------------------------------------------------

    def block(self, body: Iterable[nodes.Node], env: _Scope, under: int) -> None:
        """Run statements; `under` is what their being run depends on."""
        for statement in body:
            self.statement(statement, env, under)

    def statement(self, node: nodes.Node, env: _Scope, under: int) -> None:
        """Run one statement."""
        self.budget -= 1
        if self.budget < 0:
            raise _BudgetSpentError
        match node:
            case nodes.Output():
                if _only_raises(node):
                    self.failed |= self.messages_began and bool((self.value(node, env, under) | under) & _TOOLS)
                else:
                    self.print(self.value(node, env, under) | under)
            case nodes.Assign():
                self.assign(node.target, self.value(node.node, env, under) | under, env, node.node)
            case nodes.AssignBlock():
                with self.capturing() as capture:
                    self.block(node.body, dict(env), under)
                self.assign(node.target, capture[0] | self.value(node.filter, env, under) | under, env)
            case nodes.If():
                self.branches(node, env, under)
            case nodes.For():
                self.loop(node, env, under)
            case nodes.Macro():
                self.macros[node.name] = node
                env[node.name] = under
            case nodes.CallBlock():
                with self.capturing() as capture:
                    self.block(node.body, dict(env), under)
                self.print(capture[0] | self.value(node.call, env, under) | under)
            case nodes.FilterBlock():
                with self.capturing() as capture:
                    self.block(node.body, dict(env), under)
                self.print(capture[0] | self.value(node.filter, env, under) | under)
            case nodes.With():
                inner = dict(env)
                for target, value in zip(node.targets, node.values, strict=True):
                    self.assign(target, self.value(value, env, under) | under, inner)
                self.block(node.body, inner, under)
            case nodes.ExprStmt():
                self.value(node.node, env, under)
            case nodes.Break() | nodes.Continue():
                self.failed |= bool(under & _TOOLS) and not self.loops[-1] & _TOOLS
            case _:
                self.failed = True

    def print(self, value: int) -> None:
        """Text is printed, or captured."""
        if self.captures:
            self.captures[-1] |= value
            return
        if value & _MESSAGES and not self.messages_began:
            self.messages_began = True
            self.growth += 1
        self.failed |= self.messages_began and bool(value & _TOOLS)

    @contextmanager
    def capturing(self) -> Iterator[list[int]]:
        """Collect what is printed inside; the list holds its bits afterwards."""
        result = [0]
        self.captures.append(0)
        try:
            yield result
        finally:
            result[0] = self.captures.pop()

    def assign(self, target: nodes.Node, value: int, env: _Scope, source: nodes.Node | None = None) -> None:
        """Set a name, a field of a namespace, or each of several."""
        match target:
            case nodes.Name():
                env[target.name] = value & _BITS
                if isinstance(source, nodes.Call) and _is_name(source.node, "namespace"):
                    env[target.name] = _Namespace(value & _BITS)
                elif isinstance(source, nodes.Name) and isinstance(same := env.get(source.name), _Namespace):
                    env[target.name] = same
            case nodes.NSRef():
                space = env.get(target.name)
                if not isinstance(space, _Namespace):
                    self.failed = True
                elif value & ~space.bits:
                    space.bits |= value
                    self.growth += 1
            case nodes.Tuple():
                for item in target.items:
                    self.assign(item, value, env)
            case _:
                self.failed = True

    def branches(self, node: nodes.If, env: _Scope, under: int) -> None:
        """Take all branches that can be taken and join what they set."""
        at_top, ends = env is self.top, []
        for branch in (node, *node.elif_, None):
            if branch is not None:
                under |= self.value(branch.test, env, under)
                if self.is_never(branch.test):
                    continue
            ends.append(inner := dict(env))
            if at_top:
                self.top = inner
            self.block(node.else_ if branch is None else branch.body, inner, under)
        if at_top:
            self.top = env
        for name in {name for end in ends for name in end}:
            values = [end[name] for end in ends if name in end]
            first = values[0]
            env[name] = first if all(value is first for value in values) else _join(values)

    def is_never(self, test: nodes.Node) -> bool:
        """Whether a condition is false because it asks for a variable that is never set."""
        match test:
            case nodes.Name():
                return test.name not in self.variables and test.name not in self.macros
            case nodes.Test(name="defined", node=nodes.Name() as name):
                return self.is_never(name)
            case nodes.And():
                return self.is_never(test.left) or self.is_never(test.right)
            case nodes.Or():
                return self.is_never(test.left) and self.is_never(test.right)
        return False

    def loop(self, node: nodes.For, env: _Scope, under: int) -> None:
        """Run a loop until nothing changes any more."""
        before = -1
        while before != self.growth:
            before = self.growth
            over = self.value(node.iter, env, under) | under
            inner = dict(env)
            self.assign(node.target, over, inner)
            inner["loop"] = over
            inside = over | (0 if node.test is None else self.value(node.test, inner, under))
            self.loops.append(inside)
            self.block(node.body, inner, inside)
            self.loops.pop()
        self.block(node.else_, dict(env), over)

    # ---- expressions ------------------------------------------------------------------------------------------------

    def value(self, node: nodes.Node | None, env: _Scope, under: int) -> int:
        """Bits of an expression."""
        match node:
            case None:
                return 0
            case nodes.Name():
                return _bits(env.get(node.name, 0)) & _BITS
            case nodes.Getitem(arg=nodes.Const(value=0), node=nodes.Name() as name) if (
                _bits(env.get(name.name, 0)) & _WHOLE
            ):
                return 0
            case nodes.Filter(name="length" | "count"):
                return self.value(node.node, env, under) & _TOOLS
            case nodes.Call(node=nodes.Name() as name) if name.name in self.macros:
                return self.value(name, env, under) | self.call(node, name.name, env, under)
        total = 0
        for child in node.iter_child_nodes():
            total |= self.value(child, env, under)
        return total

    def call(self, node: nodes.Call, name: str, env: _Scope, under: int) -> int:
        """Run a macro; returns the bits of what it prints."""
        macro = self.macros[name]
        values = [self.argument(item, env, under) for item in node.args]
        named = {kwarg.key: self.argument(kwarg.value, env, under) for kwarg in node.kwargs}
        rest = self.value(node.dyn_args, env, under) | self.value(node.dyn_kwargs, env, under)
        given = rest
        for value in (*values, *named.values()):
            given |= _bits(value) & _BITS
        if name in self.active:
            return given  # what the outer run prints covers the rest
        inner: _Scope = dict(self.top)
        defaults = [self.value(default, inner, under) for default in macro.defaults]
        bound = [rest] * (len(macro.args) - len(defaults)) + [rest | default for default in defaults]
        for i, parameter in enumerate(macro.args):
            inner[parameter.name] = values[i] if i < len(values) else named.get(parameter.name, bound[i])
        inner |= {"varargs": given, "kwargs": given, "caller": given}
        # Everything the outcome depends on; what a namespace holds only changes with the growth.
        state = (name, frozenset(inner.items()), under, frozenset(self.active), self.growth, self.messages_began)
        if state not in self.called:
            self.active.append(name)
            with self.capturing() as capture:
                self.block(macro.body, inner, under)
            self.active.pop()
            self.called[state] = capture[0]
        return self.called[state]

    def argument(self, node: nodes.Node, env: _Scope, under: int) -> _Value:
        """Value of an argument: a namespace is passed on as itself."""
        if isinstance(node, nodes.Name) and isinstance(space := env.get(node.name), _Namespace):
            return space
        return self.value(node, env, under)


def _bits(value: _Value) -> int:
    return value.bits if isinstance(value, _Namespace) else value


def _join(values: list[_Value]) -> int:
    total = 0
    for value in values:
        total |= _bits(value)
    return total


def _only_raises(node: nodes.Output) -> bool:
    """Whether a print statement only calls `raise_exception`."""
    shown = [item for item in node.nodes if not (isinstance(item, nodes.TemplateData) and not item.data.strip())]
    return bool(shown) and all(
        isinstance(item, nodes.Call) and _is_name(item.node, "raise_exception") for item in shown
    )


def _is_name(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.name == name
