"""Random episodes of teams on one model: every path has the right agent, role and parent, and no token is lost.

Agents ask sub-agents (in the background too), agents as tools, members of a graph in a tool, tools that ask a model and
judges in hooks, before their own first call too, down to two levels; plug-ins inject context, context managers
summarise, and so does the program between its requests. All of them may have one name. The truth is in no reply: each
agent's system prompt says its path, as in `main.sub2.tool5`, and a recorder in the client reads it in the prompt; a
summary belongs to the agent whose loop was about to call.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import re
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from provider_support import Replay, completion, make_agent, tokenizer
from strands import Agent, tool
from strands.agent.conversation_manager.compression.context_compression import generate_summary
from strands.hooks import AfterModelCallEvent, BeforeInvocationEvent, BeforeModelCallEvent, MessageAddedEvent
from strands.multiagent import GraphBuilder
from strands.types.exceptions import ContextWindowOverflowException, EventLoopException, MaxTokensReachedException
from strands.vended_plugins.context_injector import ContextInjector
from strands.vended_tools.subagent import make_subagent

from strands_sglang import SGLangModel

ROLES = {"sub": "subagent", "team": "subagent", "expert": "subagent", "tool": "tool"}
ROLES |= {"judge": "summary", "summary": "summary"}
ARGUMENTS = {
    "look": ("what", ""), "subagent": ("instructions", "sub"), "ask": ("who", "tool"), "team": ("who", "team"),
    "expert": ("input", ""),
}  # fmt: skip
"""Tools, each with its argument and the name of who is asked."""
JUDGED = (BeforeInvocationEvent, MessageAddedEvent, BeforeModelCallEvent, AfterModelCallEvent)
CUT = (
    MaxTokensReachedException,
    ContextWindowOverflowException,
    EventLoopException,
)  # the last: of a judge
_loop_of: ContextVar[str] = ContextVar("loop_of")


def path_of(agent: Any) -> str:
    """The path of an agent, by its system prompt."""
    found = re.search(r"I am ([\w.]+)!", agent.system_prompt)
    assert found is not None
    return found[1]


@dataclass
class Team:
    """An episode, and what was recorded of it."""

    rng: random.Random
    background: bool
    compaction: bool
    client: Replay = field(init=False)
    model: SGLangModel = field(init=False)
    calls: list[tuple[list[int], list[int]]] = field(default_factory=list)
    askers: list[str] = field(default_factory=list)
    """Who asked, by call: the path of an agent, or that of the agent whose summary it is with `.summary`."""
    broken: set[str] = field(default_factory=set)
    """Agents that a judge broke by failing."""
    numbers: Any = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.client = Replay([self.answer], cycle=True)
        limits = {"context_window_limit": 4000} if self.compaction else {}
        policy: Any = self.rng.choice(["keep", "rerender"])
        self.model = SGLangModel(tokenizer=tokenizer(), client=self.client, injected_context=policy, **limits)

    def answer(self, prompt: list[int], fields: Any) -> Any:
        found = re.match(r"<\|im_start\|>system\nI am ([\w.]+)!", tokenizer().decode(prompt))
        asker = found[1] if found else f"{_loop_of.get()}.summary"
        text = f"{len(self.calls)} is what I say. "  # no two samples are equal
        if len(self.calls) < 24 and self.rng.random() < 0.7:
            text += "".join(self.random_call(asker) for _ in range(self.rng.randint(1, 2)))
        reply = completion(text, split=self.rng.random() < 0.3, stop=self.rng.random() < 0.97)
        self.calls.append((prompt, list(reply.ids)[: fields["sampling_params"].get("max_new_tokens")]))
        self.askers.append(asker)
        return reply

    def random_call(self, asker: str) -> str:
        kinds = ["look", "ask"] if asker.count(".") >= 2 else ["look", "subagent", "subagent", "ask", "team", "expert"]
        kind = self.rng.choice(kinds)
        argument, child = ARGUMENTS[kind]
        arguments = {argument: f"I am {asker}.{child}{next(self.numbers)}!", "task": "work"}
        return f"<tool_call>{json.dumps({'name': kind, 'arguments': arguments})}</tool_call>"

    def agent(self, system_prompt: str, **options: Any) -> Agent:
        """An agent that may ask others."""
        path = re.search(r"I am ([\w.]+)!", system_prompt)[1]  # type: ignore[index]
        tools: list[Any] = [self.look, self.ask]
        if path.count(".") < 2:
            tools += [make_subagent(builder=lambda spec: self.agent(spec.instructions)), self.team]
            expert = make_agent(self.model, tools=[], system_prompt=f"I am {path}.expert{next(self.numbers)}!")
            tools.append(expert.as_tool(name="expert"))
        if self.background:
            options["background_tasks"] = {"always": ["subagent"] if path.count(".") < 2 else [], "agentic": []}
        if self.compaction:
            options["context_manager"] = "auto"
        trigger: Any = self.rng.choice(["userTurn", "everyTurn"])
        injector = ContextInjector(lambda _: f"note {next(self.numbers)}", name="notes", trigger=trigger)
        agent = make_agent(self.model, tools=tools, system_prompt=system_prompt, plugins=[injector], **options)
        agent.add_hook(lambda event: _loop_of.set(path) and None, BeforeModelCallEvent, order=-1000)
        for event in JUDGED:
            agent.add_hook(self.judge, event)
        agent.add_hook(self.maybe_retry, AfterModelCallEvent)
        return agent

    def member(self, system_prompt: str) -> Agent:
        """An agent that asks nobody but judges."""
        return make_agent(self.model, tools=[self.look], system_prompt=system_prompt, hooks=[self.judge_the_start])

    async def judge_the_start(self, event: BeforeInvocationEvent) -> None:
        await self.judge(event)

    async def judge(self, event: Any) -> None:
        if self.rng.random() < 0.07:
            path = f"{path_of(event.agent)}.judge{next(self.numbers)}"
            judge = make_agent(self.model, tools=[self.look], system_prompt=f"I am {path}!")
            try:
                if self.rng.random() < 0.5:
                    await judge.invoke_async("good?")
                else:
                    judge("good?")  # in a thread of its own
            except CUT:
                self.broken.add(path_of(event.agent))
                raise

    def maybe_retry(self, event: AfterModelCallEvent) -> None:
        event.retry = event.exception is None and self.rng.random() < 0.05

    @property
    def look(self) -> Any:
        @tool
        def look(what: str) -> str:
            """Look.

            Args:
                what: What.
            """
            return "word " * self.rng.choice([1, 10, 200])

        return look

    @property
    def ask(self) -> Any:
        @tool
        async def ask(who: str) -> str:
            """Ask a model.

            Args:
                who: Whom.
            """
            return str(await make_agent(self.model, tools=[], system_prompt=who).invoke_async("what?"))

        return ask

    @property
    def team(self) -> Any:
        @tool
        async def team(who: str) -> str:
            """Ask a team.

            Args:
                who: Whom.
            """
            builder = GraphBuilder()
            builder.add_node(self.member(who), "one")
            builder.add_node(self.member(who.replace("!", "b!")), "two")
            builder.set_execution_timeout(60)
            return str(await builder.build().invoke_async("work"))

        return team


async def run(seed: int, background: bool, compaction: bool) -> Team:
    """An episode of several user turns."""
    team = Team(random.Random(seed), background, compaction)
    main = team.agent("I am main!")
    for number in range(team.rng.randint(1, 3)):
        if team.rng.random() < 0.3:
            _loop_of.set("main")
            await generate_summary([{"role": "user", "content": [{"text": f"part {number}"}]}], team.model)
        with contextlib.suppress(*CUT):
            await main.invoke_async(f"request {number}", limits={"turns": 6})
    return team


def assert_each_token_is_trained_once_and_every_path_is_whose_it_is(team: Team) -> None:
    rows = team.model.trajectories
    ids, masks = [row.token_ids for row in rows], [row.loss_mask for row in rows]
    askers: dict[int, set[str]] = {}
    for (prompt, sampled), asker in zip(team.calls, team.askers, strict=True):
        start, whole = len(prompt), prompt + sampled
        held = [place for place, row in enumerate(ids) if row[: len(whole)] == whole]
        trained = [masks[place][start : len(whole)] for place in held]
        assert sorted(trained) == [[0] * len(sampled)] * (len(held) - 1) + [[1] * len(sampled)]
        for place in held:
            askers.setdefault(place, set()).add(asker)
    assert sum(map(sum, masks)) == sum(len(sampled) for _, sampled in team.calls)
    whose = [min(askers[place]) for place in range(len(rows))]
    assert all(len(names) == 1 for names in askers.values())
    names = {row.agent_id: name for row, name in zip(rows, whose, strict=True)}
    for row, name in zip(rows, whose, strict=True):
        outer, _, last = name.rpartition(".")
        if name == "main.summary" and "main" not in team.askers:  # a call by nobody is a main one until an agent calls
            assert (row.role, row.parent, row.agent_id) == ("main", None, None)
            continue
        assert row.role == ROLES.get(re.sub(r"\d+b?$", "", last), "main"), name
        assert row.trainable == (row.role in ("main", "subagent"))
        assert (row.agent_id is None) == (last == "summary")
        assert (row.parent is None) == (outer == "")
        # An invocation that a judge breaks before its agent's first call has no row of its own, and each judge of it,
        # one that was asked after it broke as well, has a parent that no row names.
        unnamed = outer in team.broken and row.parent not in names
        assert names.get(row.parent) == outer or row.parent is None or unnamed
    named = {name for name in whose if not name.endswith(".summary")}
    assert len(names.keys() - {None}) == len(named)  # each agent has one identity


@settings(max_examples=24, deadline=None)
@given(seed=st.integers(0, 2**32), background=st.booleans(), compaction=st.booleans())
def test_every_path_of_a_team_is_whose_it_is_and_no_token_is_lost(
    seed: int, background: bool, compaction: bool
) -> None:
    team = asyncio.run(run(seed, background, compaction))
    assert_each_token_is_trained_once_and_every_path_is_whose_it_is(team)
