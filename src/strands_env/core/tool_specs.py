"""An agent's tools: registering them leaves no garbage, and specifications are built only when one has changed.

The SDK normalises and checks all specifications before every model call, copies them deeply for the context of model
middleware, and does the first again in every tool call. It registers tools with a closure that refers to itself: the
registry, its tools and all they hold would stay until a garbage collection.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Final

from strands.tools.registry import ToolRegistry
from strands.types.tools import AgentTool

from .history import is_for_middleware_that_is_absent
from .jsonable import copied

_process_tools: Final = ToolRegistry.process_tools


class OnlyTools(list[AgentTool]):
    """Tools that only need registering: there are no modules or paths among them to load."""


def tools_for_an_agent(tools: Iterable[Any]) -> list[Any]:
    """The tools in the form to give to an agent: as `OnlyTools` where they are, otherwise for the SDK to load."""
    given = list(tools)
    if not all(isinstance(tool, AgentTool) for tool in given):
        return given
    ToolRegistry.process_tools = _registered  # type: ignore[method-assign, assignment]
    return OnlyTools(given)


def _registered(registry: ToolRegistry, tools: list[Any]) -> list[str]:
    if type(tools) is not OnlyTools:
        return _process_tools(registry, tools)
    for tool in tools:
        try:
            registry.register_tool(tool)
        except Exception as error:
            raise ValueError(f"Failed to load tool {tool}: {error}") from error
    return [tool.tool_name for tool in tools]


class ToolSpecs(list[Any]):
    """Specifications made for one caller, who may change them; a copy for middleware that is absent is left out."""

    def __deepcopy__(self, memo: dict[int, Any]) -> ToolSpecs:
        return self if is_for_middleware_that_is_absent() else ToolSpecs(copied(list(self)))


def remember_tool_specs(registry: ToolRegistry) -> None:
    """Let a registry rebuild its list of specifications only when a tool or a specification has changed."""
    make, held = ToolRegistry.get_all_tool_specs, weakref.ref(registry)  # weakly, for it is to hold the function below
    known: list[Any] = []
    made: list[Any] = []

    def get_all_tool_specs() -> list[Any]:
        nonlocal known, made
        registry = held()
        assert registry is not None  # it holds this function
        tools = [*registry.registry.items(), *registry.dynamic_tools.items()]
        given = [(name, tool.tool_spec) for name, tool in tools]
        if given != known:
            made, known = make(registry), [(name, copied(spec)) for name, spec in given]
        return ToolSpecs(copied(made))

    registry.get_all_tool_specs = get_all_tool_specs  # type: ignore[method-assign]
