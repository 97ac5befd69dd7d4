"""The identity of a reward as JSON values, so that a resumed run is scored as it was begun.

It consists of the class or function, the source of its modules, the arguments of its constructor, and its own
`identity()`, if it has one. State that cannot be compared is named under `unknown`.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial, wraps
from types import ModuleType
from typing import Any

import orjson
from pydantic import BaseModel
from strands.models import Model

from .jsonable import canonical, digest, name_of, plain, shown

_ATOMS = (str, int, float, bool, type(None))
_LONGEST = 1000
_IS_MAIN = "__name__ == '__main__'"
_RECORD = "_strands_constructed"
_VERSIONED = {"strands_env", "strands_sglang", "strands", "pydantic", "numpy", "torch", *sys.stdlib_module_names}
"""Packages whose source is not compared: their versions are saved with the run."""


class _Constructed:
    """A call of a constructor: its arguments, and the attributes that it left."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self.arguments = arguments
        self.attributes: dict[str, bytes] = {}
        self.code: dict[str, str] = {}
        self.unknown: list[str] = []

    def __getstate__(self) -> dict[str, Any]:
        # An argument that the reward did not keep may not be picklable; its description is.
        reader = _Reader()
        arguments = reader.read_all(self.arguments)
        code, unknown = {**self.code, **reader.code}, [*self.unknown, *reader.unknown]
        return {"arguments": arguments, "attributes": self.attributes, "code": code, "unknown": unknown}


