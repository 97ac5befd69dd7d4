"""Specifications of an agent's tools: normalised and checked when one has changed, not in every turn.

The SDK normalises and checks all of them before every model call, copies them deeply for the context of model
middleware, and does the first again in every tool call.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from strands.tools.registry import ToolRegistry

from strands_sglang.messages import format_tool_specs

from .content import copied
from .history import is_for_middleware_that_is_absent


class ToolSpecs(list[Any]):
    """Specifications made for one caller, who may change them; a copy for middleware that is absent is left out."""

    def __deepcopy__(self, memo: dict[int, Any]) -> ToolSpecs:
        return self if is_for_middleware_that_is_absent() else ToolSpecs(copied(list(self)))


@lru_cache(maxsize=1024)
def shared_text(text: str | None) -> str | None:
    """The text itself, one object for equal ones: every sample of a run holds the text of its tools."""
    return text


def tools_as_text(specs: Iterable[Mapping[str, Any]]) -> str | None:
    """Tool specs as JSON text of the `tools` of a chat template; None without tools."""
    tools = format_tool_specs(specs)
    return shared_text(json.dumps(tools, default=str)) if tools else None


def remember_tool_specs(registry: ToolRegistry) -> None:
    """Let a registry rebuild its list of specifications only when a tool or a specification has changed."""
    make = registry.get_all_tool_specs
    known: list[Any] = []
    made: list[Any] = []

    def get_all_tool_specs() -> list[Any]:
        nonlocal known, made
        tools = [*registry.registry.items(), *registry.dynamic_tools.items()]
        given = [(name, tool.tool_spec) for name, tool in tools]
        if given != known:
            made, known = make(), [(name, copied(spec)) for name, spec in given]
        return ToolSpecs(copied(made))

    registry.get_all_tool_specs = get_all_tool_specs  # type: ignore[method-assign]
