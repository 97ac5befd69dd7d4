"""With a `History` the unmodified SDK does what it does with a plain list, whatever hooks and managers do."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from strands import Agent, tool
from strands.agent import NullConversationManager, SlidingWindowConversationManager
from strands.hooks import (
    AfterModelCallEvent,
    AfterToolCallEvent,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
    MessageAddedEvent,
)
from strands.middleware import InvokeModelStage

from strands_env.core import history
from strands_env.core.history import History
from strands_env.testing import ScriptedModel, call

Setup = Callable[[Agent], None]


@tool
def note(text: str) -> str:
    """Note a text."""
    return f"noted {text}"


class Recorder(ScriptedModel):
    """Keeps a copy of what every call is given, and then spoils what it was given."""

    def __init__(self, replies: list[Any]) -> None:
        super().__init__(replies)
        self.given: list[Any] = []

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        self.given.append(copy.deepcopy(list(messages)))
        async for event in super().stream(messages, *args, **kwargs):
            yield event
        messages[0]["content"].append({"text": "spoilt"})
        messages[-1]["role"] = "spoilt"


def nothing(agent: Agent) -> None:
    """No hooks at all."""


def edits_before_a_call(agent: Agent) -> None:
    def edit(event: BeforeModelCallEvent) -> None:
        event.agent.messages[0]["content"].append({"text": "!"})

    agent.add_hook(edit, BeforeModelCallEvent)


def replaces_the_history(agent: Agent) -> None:
    def replace(event: BeforeModelCallEvent) -> None:
        event.agent.messages = list(event.agent.messages[-3:])

    agent.add_hook(replace, BeforeModelCallEvent)


def asks_again(agent: Agent) -> None:
    asked: list[int] = []

    def retry(event: AfterModelCallEvent) -> None:
        event.retry = not asked
        asked.append(1)

    agent.add_hook(retry, AfterModelCallEvent)


def edits_calls_and_results(agent: Agent) -> None:
    def shorten(event: AfterToolCallEvent) -> None:
        event.result["content"][0]["text"] = "short"

    def rename(event: BeforeToolCallEvent) -> None:
        event.tool_use["input"]["text"] = "other"

    agent.add_hook(shorten, AfterToolCallEvent)
    agent.add_hook(rename, BeforeToolCallEvent)


def edits_messages_as_they_arrive(agent: Agent) -> None:
    def mark(event: MessageAddedEvent) -> None:
        event.message["content"].append({"text": "seen"})

    agent.add_hook(mark, MessageAddedEvent)


def takes_snapshots(agent: Agent) -> None:
    def spoil_a_copy(event: BeforeModelCallEvent) -> None:
        taken = copy.deepcopy(event.agent.messages)
        again = copy.deepcopy(taken)
        taken[0]["role"], taken[-1]["content"][:] = "spoilt", []
        assert again == event.agent.messages

    agent.add_hook(spoil_a_copy, BeforeModelCallEvent)


def has_middleware(agent: Agent) -> None:
    async def spoil(context: Any, following: Any) -> AsyncGenerator[Any, None]:
        context.messages[0]["content"][0]["text"] = "only for this call"
        context.messages.append({"role": "user", "content": [{"text": "and this"}]})
        async for event in following(context):
            yield event

    agent.add_middleware(InvokeModelStage, spoil)


def gets_middleware_late(agent: Agent) -> None:
    def add(event: BeforeModelCallEvent) -> None:
        if len(event.agent.messages) == 3:
            has_middleware(event.agent)

    agent.add_hook(add, BeforeModelCallEvent)


def outcome(kind: type[list[Any]], setup: Setup, manager: Any) -> tuple[Any, Any]:
    """What the model was given, and the history at the end."""
    replies = [call("note", text="a"), call("no such tool"), call("note", text="b"), call("note"), "done", "done"]
    model = Recorder(replies)
    earlier = kind([{"role": "user", "content": [{"text": "hi"}]}, {"role": "assistant", "content": []}])
    agent = Agent(model=model, tools=[note], messages=earlier, callback_handler=None, conversation_manager=manager())
    setup(agent)
    agent("go")
    return model.given, [{key: m[key] for key in ("role", "content")} for m in agent.messages]


@pytest.mark.parametrize(
    "manager", [NullConversationManager, lambda: SlidingWindowConversationManager(window_size=4, per_turn=True)]
)
@pytest.mark.parametrize(
    "setup",
    [
        nothing,
        edits_before_a_call,
        replaces_the_history,
        asks_again,
        edits_calls_and_results,
        edits_messages_as_they_arrive,
        takes_snapshots,
        has_middleware,
        gets_middleware_late,
    ],
)
def test_the_sdk_does_the_same_with_a_plain_list(setup: Setup, manager: Any) -> None:
    assert _ids_counted(outcome(History, setup, manager)) == _ids_counted(outcome(list, setup, manager))


def _ids_counted(value: Any) -> Any:
    """The value with call ids, which differ from run to run, numbered."""
    numbers: dict[str, int] = {}

    def counted(item: Any) -> Any:
        if isinstance(item, dict):
            return {
                key: numbers.setdefault(inner, len(numbers)) if key == "toolUseId" else counted(inner)
                for key, inner in item.items()
            }
        return [counted(inner) for inner in item] if isinstance(item, list | tuple) else item

    return counted(value)


@pytest.mark.parametrize(("setup", "copies"), [(nothing, 1), (has_middleware, 2)])
def test_the_history_is_copied_once_unless_there_is_middleware(
    setup: Setup, copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[Any] = []
    original = history._copy_message
    monkeypatch.setattr(history, "_copy_message", lambda message: copied.append(message) or original(message))
    agent = Agent(model=ScriptedModel(["done"]), messages=History(), callback_handler=None)
    setup(agent)
    agent("go")
    assert sum(message["content"] != [{"text": "and this"}] for message in copied) == copies


def test_a_normalization_that_takes_what_it_is_shown_gets_every_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a later SDK might, which makes a new list instead of changing the copy."""

    def normalize(messages: Any) -> list[Any]:
        kept = []
        for message in copy.deepcopy(messages):
            kept.append(message)
        return kept

    monkeypatch.setattr(history.sdk_streaming, "_normalize_messages", normalize)
    monkeypatch.setattr(history, "_NORMALIZATION", normalize.__code__)
    messages = History(
        [{"role": "user", "content": [{"text": "a"}]}, {"role": "assistant", "content": [{"text": " "}]}]
    )
    messages.is_only_read = True
    history._normalization_is_known.cache_clear()
    try:
        assert normalize(messages) == list(messages)
    finally:
        history._normalization_is_known.cache_clear()


def test_the_normalization_of_this_sdk_is_known() -> None:
    history._normalization_is_known.cache_clear()
    assert history._normalization_is_known()
