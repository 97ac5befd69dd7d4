"""Blocks that the SDK folds into one call alone: a root for the next call, or kept where the model read them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from provider_support import assert_prefix_law, call, completion, make, make_agent, tokenizer
from strands.memory import MemoryEntry
from strands.middleware import InvokeModelStage
from strands.middleware.stages import InvokeModelContext
from strands.vended_plugins.context_injector import ContextInjector

from strands_sglang import SGLangModel

SCRIPT = [call(1, 2), call(3, 4), "first", call(5, 6), "second"]


def numbered(trigger: Any) -> ContextInjector:
    """An injector whose text is another one in each call."""
    texts = (f"<context>{number}</context>" for number in range(100))
    return ContextInjector(lambda context: next(texts), trigger=trigger)


async def two_user_turns(policy: str, **options: Any) -> tuple[SGLangModel, Any]:
    model, client = make([completion(text) for text in SCRIPT], injected_context=policy, context_window_limit=100_000)
    agent = make_agent(model, **options)
    await agent.invoke_async("one")
    await agent.invoke_async("two")
    return model, client


def count_of(model: SGLangModel, text: str) -> list[int]:
    return [tokenizer().decode(row.token_ids).count(text) for row in model.trajectories]


@pytest.mark.parametrize(("trigger", "rows"), [("userTurn", 3), ("everyTurn", 5)])
async def test_by_default_a_call_whose_history_lacks_the_context_is_a_root(trigger: str, rows: int) -> None:
    model, client = await two_user_turns("rerender", plugins=[numbered(trigger)])
    assert len(model.trajectories) == rows
    assert make([])[0].get_config()["injected_context"] == "rerender"
    counts = [tokenizer().decode(prompt).count("<context>") for prompt in client.prompts]
    assert counts == ([1, 0, 0, 1, 0] if trigger == "userTurn" else [1] * 5)


async def test_a_repeated_call_with_another_context_is_a_sibling() -> None:
    model, _ = make([completion("a"), completion("b"), completion("c")], injected_context="keep")
    ask = [{"text": "go"}]
    for text in ("x", "y"):
        messages: Any = [{"role": "user", "content": [*ask, {"text": text}]}]
        async for _event in model.stream(messages, dynamic_trailing_blocks=1):
            pass
    later: Any = [
        {"role": "user", "content": ask},
        {"role": "assistant", "content": [{"text": "b"}]},
        {"role": "user", "content": [{"text": "more"}]},
    ]
    async for _event in model.stream(later):
        pass
    turns = model.forest.turns
    assert [turn.parent for turn in turns] == [None, None, turns[1]]


async def test_more_declared_blocks_than_there_are_leave_none_to_find_the_message_by() -> None:
    model, _ = make([completion("a"), completion("b")], injected_context="keep")
    first: Any = [{"role": "user", "content": [{"text": "go"}]}]
    async for _event in model.stream(first, dynamic_trailing_blocks=3):
        pass
    later: Any = [*first, {"role": "assistant", "content": [{"text": "a"}]}, *first]
    async for _event in model.stream(later):
        pass
    assert [turn.parent for turn in model.forest.turns] == [None, None]


async def test_an_edit_that_is_not_declared_starts_a_root_and_the_warning_names_the_remedies(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, _ = make([completion(text) for text in SCRIPT], injected_context="keep")
    agent = make_agent(model, plugins=[numbered("everyTurn")])

    async def add_note(context: InvokeModelContext) -> InvokeModelContext:
        *before, last = context.messages
        return replace(context, messages=[*before, {**last, "content": [*last["content"], {"text": "note"}]}])

    agent.add_middleware(InvokeModelStage.Input, add_note)
    await agent.invoke_async("one")
    await agent.invoke_async("two")
    assert len(model.trajectories) == len(SCRIPT)
    (record,) = [each for each in caplog.records if "starts a new path" in each.getMessage()]
    assert "injected_context" in record.getMessage()


async def test_held_tokens_are_counted_with_the_kept_context() -> None:
    model, _ = make([completion("first")], injected_context="keep")
    agent = make_agent(model, plugins=[numbered("userTurn")])
    await agent.invoke_async("one")
    tools = agent.tool_registry.get_all_tool_specs()
    held = len(model.token_manager.token_ids)
    assert await model.count_tokens(agent.messages, tools) == held


class Shelf:
    """A memory with one entry."""

    name, description, max_search_results, writable, extraction = "shelf", "", None, False, None

    async def search(self, query: str, options: Any = None) -> list[Any]:
        return [MemoryEntry(content=f"about {query}")]


@pytest.mark.parametrize(
    ("options", "text", "count"),
    [
        ({"memory_manager": {"stores": [Shelf()], "injection": True}}, "<memory>", 2),
        ({"context_manager": "agentic"}, "<context-status>", len(SCRIPT)),
    ],
)
async def test_what_other_parts_of_the_sdk_declare_is_kept_too(options: dict[str, Any], text: str, count: int) -> None:
    model, client = await two_user_turns("keep", **options)
    assert len(model.trajectories) == 1
    assert_prefix_law(client, model)
    assert count_of(model, text) == [count]
