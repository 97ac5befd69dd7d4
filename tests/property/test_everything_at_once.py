"""Structured output, parallel tools, sub-agents, retries, aborts and budgets at once: an `Agent`, and an `Environment`.

A recorder in the client knows what was sampled, each token with a log-probability that no other has. The laws: what is
trained was sampled behind that very prompt, with that log-probability, and every sampled token is trained once; samples
for trainers are the paths that count; and a reply counts exactly if it was added to the messages of an agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from provider_support import Replay, make_agent, tokenizer
from pydantic import BaseModel
from strands import Agent, tool
from strands.agent import NullConversationManager, SlidingWindowConversationManager
from strands.hooks import AfterModelCallEvent, AfterToolCallEvent, HookProvider, HookRegistry, MessageAddedEvent

from strands_env.core import Action, Environment
from strands_env.training.build import samples_from_model, samples_from_step
from strands_sglang import SGLangModel
from strands_sglang.testing import Reply

EOS = tokenizer().eos_token_id
KINDS = ["look", "look", "fail", "ask", "Verdict", "wrong verdict", "unknown", "malformed"]


class Verdict(BaseModel):
    """A verdict."""

    good: bool
    why: str


def markup(kind: str, mark: str) -> str:
    """A call of a tool."""
    name, arguments = {
        "Verdict": ("Verdict", {"good": True, "why": mark}),
        "wrong verdict": ("Verdict", {"good": "perhaps", "why": mark}),
    }.get(kind, (kind, {"what": mark}))
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call[:-1] if kind == 'malformed' else call}\n</tool_call>"


class Episode(Replay, HookProvider):
    """A random episode: its client, which samples and records; the hooks of its agents; and their tools."""

    def __init__(self, seed: int) -> None:
        super().__init__([self.sample], cycle=True)
        self.rng = rng = random.Random(seed)
        self.rates = {name: rng.choice([0.0, 0.15]) for name in ("cut", "abort", "retry", "tool retry")}
        self.most_calls = rng.choice([3, 12])
        budgets = {"max_sampled_tokens": rng.randint(20, 900), "max_response_tokens": rng.randint(20, 900)}
        self.options: dict[str, Any] = {name: value for name, value in budgets.items() if rng.random() < 0.25}
        if rng.random() < 0.2:
            self.options["sampling_params"] = {"max_new_tokens": rng.choice([12, 80])}
        self.trajectory_budget = rng.randint(200, 2500) if rng.random() < 0.25 else None
        self.calls: list[tuple[list[int], list[int], list[float], str]] = []
        self.added: set[str] = set()

    def happens(self, name: str) -> bool:
        return self.rng.random() < self.rates[name]

    # ---- the client --------------------------------------------

    def sample(self, prompt: list[int], fields: Any) -> Reply:
        rng, mark = self.rng, f"[{len(self.requests)}]"
        text = rng.choice(["", f"<think>\nhm {mark}\n</think>\n\n"]) + rng.choice(["", f"say {mark} "])
        if fields["sampling_params"].get("ebnf"):
            text = markup("Verdict", mark)  # as its grammar says
        elif len(self.requests) <= self.most_calls and rng.random() < 0.8:
            text += "".join(markup(rng.choice(KINDS), mark) for _ in range(rng.randint(1, 4)))
        ids = [*tokenizer().encode(text or mark, add_special_tokens=False), *([] if self.happens("cut") else [EOS])]
        finish: Any = "stop" if ids[-1] == EOS else "length"
        if self.happens("abort"):
            ids, finish = ids[: rng.randrange(len(ids))], "abort"
        logprobs = [-rng.randrange(1, 2**23) / 2**19 for _ in ids]
        return Reply(ids=ids, logprobs=logprobs, finish=finish, delay=rng.choice([0.0, 0.002]))

    async def generate(self, input_ids: Any, **fields: Any) -> dict[str, Any]:
        answer = await super().generate(input_ids, **fields)
        meta = answer["meta_info"]
        logprobs = [entry[0] for entry in meta["output_token_logprobs"]]
        self.calls.append((list(input_ids), answer["output_ids"], logprobs, meta["finish_reason"]["type"]))
        return answer

    # ---- the agents --------------------------------------------

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        registry.add_callback(AfterModelCallEvent, lambda event: self.retry(event, "retry"))
        registry.add_callback(AfterToolCallEvent, lambda event: self.retry(event, "tool retry"))
        registry.add_callback(MessageAddedEvent, self.note)

    def retry(self, event: Any, name: str) -> None:
        event.retry = event.exception is None and self.happens(name)

    def note(self, event: MessageAddedEvent) -> None:
        if event.message["role"] == "assistant":
            self.added |= set(re.findall(r"\[\d+\]", json.dumps(event.message["content"])))

    def manager(self) -> Any:
        window = SlidingWindowConversationManager(window_size=6, per_turn=True)
        return self.rng.choice([NullConversationManager(), window])

    def structured(self) -> dict[str, Any]:
        return {"structured_output_model": Verdict} if self.rng.random() < 0.6 else {}

    def tools(self, models: list[Any]) -> list[Any]:
        """Tools, of which one asks a sub-agent with one of the models, or with a new one that the last entry makes."""
        rng, (*known, new) = self.rng, models

        @tool
        async def look(what: str) -> str:
            """Look."""
            await asyncio.sleep(rng.choice([0, 0.002]))
            return "word " * rng.choice([1, 40])

        @tool
        def fail(what: str) -> str:
            """Fail."""
            raise ValueError("no")

        @tool
        async def ask(what: str) -> str:
            """Ask a sub-agent."""
            model = rng.choice([*known, None]) or new()
            agent = make_agent(
                model, tools=[look, fail], system_prompt="Help.", hooks=[self], conversation_manager=self.manager()
            )
            return str(await agent.invoke_async("What?", **self.structured()))

        return [look, fail, ask]

    def make_model(self) -> SGLangModel:
        return SGLangModel(tokenizer=tokenizer(), client=self, **self.options)


async def run_agent(episode: Episode) -> tuple[list[Any], list[Any]]:
    """An agent's trajectories, and their training samples."""
    models: list[SGLangModel] = []

    def new() -> SGLangModel:
        models.append(episode.make_model())
        models[-1].update_config(max_trajectory_tokens=episode.trajectory_budget)
        return models[-1]

    tools, manager = episode.tools([new(), new]), episode.manager()
    agent = make_agent(models[0], tools=tools, hooks=[episode], conversation_manager=manager)
    for number in range(2):
        with contextlib.suppress(Exception):  # a budget, a cut reply, or a verdict that does not come
            await agent.invoke_async(f"request {number}", **episode.structured())
    samples = [sample for model in models for sample in samples_from_model(model)]
    return [path for model in models for path in model.trajectories], samples