def record_arguments(init: Callable[..., None]) -> Callable[..., None]:
    """Make a constructor keep its arguments, unless a subclass's constructor called it."""
    signature = inspect.signature(init.__get__(object()))  # without `self`

    @wraps(init)
    def recording_init(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return init(self, *args, **kwargs)  # raises it in its own words
        if _RECORD in vars(self):
            return init(self, *args, **kwargs)
        bound.apply_defaults()
        vars(self)[_RECORD] = record = _Constructed(bound.arguments)
        init(self, *args, **kwargs)
        record.attributes = _attributes(self)

    return recording_init


def identify_reward(reward: Any) -> dict[str, Any]:
    """The identity of a reward function or of anything that serves as one.

    Returns:
        `class` or `function` with its arguments, `code` with a digest of each module, without comments and docstrings,
        and `unknown`: parts that a resumed run cannot compare, in words.
    """
    reader = _Reader()
    found: dict[str, Any] = shown(reader.describe(reward))
    return {**found, "code": reader.code, "unknown": reader.unknown}


class _Reader:
    def __init__(self) -> None:
        self.code: dict[str, str] = {}
        self.unknown: list[str] = []
        self._open: list[Any] = []

    def read_all(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments as JSON; a long one, such as a table of answers, as its digest."""
        found = {name: self.read(value) for name, value in values.items()}
        contents = {name: canonical(value) for name, value in found.items()}
        arguments: dict[str, Any] = shown({name: found[name] for name in found if len(contents[name]) <= _LONGEST})
        return {name: arguments[name] if name in arguments else digest(contents[name]) for name in found}

    def read(self, value: Any) -> Any:
        if type(value) in _ATOMS:
            return plain(value)
        if isinstance(value, Mapping):
            if all(type(name) is str and name.isascii() for name in value):
                return {name: self.read(item) for name, item in value.items()}
            return {
                "object": sorted(([self.read(name), self.read(item)] for name, item in value.items()), key=canonical)
            }
        if isinstance(value, list | tuple):
            return [self.read(item) for item in value]
        if isinstance(value, re.Pattern):
            return {"pattern": self.read(value.pattern), "flags": value.flags}
        if not callable(value) and not is_dataclass(value) and not isinstance(value, BaseModel):
            try:
                return plain(value)
            except TypeError:
                pass  # its content is not JSON
        return self.describe(value)

    def describe(self, value: Any) -> Any:
        """A function, a class or an object by its name, its code, and its constructor's arguments."""
        if any(value is each for each in self._open):  # it holds itself
            return name_of(value)
        self._open.append(value)
        try:
            owner = getattr(value, "__self__", None)
            if isinstance(value, ModuleType):
                return {"module": value.__name__}
            if isinstance(value, partial):
                places = {str(place): each for place, each in enumerate(value.args)}
                return {"partial": self.describe(value.func), "arguments": self.read_all({**places, **value.keywords})}
            if inspect.isroutine(value) and owner is not None and not isinstance(owner, ModuleType):
                return {"method": name_of(value), **self.read_all({"of": owner})}
            if type(value).__module__ == "functools" and hasattr(value, "__wrapped__"):  # a cache
                return self.describe(value.__wrapped__)
            if inspect.isfunction(value):
                return self._describe_function(value)
            if inspect.isclass(value) or inspect.isbuiltin(value):
                self._read_modules(value)
                return {"class" if inspect.isclass(value) else "function": name_of(value)}
            return self._describe_object(value)
        finally:
            self._open.pop()

    def _describe_function(self, function: Any) -> Any:
        name, config = name_of(function), getattr(function, "config", None)
        if name.startswith("strands_env.") and isinstance(config, Mapping):  # a model factory
            return {"function": name, "config": self.read_all(config)}
        self._read_modules(function)
        try:
            source = inspect.getsource(function).strip()
        except (OSError, TypeError):
            source = ""
        if not source or (function.__name__ == "<lambda>" and source.count("lambda") > 1):
            self.unknown.append(f"the source of {name}")
        parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
        held = {each.name: each.default for each in parameters if each.default is not each.empty}
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                held[variable] = cell.cell_contents
            except ValueError:  # it has no value yet
                continue
        if changed := sorted(vars(function).keys() - {"__wrapped__"}):
            self.unknown.append(f"the attributes {', '.join(changed)} of {name}")
        return {"function": name, "source": _digest_source(source), "arguments": self.read_all(held)}

    def _describe_object(self, value: Any) -> Any:
        kind, name = type(value), name_of(type(value))
        self._read_modules(kind)
        known, held = len(self.unknown), {**getattr(value, "__dict__", {})}
        record, arguments = held.pop(_RECORD, None), dict[str, Any]()
        if record is not None:
            arguments, now = record.arguments, _attributes(value)
            self.code |= record.code
            self.unknown += record.unknown
            names = record.attributes.keys() | now.keys()
            changed = sorted(each for each in names if record.attributes.get(each) != now.get(each))
        elif is_dataclass(value) or isinstance(value, BaseModel):
            names = [each.name for each in fields(value) if each.init] if is_dataclass(value) else kind.model_fields
            arguments = {each: getattr(value, each) for each in names}
            changed = [] if hasattr(value, "__post_init__") else sorted(held.keys() - arguments.keys())
        elif isinstance(value, Model):
            arguments, changed = {"config": value.get_config()}, []
        else:
            changed = []
            if held or kind.__init__ is not object.__init__ or not hasattr(value, "__dict__"):
                self.unknown.append(f"the state of {name}")
        if changed:
            reason = "" if record is None else ", set after its constructor"
            self.unknown.append(f"the attributes {', '.join(changed)} of {name}{reason}")
        found = {"class": name, "arguments": self.read_all(arguments)}
        own = kind.identity(value) if callable(getattr(kind, "identity", None)) else None
        if own is not None:
            found["identity"] = plain(own, f"identity() of {name}")
            del self.unknown[known:]  # the reward states its own identity
        return found

    def _read_modules(self, value: Any) -> None:
        for part in value.__mro__ if inspect.isclass(value) else [value]:
            module = part.__module__ or "builtins"
            if module.partition(".")[0] in _VERSIONED or module in self.code:
                continue
            try:
                self.code[module] = _digest_source(inspect.getsource(sys.modules[module]))
            except (KeyError, OSError, TypeError):  # typed at a prompt; an extension
                if (unknown := f"the source of module {module}") not in self.unknown:
                    self.unknown.append(unknown)


def _digest_source(source: str) -> str:
    """A digest of code without comments and docstrings; of the text, if it is a part of a statement."""
    try:
        tree = ast.parse(textwrap.dedent(source))
    except SyntaxError:
        return digest(source.encode())
    # The program in the reward's module, which may change its other options.
    tree.body = [each for each in tree.body if not (isinstance(each, ast.If) and ast.unparse(each.test) == _IS_MAIN)]
    for node in ast.walk(tree):
        match getattr(node, "body", None):
            case [ast.Expr(value=ast.Constant()), *rest]:
                node.body = rest  # type: ignore[attr-defined]
    return digest(ast.unparse(tree).encode())


def _attributes(value: Any) -> dict[str, bytes]:
    """Each attribute in a form that changes with its content; an object that is not JSON counts by its class."""

    def describe_part(part: Any) -> Any:
        return sorted(map(repr, part)) if isinstance(part, set | frozenset) else name_of(type(part))

    def read(attribute: Any) -> bytes:
        if isinstance(attribute, int | float | complex):  # JSON has neither infinity nor long integers
            return repr(attribute).encode()
        try:
            return orjson.dumps(attribute, describe_part, orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS)
        except TypeError:
            return name_of(type(attribute)).encode()

    return {name: read(each) for name, each in vars(value).items() if name != _RECORD}
