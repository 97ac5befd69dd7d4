"""The identity of a reward, as JSON values, so that a resumed run is scored as it was begun."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import textwrap
from typing import Any

from .jsonable import canonical, digest, plain, redact

_LONGEST = 1000
_OF_OTHERS = {"strands_env", "strands_sglang", "strands", *sys.stdlib_module_names}


def identify_reward(reward_fn: Any) -> dict[str, Any]:
    """Constructor arguments of a reward function as far as they can be read, and a digest of its own code.

    The code is the user's: of the function or class, its bases, and what they name of the same module, without
    comments and docstrings. `code` is None where there is no source, and for rewards of this package, whose version is
    recorded beside them.
    """
    inner = reward_fn.func if isinstance(reward_fn, functools.partial) else reward_fn
    inner = getattr(inner, "__func__", inner)  # of a bound method
    options: dict[str, Any] = {}
    if inspect.isfunction(inner):
        parts: list[Any] = [inner]
        options = dict(inspect.getclosurevars(inner).nonlocals)
    else:
        parts = [kind for kind in type(inner).__mro__ if (kind.__module__ or "").partition(".")[0] not in _OF_OTHERS]
        try:
            names = list(inspect.signature(type(inner)).parameters)
        except (TypeError, ValueError):  # a built-in without a signature
            names = []
        for name in names:
            for attribute in (name, f"_{name}"):
                if hasattr(inner, attribute):
                    options[name] = getattr(inner, attribute)
    seen: dict[str, Any] = {}
    for part in parts:
        if (part.__module__ or "").partition(".")[0] not in _OF_OTHERS:
            _read(part, seen)
    described = {name: redact(value) for name, value in options.items()}
    for name, value in described.items():
        if len(content := canonical(value)) > _LONGEST:  # a table of answers is compared, not copied beside the results
            described[name] = digest(content)
    return {"options": redact(described), "code": digest(canonical(seen)) if seen else None}


def _read(part: Any, seen: dict[str, Any]) -> None:
    """Add the code of a function or class, and of what it names of its own module."""
    key = part.__qualname__
    if key in seen:
        return
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(part)))
    except (OSError, TypeError, SyntaxError):  # typed at a prompt; a lambda in the middle of a call
        code = getattr(part, "__code__", None)
        # A constant that is code has its address in its text, which is another in every process.
        constants = [] if code is None else [repr(each) for each in code.co_consts if not inspect.iscode(each)]
        seen[key] = None if code is None else [code.co_code.hex(), constants]
        return
    for node in ast.walk(tree):
        match getattr(node, "body", None):
            case [ast.Expr(value=ast.Constant()), *rest]:  # a docstring
                node.body = rest  # type: ignore[attr-defined]
    seen[key] = ast.dump(tree)
    module = vars(sys.modules.get(part.__module__, object))
    for name in sorted({node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}):
        value = module.get(name)
        if (inspect.isfunction(value) or inspect.isclass(value)) and value.__module__ == part.__module__:
            _read(value, seen)
        elif value is not None and not callable(value) and not inspect.ismodule(value):
            try:  # a threshold, a list of words; of anything else its name would say nothing
                seen[f"{part.__module__}.{name}"] = plain(value)
            except TypeError:
                continue