async def run_environment(episode: Episode) -> tuple[list[Any], list[Any]]:
    """The same of a rollout."""

    class World(Environment):
        def make_agent(self, **options: Any) -> Agent:
            options["tools"] = episode.tools([options["model"], lambda: self.model_for("helper")])
            return super().make_agent(**options)

        def get_hooks(self) -> list[Any]:
            return [episode]

        def get_conversation_manager(self) -> Any:
            return episode.manager()

        async def interact(self, agent: Agent, action: Action) -> Any:
            await agent.invoke_async(action.prompt, **episode.structured())
            return await self.invoke(agent, "request 1")

    limits = {"max_tool_calls": 6} if episode.rng.random() < 0.2 else {}
    env = World(
        model_factory=episode.make_model,
        reward_fn=lambda *_: 1.0,
        max_total_tokens=episode.trajectory_budget,
        **limits,
    )
    result = await env.rollout(Action(message="request 0"))
    samples = [sample for sample in samples_from_step(result) if len(sample.token_ids)]
    return result.trajectories, samples


def places(ids: Any, logprobs: Any, start: int = 0) -> Iterator[tuple[int, float]]:
    """Each token with everything before it, and its log-probability, in the precision of samples."""
    before = 0
    for place, token in enumerate(ids):
        before = hash((before, int(token)))
        if place >= start:
            yield before, float(np.float32(logprobs[place - start]))


def trained_places(row: Any) -> list[tuple[int, float]]:
    logprobs = [0.0 if value is None else value for value in row.logprobs]
    return [place for place, mask in zip(places(row.token_ids, logprobs), row.loss_mask, strict=True) if mask]


@pytest.mark.parametrize("run", [run_agent, run_environment])
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_each_token_is_trained_once_with_its_own_log_probability(run: Any, seed: int) -> None:
    episode = Episode(seed)
    rows, samples = asyncio.run(run(episode))
    sampled = [list(places(prompt + ids, logprobs, len(prompt))) for prompt, ids, logprobs, _ in episode.calls]
    owners = {place: row for row in rows for place in trained_places(row)}
    trained = Counter(place for row in rows for place in trained_places(row))
    assert trained == Counter(place for own in sampled for place in own)
    counted = [row for row in rows if row.trainable and not row.is_discarded]
    kept = [place for sample in samples for place in trained_places(sample)]
    assert sorted(kept) == sorted(place for row in counted for place in trained_places(row))
    for (_, ids, _, finish), own in zip(episode.calls, sampled, strict=True):
        marks = set(re.findall(r"\[\d+\]", tokenizer().decode(ids)))
        if marks and finish != "abort":
            assert owners[own[0]].is_discarded == marks.isdisjoint(episode.added)
