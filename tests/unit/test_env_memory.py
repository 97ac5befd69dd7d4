"""Hundreds of steps at once leave nothing behind, and the history copies stay safe."""

from __future__ import annotations

import asyncio
import copy
import gc
import weakref
from typing import Any

import pytest
from strands import Agent
from strands.event_loop.streaming import _normalize_messages
from strands.hooks import BeforeModelCallEvent
from strands.telemetry.tracer import get_tracer

from strands_env.core import Action, Environment
from strands_env.core.history import History, skip_unrecorded_messages
from strands_env.core.scope import StepScope
from strands_env.testing import ScriptedModel, call


async def test_concurrent_steps_leave_no_object_behind() -> None:
    models: list[weakref.ref[ScriptedModel]] = []
    agents: list[weakref.ref[Agent]] = []
    scopes: list[weakref.ref[Any]] = []

    class Env(Environment):
        def get_hooks(self) -> list[Any]:
            def note(event: BeforeModelCallEvent) -> None:
                agents.append(weakref.ref(event.agent))
                scope = StepScope.current()
                assert scope is not None
                scopes.append(weakref.ref(scope.recorder))

            return [note]

    def factory() -> ScriptedModel:
        model = ScriptedModel([call("nothing"), "done"])
        models.append(weakref.ref(model))
        return model

    env = Env(model_factory=factory)
    results = await asyncio.gather(*(env.rollout(Action(message="go")) for _ in range(200)))
    assert [result.observation.final_response for result in results] == ["done"] * 200
    gc.collect()
    for references in (models, agents, scopes):
        assert references
        assert not [reference for reference in references if reference() is not None]


def test_copied_history_can_be_normalised_without_touching_the_original() -> None:
    messages = [
        {"role": "user", "content": [{"text": "hi"}]},
        {"role": "assistant", "content": [{"text": " "}, {"toolUse": {"name": "a b", "toolUseId": "1", "input": {}}}]},
    ]
    history = History(copy.deepcopy(messages))
    copied = copy.deepcopy(history)
    copied[1]["content"][1]["toolUse"]["name"] = "INVALID_TOOL_NAME"
    copied[1]["content"][0]["text"] = "[blank text]"
    copied[1]["content"][:] = copied[1]["content"][1:]
    copied[0]["role"] = "assistant"
    copied.append({})
    assert history == messages
    assert isinstance(copied, History)


def test_copied_history_shares_what_is_large() -> None:
    arguments = {"code": "x" * 1000}
    history = History([{"role": "assistant", "content": [{"toolUse": {"name": "run", "input": arguments}}]}])
    assert copy.deepcopy(history)[0]["content"][0]["toolUse"]["input"] is arguments


@pytest.mark.parametrize(
    ("content", "is_shared"),
    [
        ([{"text": "a"}, {"toolUse": {"name": "run", "toolUseId": "1", "input": {}}}], True),
        ([{"reasoningContent": {"reasoningText": {"text": ""}}}, {"text": "a"}], True),
        ([{"text": " \n"}, {"text": "a"}], False),
        ([{"text": None}], False),
        ([{"toolUse": {"name": "a b", "toolUseId": "1", "input": {}}}], False),
        ([{"toolUse": {"name": "a" * 65, "toolUseId": "1", "input": {}}}], False),
        ([{"toolUse": {"toolUseId": "1", "input": {}}}], False),
        ([], False),
    ],
)
@pytest.mark.parametrize("is_only_read", [True, False])
def test_what_needs_no_normalisation_is_shared_with_models_that_only_read(
    content: list[Any], is_shared: bool, is_only_read: bool
) -> None:
    messages = [{"role": "user", "content": [{"text": " "}]}, {"role": "assistant", "content": content}]
    expected = _normalize_messages(copy.deepcopy(messages))
    history = History(copy.deepcopy(messages))
    history.is_only_read = is_only_read
    normalized = _normalize_messages(history)
    assert list(normalized) == expected and history == messages
    assert [a is b for a, b in zip(normalized, history, strict=True)] == [is_only_read, is_only_read and is_shared]
    assert not any(a is b for a, b in zip(copy.deepcopy(history), history, strict=True))


class Span:
    """Enough of a span: it notes events if it records."""

    def __init__(self, recording: bool) -> None:
        self.recording = recording
        self.events: list[str] = []

    def is_recording(self) -> bool:
        return self.recording

    def add_event(self, name: str, attributes: Any = None) -> None:
        self.events.append(name)


def test_messages_are_encoded_for_recording_spans_only() -> None:
    skip_unrecorded_messages()
    skip_unrecorded_messages()
    encoded: list[Any] = []

    class Content(list[Any]):
        def __iter__(self) -> Any:
            encoded.append(self)
            return super().__iter__()

    message = {"role": "user", "content": Content([{"text": "hi"}])}
    silent, recording = Span(False), Span(True)
    get_tracer()._add_event_messages(silent, [message])
    assert (silent.events, encoded) == ([], [])
    get_tracer()._add_event_messages(recording, [message])
    assert recording.events
