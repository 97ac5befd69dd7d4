"""Random episodes of agents whose plug-ins inject context: with `keep`, all calls stand in one row.

A recorder in the client notes what every request held and what was sampled for it, and knows nothing of the forest. The
laws: a call's prompt is that of the call before, its sample and something new; the row is the last prompt and the last
sample; each sampled token is trained once, in it or in the row of a sample that was thrown away. Where a reply is cut,
which the SDK rewrites, or a middleware edits messages without saying so, there are more rows, and no token is lost.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from provider_support import Replay, call, completion, make_agent, tokenizer
from strands.hooks import AfterModelCallEvent
from strands.middleware import InvokeModelStage
from strands.types.exceptions import EventLoopException, MaxTokensReachedException
from strands.vended_plugins.context_injector import ContextInjector

from strands_sglang import SGLangModel

REPLIES = [
    "plain",
    "<think>hm</think>\n\nplain",
    call(1, 2),
    call(1, 2),
    "text " + call(1, 2) + call(3, 4),
    "<tool_call>{]</tool_call>",
    '<tool_call>{"name": "add"',
    "",
    "🌤 ümläut",
]
TEXTS = ["<memory>likes tea</memory>", "\nlist:\n- a", "<|im_end|>", "ümläut 🌤", "{}"]
TRIGGERS = st.lists(st.sampled_from(["userTurn", "everyTurn", "sometimes"]), min_size=1, max_size=3)


class Recorder(Replay):
    """The client, with what it was asked and what it answered."""

    def __init__(self, rng: random.Random, failure_rate: float, cut_rate: float) -> None:
        self.calls: list[tuple[list[int], list[int]]] = []

        def answer(*_: Any) -> Any:
            if rng.random() < failure_rate:
                raise RuntimeError("down")
            reply = completion(rng.choice(REPLIES), stop=rng.random() >= cut_rate, split=rng.random() < 0.5)
            self.calls.append((self.prompts[-1], list(reply.ids)))
            return reply

        super().__init__([answer], cycle=True)


@dataclass
class Episode:
    """What was recorded of an episode."""

    model: SGLangModel
    client: Recorder
    retried: list[int]
    """Indices of calls whose samples were thrown away."""
    injected: list[str]


async def run(
    rng: random.Random,
    triggers: list[str],
    *,
    retry_rate: float = 0.0,
    failure_rate: float = 0.0,
    cut_rate: float = 0.0,
    edit_rate: float = 0.0,
) -> Episode:
    """An episode of several user turns."""
    client = Recorder(rng, failure_rate, cut_rate)
    model = SGLangModel(tokenizer=tokenizer(), client=client, injected_context="keep")
    retried: list[int] = []
    injected: list[str] = []

    def render(context: Any) -> str | None:
        if rng.random() < 0.2:
            return None
        injected.append(f"{rng.choice(TEXTS)} note-{len(injected)}-")
        return injected[-1]

    def maybe_retry(event: AfterModelCallEvent) -> None:
        if event.exception is None and rng.random() < retry_rate:
            event.retry = True
            retried.append(len(client.calls) - 1)

    async def maybe_edit(context: Any) -> Any:
        *before, last = context.messages
        if rng.random() >= edit_rate:
            return context
        return replace(context, messages=[*before, {**last, "content": [*last["content"], {"text": "undeclared"}]}])

    def is_triggered(context: Any) -> bool:
        return rng.random() < 0.5

    plugins = [
        ContextInjector(render, name=f"injector {index}", trigger=is_triggered if trigger == "sometimes" else trigger)
        for index, trigger in enumerate(triggers)
    ]
    agent = make_agent(model, plugins=plugins)
    agent.add_hook(maybe_retry, AfterModelCallEvent)
    agent.add_middleware(InvokeModelStage.Input, maybe_edit)
    for number in range(rng.randint(1, 4)):
        try:
            await agent.invoke_async(f"request {number}", limits={"turns": 6})
        except MaxTokensReachedException:
            assert cut_rate
        except (RuntimeError, EventLoopException) as error:  # the next user turn goes on
            assert "down" in str(error)
    return Episode(model, client, retried, injected)


def assert_each_token_is_trained_once(episode: Episode) -> None:
    calls, rows = episode.client.calls, episode.model.trajectories
    owned: set[tuple[int, ...]] = set()
    for row in rows:
        ids = row.token_ids
        places = [len(prompt) for prompt, sampled in calls if ids[: len(prompt) + len(sampled)] == prompt + sampled]
        assert max(places, default=0) > 0
        owned |= {tuple(ids[: at + 1]) for at, trained in enumerate(row.loss_mask) if trained}
    # Equal samples behind equal prompts are several turns, each trained in a row of its own.
    sampled = [tuple(prompt + output[: at + 1]) for prompt, output in calls for at in range(len(output))]
    assert owned == set(sampled)
    assert sum(sum(row.loss_mask) for row in rows) == len(sampled)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    triggers=TRIGGERS,
    retry_rate=st.sampled_from([0.0, 0.0, 0.3]),
    failure_rate=st.sampled_from([0.0, 0.0, 0.2]),
)
def test_kept_context_makes_one_row_of_all_calls(
    seed: int, triggers: list[str], retry_rate: float, failure_rate: float
) -> None:
    episode = asyncio.run(run(random.Random(seed), triggers, retry_rate=retry_rate, failure_rate=failure_rate))
    assert_each_token_is_trained_once(episode)
    used = [pair for index, pair in enumerate(episode.client.calls) if index not in episode.retried]
    ids: list[int] = []
    mask: list[int] = []
    for prompt, sampled in used:
        assert prompt[: len(ids)] == ids
        mask += [0] * (len(prompt) - len(ids)) + [1] * len(sampled)
        ids = prompt + sampled
    rows = [row for row in episode.model.trajectories if not row.is_discarded]
    assert [(row.token_ids, row.loss_mask) for row in rows] == [(ids, mask)] * bool(used)
    if not failure_rate and not retry_rate:
        text = tokenizer().decode(ids)
        notes = range(len(episode.injected))
        assert [text.count(f" note-{note}-") for note in notes] == [1] * len(notes)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), triggers=TRIGGERS, retry_rate=st.sampled_from([0.0, 0.3]))
def test_undeclared_edits_and_cut_replies_lose_no_token(seed: int, triggers: list[str], retry_rate: float) -> None:
    episode = asyncio.run(
        run(random.Random(seed), triggers, retry_rate=retry_rate, failure_rate=0.1, cut_rate=0.15, edit_rate=0.3)
    )
    assert_each_token_is_trained_once(episode)
