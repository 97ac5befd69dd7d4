"""Checks of a subclass of `Environment`: signatures, tools, and methods whose names are almost those of known ones."""

from __future__ import annotations

import difflib
import functools
import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from weakref import WeakSet

from strands import Agent
from strands.tools import ToolProvider
from strands.types.tools import AgentTool

T = TypeVar("T")

_SEEN: WeakSet[type] = WeakSet()
_OF_A_TASK = ("reset", "get_tools", "get_hooks", "get_system_prompt", "get_history")


def action_optional(method: Callable[..., T], action_of: Callable[[Any], object] | None = None) -> Callable[..., T]:
    """A method of an environment, as one that may be called with the action or without.

    Type checkers let an override declare it either way.

    Args:
        action_of: The running step's action, for a method that declares it; None for one that does not.
    """

    @functools.wraps(method)
    def call(env: Any, action: object = None) -> Any:
        return method(env) if action_of is None else method(env, action_of(env) if action is None else action)

    @functools.wraps(method)
    async def call_async(env: Any, action: object = None) -> Any:
        return await call(env, action)

    made: Any = call_async if inspect.iscoroutinefunction(method) else call
    made.declares_action = action_of is not None
    return made  # type: ignore[no-any-return]


def declares_action(method: Callable[..., Any]) -> bool:
    """True for a method of an environment that a subclass has written with the parameter `action`."""
    return getattr(method, "declares_action", None) is True


def make_action_optional(kind: type, action_of: Callable[[Any], object]) -> None:
    """Let the methods of a new subclass that declare `action` be called without it.

    Raises:
        TypeError: One declares other parameters.
    """
    for name in _OF_A_TASK:
        written = inspect.getattr_static(kind, name)
        if hasattr(written, "declares_action"):  # of the base class, or of another subclass
            continue
        method, signature = getattr(kind, name), inspect.signature(getattr(kind, name))
        parameters = list(signature.parameters.values())
        if inspect.isfunction(written):
            del parameters[:1]
        else:  # a static or class method
            method = functools.partial(lambda bound, env, action: bound(action), method)
        if not parameters:
            continue
        only = parameters[0]
        if len(parameters) > 1 or only.name.lstrip("_") != "action" or only.kind is not only.POSITIONAL_OR_KEYWORD:
            raise TypeError(
                f"{kind.__name__}.{name}{signature} cannot be called: declare {name}(self), or {name}(self, action); "
                "self.action is the task, and options belong in __init__"
            )
        setattr(kind, name, action_optional(method, action_of))


def flatten_tools(tools: Iterable[Any]) -> Iterator[Any]:
    """The tools of a list that may hold further iterables, as the SDK reads it."""
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
