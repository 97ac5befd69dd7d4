"""Random episodes against the provider: whatever happens to the history, tokens stay exact.

The laws under test: sampled ids are recorded as they were sampled; every request is a held path and something new; each
sampled token is trained in exactly one exported trajectory; a failed call changes nothing.
"""

from __future__ import annotations

import asyncio
import copy
import random
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from provider_support import Replay, call, completion, tokenizer

from strands_sglang.model import SGLangModel

TOOL = {
    "name": "add",
    "description": "Adds.",
    "inputSchema": {"json": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}},
}

REPLIES = [
    "plain",
    "<think>hm</think>\n\nplain",
    call(1, 2),
    "text " + call(1, 2) + call(3, 4),
    "<tool_call>{]</tool_call>",
    '<tool_call>{"name": "add"',
    "",
    "   ",
    "🌤 ümläut \x00",
]
STEPS = ["answer", "answer", "answer", "fail", "retry", "rewind", "trim", "edit", "user"]


def consume(model: SGLangModel, history: list[Any], system: str | None) -> list[Any]:
    async def run() -> list[Any]:
        return [event async for event in model.stream(copy.deepcopy(history), [TOOL], system)]

    return asyncio.run(run())


def message_of(events: list[Any]) -> dict[str, Any]:
    """The assistant message the SDK assembles from the events."""
    import json

    content: list[dict[str, Any]] = []
    start: dict[str, Any] = {}
    for event in events:
        if "contentBlockStart" in event:
            start = event["contentBlockStart"]["start"]
        elif "contentBlockDelta" in event:
            delta = event["contentBlockDelta"]["delta"]
            if "toolUse" in delta:
                content.append({"toolUse": {**start["toolUse"], "input": json.loads(delta["toolUse"]["input"])}})
            elif "reasoningContent" in delta:
                content.append({"reasoningContent": {"reasoningText": {"text": delta["reasoningContent"]["text"]}}})
            else:
                content.append({"text": delta["text"]})
    return {"role": "assistant", "content": content or [{"text": "[blank text]"}]}


def next_user(message: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Tool results for the calls of a turn, or a user message."""
    uses = [block["toolUse"] for block in message["content"] if "toolUse" in block]
    if not uses:
        return {"role": "user", "content": [{"text": f"go on {rng.random()}"}]}
    results = [
        {"toolResult": {"toolUseId": use["toolUseId"], "status": "success", "content": [{"text": str(rng.random())}]}}
        for use in uses
    ]
    rng.shuffle(results)
    return {"role": "user", "content": results}


@settings(max_examples=60, deadline=None)
@example(seed=3006311, steps=["answer", "answer", "answer"])
@example(seed=15010, steps=["answer", "answer", "answer"])
@given(seed=st.integers(0, 2**32), steps=st.lists(st.sampled_from(STEPS), min_size=3, max_size=14))
def test_tokens_stay_exact_whatever_happens_to_the_history(seed: int, steps: list[str]) -> None:
    rng = random.Random(seed)
    client = Replay([])
    model = SGLangModel(tokenizer=tokenizer(), client=client)
    history: list[dict[str, Any]] = [{"role": "user", "content": [{"text": "start"}]}]
    snapshots = [list(history)]
    sampled: list[list[int]] = []
    for step in steps:
        before = [t.token_ids for t in model.trajectories]
        if step == "fail":
            client.then(RuntimeError("down"))
            try:
                consume(model, history, "sys")
            except RuntimeError:
                pass
            else:
                raise AssertionError("the failure was swallowed")
            assert [t.token_ids for t in model.trajectories] == before
            continue
        if step == "rewind":
            history = list(rng.choice(snapshots))
            continue
        if step == "trim" and len(history) > 3:
            history = [{"role": "user", "content": [{"text": "summary"}]}, *history[-1:]]
            if any("toolResult" in block for block in history[-1]["content"]):
                history.pop()
            continue
        if step == "edit":
            history = copy.deepcopy(history)
            history[0]["content"][0]["text"] += "!"
            continue
        if step == "user" and not any("toolResult" in b for b in history[-1]["content"]):
            history = [*history[:-1], {"role": "user", "content": [{"text": f"other {rng.random()}"}]}]
        for _ in range(2 if step == "retry" else 1):
            answer = completion(rng.choice(REPLIES), stop=rng.random() < 0.85, split=rng.random() < 0.5)
            client.then(answer)
            message = message_of(consume(model, history, "sys"))
            sampled.append(list(answer.ids))
        history = [*history, message]
        history.append(next_user(message, rng))
        snapshots.append(list(history))

    turns = model.forest.turns
    assert [list(turn.completion.output_ids) for turn in turns] == sampled
    paths = [
        [i for turn in leaf.path()[:-1] for i in (*turn.prompt_ids, *turn.completion.output_ids)]
        + list(leaf.prompt_ids)
        for leaf in turns
    ]
    assert all(path in client.prompts for path in paths)
    owners: dict[int, int] = {}
    for trajectory in model.trajectories:
        assert len(trajectory.token_ids) == len(trajectory.loss_mask) == len(trajectory.logprobs)
        ids: list[int] = []
        mask: list[int] = []
        first_sampled = None  # a reply may be empty: then the first sampled token is a later turn's
        for turn, trained in zip(trajectory.turns, trajectory.trained, strict=True):
            owners[turn.index] = owners.get(turn.index, 0) + trained
            if first_sampled is None and turn.completion.output_ids:
                first_sampled = len(ids) + len(turn.prompt_ids)
            ids += [*turn.prompt_ids, *turn.completion.output_ids]
            mask += [0] * len(turn.prompt_ids) + [int(trained)] * len(turn.completion.output_ids)
        assert trajectory.token_ids == trajectory.tokens.token_ids_array.tolist() == ids
        assert (trajectory.loss_mask, trajectory.initial_prompt_length) == (
            mask,
            first_sampled if first_sampled is not None else len(ids),
        )
    assert owners == {turn.index: 1 for turn in turns}
    assert sum(sum(t.loss_mask) for t in model.trajectories) == sum(map(len, sampled))
