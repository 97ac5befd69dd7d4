"""With and without fast paths: same ids, same events, same messages."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from provider_support import Replay, add, call, completion, tokenizer
from strands import Agent
from strands.agent import SlidingWindowConversationManager
from strands.hooks import AfterModelCallEvent, BeforeModelCallEvent, HookOrder

from strands_env.core import Action, Environment, StepResult, TaskContext
from strands_sglang import SGLangModel
from strands_sglang.fast_paths import VARIABLE, FastPath
from strands_sglang.testing import Reply

TWO = call(1, 2) + call(3, 4)
MALFORMED = "<tool_call>\n{not json}\n</tool_call>"
ODD = "naïve \u4e2d\u6587 \U0001f600 <|im_start|> \u0130\u0131 e\u0301 \r\n\t 12345678"
HISTORY = [
    {"role": "user", "content": [{"text": "Hello."}]},
    {"role": "assistant", "content": [{"text": " "}]},
]

Setup = Callable[[Agent], Any]


def nothing(agent: Agent) -> None:
    """No hooks."""


def retry_once(agent: Agent) -> None:
    asked: list[int] = []

    def retry(event: AfterModelCallEvent) -> None:
        event.retry = not asked
        asked.append(1)

    agent.add_hook(retry, AfterModelCallEvent, order=HookOrder.SDK_FIRST)


def edit_results(agent: Agent) -> None:
    def edit(event: BeforeModelCallEvent) -> None:
        if len(event.agent.messages) == 7:
            event.agent.messages[4]["content"][0]["toolResult"]["content"] = [{"text": "cleared"}]

    agent.add_hook(edit, BeforeModelCallEvent)


SCENARIOS: dict[str, tuple[list[Any], Setup, dict[str, Any]]] = {
    "calls": ([call(1, 2), TWO, call(5, 6), "done"], nothing, {}),
    "odd texts": ([ODD + call(1, 2), completion(ODD + call(1, 2), split=True), ODD], nothing, {}),
    "malformed": ([MALFORMED, call(1, 2, "no_such_tool"), call(1, 2), "done"], nothing, {}),
    "cut": ([call(1, 2), completion("and so", stop=False)], nothing, {}),
    "aborted": ([call(1, 2), Reply(text="half", finish="abort"), "done"], nothing, {}),
    "server error": ([call(1, 2), ConnectionError("gone")], nothing, {}),
    "sampled again": ([call(1, 2), call(1, 2), call(3, 4), "done"], retry_once, {}),
    "history edited": ([call(1, 2), call(3, 4), call(5, 6), "done"], edit_results, {}),
    "limit": ([call(1, 2)] * 4, nothing, {"max_tool_iters": 3}),
    "budget": ([call(1, 2)] * 4, nothing, {"max_total_tokens": 460}),
}


class Env(Environment):
    """An environment that notes the events of its agent."""

    def __init__(self, setup: Setup, **options: Any) -> None:
        super().__init__(**options)
        self._setup = setup
        self.events: list[Any] = []

    def get_tools(self) -> list[Any]:
        return [add]

    def get_conversation_manager(self) -> Any:
        return SlidingWindowConversationManager(window_size=20)

    async def interact(self, agent: Agent, action: Action) -> Any:
        self._setup(agent)
        result: Any = None
        async for event in agent.stream_async(action.prompt):
            self.events.append([(name, value) for name, value in event.items() if isinstance(value, str | int | dict)])
            result = event.get("result", result)
        return result


async def everything(name: str) -> Any:
    """All that can be seen of a rollout."""
    script, setup, options = SCENARIOS[name]
    client = Replay(script)
    model = SGLangModel(client=client, tokenizer=tokenizer(), sampling_params={"max_new_tokens": 200})
    env = Env(setup, model_factory=lambda: model, system_prompt="Add.", **options)
    action = Action(message=f"Add up. {ODD}", task_context=TaskContext(id="1", conversation_history=HISTORY))
    result: StepResult = await env.rollout(action)
    return _timeless(
        {
            "prompts": client.prompts,
            "events": env.events,
            "result": json.loads(result.to_json()),
        }
    )


_ID = re.compile(r"\b[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}\b|call_[0-9a-f]+|0x[0-9a-f]+|id=<?\w+>?")


def _timeless(value: Any) -> Any:
    """The value without times, and with ids, which differ from run to run, by number."""
    numbers: dict[str, int] = {}

    def plain(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: plain(inner) for key, inner in item.items() if key not in _TIMES}
        if isinstance(item, list | tuple):
            return [plain(inner) for inner in item]
        if isinstance(item, str):
            return _ID.sub(lambda found: f"#{numbers.setdefault(found[0], len(numbers))}", item)
        return item if isinstance(item, int | float | None) else repr(item)

    return plain(value)


_TIMES = ("metrics", "tracking_id", "agent", "model", "event_loop_cycle_trace", "traceback")


@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_rollout_is_the_same_with_and_without_fast_paths(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = {}
    for off in ("", "1", *FastPath):
        monkeypatch.setenv(VARIABLE, off)
        outcomes[off] = await everything(name)
    fast = outcomes.pop("")
    for off, outcome in outcomes.items():
        assert outcome == fast, off


def test_each_fast_path_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, off in (("", ()), ("0", ()), ("1", FastPath), (" pieces, FLAT_LOOP ,", ("pieces", "flat_loop"))):
        monkeypatch.setenv(VARIABLE, text)
        assert {path for path in FastPath if not path.is_on} == set(off)


def test_an_unknown_fast_path_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "true")
    with pytest.raises(ValueError, match=r"STRANDS_ROLLOUT_PLAIN='true' names 'true': write 1, or some of pieces, "):
        FastPath.PIECES.is_on  # noqa: B018
