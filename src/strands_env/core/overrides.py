"""Checks of a subclass of `Environment`: signatures, tools, and methods whose names are almost those of known ones."""

from __future__ import annotations

import difflib
import inspect
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakSet

from strands import Agent
from strands.tools import ToolProvider
from strands.types.tools import AgentTool

_SEEN: WeakSet[type] = WeakSet()
_OF_A_TASK = ("reset", "get_tools", "get_hooks", "get_system_prompt", "get_history")


def methods_with_action(kind: type, base: type) -> frozenset[str]:
    """Names of the methods of `kind` that declare `action`, among those that may.

    Raises:
        TypeError: One declares other parameters.
    """
    named = {"get_history"} if kind.get_history is base.get_history else set()  # type: ignore[attr-defined]
    for name in _OF_A_TASK:
        method = getattr(kind, name)
        if method is getattr(base, name):
            continue
        signature = inspect.signature(method)
        is_bound = not inspect.isfunction(inspect.getattr_static(kind, name))
        parameters = list(signature.parameters.values())[0 if is_bound else 1 :]
        if not parameters:
            continue
        only = parameters[0]
        if len(parameters) > 1 or only.name.lstrip("_") != "action" or only.kind is not only.POSITIONAL_OR_KEYWORD:
            raise TypeError(
                f"{kind.__name__}.{name}{signature} cannot be called: declare {name}(self), or {name}(self, action) to "
                "read the task; options belong in __init__"
            )
        named.add(name)
    return frozenset(named)


def flatten_tools(tools: Iterable[Any]) -> Iterator[Any]:
    """The tools of a list that may hold further lists, whatever can be iterated over, as the SDK reads it."""
    for tool in tools:
        if isinstance(tool, AgentTool | str | bytes | bytearray | dict) or not isinstance(tool, Iterable):
            yield tool
        else:
            yield from flatten_tools(tool)


def tool_mistakes(tools: Sequence[Any]) -> Iterator[str]:
    """A sentence for each of the tools, in a flat list, that the SDK would silently drop."""
    for name, count in Counter(tool.tool_name for tool in tools if isinstance(tool, AgentTool)).items():
        if count > 1:
            yield f"{count} tools are named {name!r}, of which the agent keeps only the last: rename the others"
    for tool in tools:
        if isinstance(tool, AgentTool | ToolProvider | Agent | str | dict) or inspect.ismodule(tool):
            continue
        name = getattr(tool, "__name__", None) or repr(tool)
        advice = "give an instance of it" if inspect.isclass(tool) else "decorate a function with @tool"
        yield f"{name!r} is not a tool, and the SDK drops it: {advice}"


def warn_of_misspelt_overrides(
    kind: type, base: type, names: Collection[str], known: Mapping[str, str] | None = None
) -> None:
    """Warn once of methods of `kind` whose names look like misspelt overrides of `names`, the methods of `base`.

    `known` has the meanings of other names, in words.
    """
    if kind in _SEEN:
        return
    _SEEN.add(kind)
    own: dict[str, object] = {}  # of classes between the two, those of this package left out
    for parent in kind.__mro__[: kind.__mro__.index(base)]:
        if not parent.__module__.startswith("strands_env."):
            own = vars(parent) | own
    for method, value in own.items():
        if not callable(value) or hasattr(base, method):
            continue
        close = [] if method.startswith("_") else difflib.get_close_matches(method, sorted(names), n=1, cutoff=0.8)
        meant = f"{close[0]}()" if close and close[0] not in own else (known or {}).get(method)
        if meant is not None:
            warnings.warn(f"{kind.__name__}.{method}() is called by nothing: did you mean {meant}?", stacklevel=3)
