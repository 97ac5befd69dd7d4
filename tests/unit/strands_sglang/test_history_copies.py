"""A copy of the history is a copy: what hooks, middleware and models do to theirs changes neither record nor prompt."""

from __future__ import annotations

import copy
import functools
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from provider_support import Replay, tokenizer
from strands import Agent, tool
from strands.hooks import BeforeModelCallEvent
from strands.middleware import InvokeModelStage

from strands_env.core import Action, Environment, StepResult
from strands_env.testing import ScriptedModel, call
from strands_sglang import SGLangModel

SECRET = "SECRET a"
LOOK_UP = '<tool_call>\n{"name": "look_up", "arguments": {"where": {"key": ["SECRET a"]}}}\n</tool_call>'


@tool
async def look_up(where: dict[str, Any]) -> str:
    """Look up a secret.

    Args:
        where: Where.
    """
    return SECRET


def redact(value: Any) -> None:
    """Overwrite every secret in place."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        if isinstance(value[key], str):
            value[key] = value[key].replace(SECRET, "[redacted]")
        redact(value[key])


class Noting:
    """A model that notes every prompt as it came."""

    given: list[str]

    def stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        self.given.append(str(messages))
        return super().stream(messages, *args, **kwargs)  # type: ignore[misc]


class Editing(Noting):
    """A model that redacts the messages that it was given, once it has noted them."""

    def stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        events = super().stream(messages, *args, **kwargs)
        redact(messages)
        return events


def scripted(base: type) -> Any:
    kind = type("Scripted", (base, ScriptedModel), {"given": []})
    return kind([call("look_up", where={"key": [SECRET]})] * 2 + ["done"])


def sglang(base: type) -> Any:
    kind = type("SGLang", (base, SGLangModel), {"given": []})
    return kind(client=Replay([LOOK_UP, LOOK_UP, "done"]), tokenizer=tokenizer())


def redacts_a_copy(agent: Agent) -> None:
    def hook(event: BeforeModelCallEvent) -> None:
        redact(copy.deepcopy(event.agent.messages))

    agent.add_hook(hook, BeforeModelCallEvent)


def redacts_in_middleware(agent: Agent) -> None:
    async def middleware(context: Any, following: Any) -> AsyncGenerator[Any, None]:
        async for event in following(context):
            yield event
        redact(context.messages)

    agent.add_middleware(InvokeModelStage, middleware)


def lends_its_history_to_an_agent_with_middleware(agent: Agent) -> None:
    async def hook(event: BeforeModelCallEvent) -> None:
        if len(event.agent.messages) == 3:
            other = Agent(model=ScriptedModel(["ok"]), messages=event.agent.messages, callback_handler=None)
            redacts_in_middleware(other)
            await other.invoke_async("What did you see?")
            del event.agent.messages[3:]

    agent.add_hook(hook, BeforeModelCallEvent)


async def step(model: Any, setup: Callable[[Agent], None] | None = None) -> StepResult:
    class Env(Environment):
        def get_tools(self) -> list[Any]:
            return [look_up]

        async def interact(self, agent: Agent, action: Action) -> Any:
            if setup is not None:
                setup(agent)
            return await self.invoke(agent, action.prompt)

    result = await Env(model_factory=lambda: model).step(Action(message="go"))
    assert result.error is None
    return result


@pytest.mark.parametrize("make", [scripted, sglang])
@pytest.mark.parametrize(
    ("base", "setup"),
    [
        (Noting, redacts_a_copy),
        (Noting, redacts_in_middleware),
        (Noting, lends_its_history_to_an_agent_with_middleware),
        (Editing, None),
    ],
    ids=["hook", "middleware", "lent", "model"],
)
async def test_redacting_a_copy_changes_the_copy_alone(make: Any, base: type, setup: Any) -> None:
    model = make(base)
    result = await step(model, setup)
    assert str(result.observation.messages).count(SECRET) == 4  # two calls, two results
    assert [prompt.count(SECRET) for prompt in model.given] == [0, 2, 4]
    assert "[redacted]" not in str(model.given)


async def test_a_wrapped_stream_promises_nothing() -> None:
    class Wrapped(SGLangModel):
        @functools.wraps(SGLangModel.stream)
        async def stream(self, messages: Any, *args: Any, **options: Any) -> AsyncGenerator[Any, None]:
            redact(messages)
            async for event in super().stream(messages, *args, **options):
                yield event

    result = await step(Wrapped(client=Replay([LOOK_UP, "done"]), tokenizer=tokenizer()))
    assert SECRET in str(result.observation.messages)
