"""An agent's tools are described anew only when one has changed, and whoever is given the description may change it."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from strands import Agent, tool
from strands.hooks import BeforeModelCallEvent
from strands.middleware import InvokeModelStage
from strands.tools.registry import ToolRegistry

from strands_env.core import Action, Environment
from strands_env.core.tool_specs import remember_tool_specs
from strands_env.testing import ScriptedModel, call


@tool
async def note(text: str) -> str:
    """Note a text."""
    return text


@tool
async def late() -> str:
    """Come later."""
    return "late"


class Spoiler(ScriptedModel):
    """Keeps the tools that every call is given, and then spoils them."""

    def __init__(self) -> None:
        super().__init__([call("note", text="a"), call("note", text="b"), "done"])
        self.given: list[Any] = []

    async def stream(
        self, messages: Any, tool_specs: Any = None, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        self.given.append(copy.deepcopy(tool_specs))
        tool_specs[0]["inputSchema"]["json"]["properties"]["text"]["description"] = "spoilt"
        async for event in super().stream(messages, tool_specs, *args, **kwargs):
            yield event


async def given_to_a_model(hook: Any = None) -> list[Any]:
    class Env(Environment):
        def get_tools(self) -> list[Any]:
            return [note]

        def get_hooks(self) -> list[Any]:
            return [] if hook is None else [hook]

    model = Spoiler()
    result = await Env(model_factory=lambda: model).step(Action(message="go"))
    assert result.error is None
    return model.given


async def test_a_model_is_given_what_the_sdk_would_give_it() -> None:
    registry = ToolRegistry()
    registry.process_tools([note])
    assert await given_to_a_model() == [registry.get_all_tool_specs()] * 3


async def test_specifications_are_made_once_for_an_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    original = ToolRegistry.get_all_tool_specs
    monkeypatch.setattr(ToolRegistry, "get_all_tool_specs", lambda self: made.append(1) or original(self))
    await given_to_a_model()
    assert len(made) == 1


async def test_a_tool_that_comes_later_is_given() -> None:
    def add(event: BeforeModelCallEvent) -> None:
        if len(event.agent.messages) == 3:
            event.agent.tool_registry.process_tools([late])

    given = await given_to_a_model(add)
    assert [[spec["name"] for spec in specs] for specs in given] == [["note"], ["note", "late"], ["note", "late"]]


def test_a_specification_that_is_changed_in_place_is_noticed() -> None:
    registry = ToolRegistry()
    changing = copy.copy(note)
    changing._tool_spec = copy.deepcopy(note.tool_spec)
    registry.register_tool(changing)
    remember_tool_specs(registry)
    assert registry.get_all_tool_specs() == registry.get_all_tool_specs()
    changing._tool_spec["inputSchema"]["json"]["properties"]["text"]["description"] = "another"
    [changed] = registry.get_all_tool_specs()
    assert changed["inputSchema"]["json"]["properties"]["text"]["description"] == "another"


async def test_middleware_changes_the_tools_of_its_call_alone() -> None:
    async def spoil(context: Any, following: Any) -> AsyncGenerator[Any, None]:
        context.tool_specs[0]["description"] = "only here"
        async for event in following(context):
            yield event

    def add(event: BeforeModelCallEvent) -> None:
        if len(event.agent.messages) == 3:
            event.agent.add_middleware(InvokeModelStage, spoil)
        if len(event.agent.messages) == 5:
            event.agent._middleware_registry._handlers.clear()

    given = await given_to_a_model(add)
    assert [specs[0]["description"] for specs in given] == ["Note a text.", "only here", "Note a text."]


async def test_tools_are_refused_as_the_sdk_refuses_them() -> None:
    tools: list[Any] = [tool(name=name)(lambda: "done") for name in ("look_up", "look-up")]

    class Env(Environment):
        def get_tools(self) -> list[Any]:
            return tools

    with pytest.raises(ValueError) as expected:
        Agent(model=ScriptedModel([]), tools=tools)
    result = await Env(model_factory=lambda: ScriptedModel(["done"])).step(Action(message="go"))
    assert result.error is not None and result.error.message == str(expected.value)


async def test_what_the_sdk_has_to_load_is_loaded_by_it() -> None:
    class Env(Environment):
        def get_tools(self) -> list[Any]:
            return [[note], late]

    model = ScriptedModel([call("note", text="a"), "done"])
    result = await Env(model_factory=lambda: model).step(Action(message="go"))
    assert result.error is None and result.observation.messages[2]["content"][0]["toolResult"]["status"] == "success"
