"""Who sampled what: role, parent and `trainable` of every path, by facts that the SDK hands over."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any

import pydantic
import pytest
from provider_support import Replay, add, after, call, make, make_agent, tokenizer
from strands import Agent, tool
from strands.agent.conversation_manager import SummarizingConversationManager
from strands.agent.conversation_manager.compression.context_compression import generate_summary
from strands.hooks import (
    AfterInvocationEvent,
    BeforeInvocationEvent,
    BeforeModelCallEvent,
    HookOrder,
    MessageAddedEvent,
)
from strands.middleware import InvokeModelStage
from strands.multiagent import GraphBuilder
from strands.types.tools import ToolContext
from strands.vended_tools.swarm import make_swarm

from strands_env.commands.display import summary_lines
from strands_env.core import Action, Environment, Role, StepResult, TerminationReason, Trajectory
from strands_env.eval import EvalSample, summarize
from strands_env.eval.metrics import ScoreTable
from strands_env.training import samples_from_model, samples_from_step
from strands_sglang import SGLangModel
from strands_sglang.conversation import TurnRequest

GO = Action(message="go")


def calling(name: str, **arguments: Any) -> str:
    return "<tool_call>" + json.dumps({"name": name, "arguments": arguments}) + "</tool_call>"


@tool(context="tool_context")
async def ask(question: str, tool_context: ToolContext) -> str:
    """Ask a model.

    Args:
        question: What.
        tool_context: The SDK's.
    """
    return str(
        await Agent(model=tool_context.agent.model, callback_handler=None, name="analyst").invoke_async(question)
    )


@tool(context="tool_context")
def delegate(task: str, tool_context: ToolContext) -> str:
    """Ask an agent with tools, in a thread.

    Args:
        task: What.
        tool_context: The SDK's.
    """
    return str(make_agent(tool_context.agent.model, name="worker")(task))


def sampled_text(path: Trajectory) -> str:
    return tokenizer().decode([token for token, mask in zip(path.token_ids, path.loss_mask, strict=True) if mask])


def described(paths: list[Trajectory]) -> dict[str, tuple[str | None, str, str | None]]:
    """Agent name, role and name of the parent, by the last answer."""
    names = {path.agent_id: path.agent_name for path in paths}
    return {
        sampled_text(path).replace("<|im_end|>", "\n").split()[-1]: (
            path.agent_name,
            str(path.role),
            names[path.parent] if path.parent else None,
        )
        for path in paths
    }


async def test_a_structured_answer_is_the_agents_own_unless_a_tool_asks_for_it() -> None:
    class Answer(pydantic.BaseModel):
        number: int

    @tool(context="tool_context")
    async def rate(tool_context: ToolContext) -> str:
        """Rate."""
        messages = [{"role": "user", "content": [{"text": "rate"}]}]
        return str([event async for event in tool_context.agent.model.structured_output(Answer, messages)])

    model, _ = make([calling("rate"), '{"number": 1}', "done", '{"number": 2}'])
    agent = make_agent(model, name="boss", tools=[rate])
    await agent.invoke_async("go")
    with pytest.warns(DeprecationWarning):
        await agent.structured_output_async(Answer, "number?")
    parent = model.trajectories[1].agent_id
    assert [(path.role, path.parent, path.trainable) for path in model.trajectories] == [
        ("tool", parent, False), ("main", None, True), ("main", None, True),
    ]  # fmt: skip


async def test_an_agent_with_tools_of_its_own_inside_a_function_is_an_agent() -> None:
    model, _ = make([calling("delegate", task="q"), call(1, 2), "worked", "done"])
    await make_agent(model, name="boss", tools=[delegate]).invoke_async("go")
    assert described(model.trajectories)["worked"] == ("worker", "subagent", "boss")


async def test_members_of_a_swarm_are_agents_and_none_works_for_another_member() -> None:
    members = [{"name": "one", "instructions": "a"}, {"name": "two", "instructions": "b"}]
    handoff = calling("handoff_to_agent", agent_name="two", message="q")
    model, _ = make([calling("swarm", task="q", agents=members), handoff, "passed", "second", "done"])
    await make_agent(model, name="boss", tools=[make_swarm()]).invoke_async("go")
    found = described(model.trajectories)
    assert {name: (role, parent) for name, role, parent in found.values()} == {
        "boss": ("main", None), "one": ("subagent", "boss"), "two": ("subagent", "boss"),
    }  # fmt: skip


async def test_what_a_plug_in_begins_after_the_loop_is_a_summary() -> None:
    question: Any = [{"role": "user", "content": [{"text": "x"}]}]
    begun: list[Any] = []

    async def ask() -> None:
        assert [event async for event in model.stream(question)]

    model, _ = make(["answer", "facts"])
    agent = make_agent(model, name="boss")
    as_memory_does = HookOrder.SDK_LAST
    agent.add_hook(lambda _: begun.append(asyncio.create_task(ask())), AfterInvocationEvent, order=as_memory_does)
    await agent.invoke_async("go")
    await asyncio.gather(*begun)
    boss = model.trajectories[0].agent_id
    assert {sampled_text(path).partition("<")[0]: (path.role, path.parent) for path in model.trajectories} == {
        "answer": ("main", None), "facts": ("summary", boss),
    }  # fmt: skip


class Verdict(pydantic.BaseModel):
    yes: int


QUESTION: Any = [{"role": "user", "content": [{"text": "x"}]}]
ASKED: dict[str, Callable[[Any], Any]] = {
    "an agent": lambda model: make_agent(model, name="judge").invoke_async("good?"),
    "an agent in a thread": lambda model: asyncio.to_thread(make_agent(model, name="judge"), "good?"),
    "the model": lambda model: generate_summary(QUESTION, model),
    "the model, for a structure": lambda model: anext(model.structured_output(Verdict, QUESTION)),
}
HOOKS = (BeforeInvocationEvent, MessageAddedEvent, BeforeModelCallEvent, InvokeModelStage.Input)


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: getattr(hook, "__name__", "middleware"))
@pytest.mark.parametrize("asked", ASKED)
async def test_what_a_hook_of_a_plain_agent_asks_before_its_first_call_is_not_the_agents(hook: Any, asked: str) -> None:
    todo = [ASKED[asked]]

    async def ask(event: Any) -> Any:
        while todo:
            await todo.pop()(event.agent.model)
        return event

    model, _ = make(['{"yes": 1}', "done", '{"yes": 2}', "more", "next"])
    agent = make_agent(model, name="boss")
    add_hook = agent.add_middleware if hook is InvokeModelStage.Input else lambda stage, ask: agent.add_hook(ask, stage)
    add_hook(hook, ask)
    await agent.invoke_async("go")
    todo.append(ASKED[asked])
    await agent.invoke_async("on")
    await make_agent(model, name="after").invoke_async("go")
    name = "judge" if "agent" in asked else None
    assert described(model.trajectories) == {
        "1}": (name, "summary", "boss"), "2}": (name, "summary", "boss"), "more": ("boss", "main", None),
        "next": ("after", "main", None),
    }  # fmt: skip
    assert [sample.agent_name for sample in samples_from_model(model)] == ["boss", "after"]


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("event", ["repair", "direct call", "repair that fails"])
async def test_what_a_hook_asks_for_a_message_outside_of_a_loop_is_not_the_agents(asked: str, event: str) -> None:
    is_broken, kept = event != "direct call", []

    async def ask(event: MessageAddedEvent) -> None:
        kept.append(event)
        if len(event.agent.messages) == 2 and is_broken:  # its tool never runs, and the SDK repairs the history later
            raise RuntimeError("broken")
        if len(event.agent.messages) == 3:
            await ASKED[asked](event.agent.model)
            if not is_that_all:
                kept.clear()
                raise RuntimeError("broken again")

    is_that_all = event != "repair that fails"
    first = calling("add", a=1, b=2) if is_broken else "done"
    model, _ = make([first, '{"yes": 2}', *["more"] * is_that_all, "next"])
    boss = make_agent(model, name="boss", hooks=[ask])
    if is_broken:
        with pytest.raises(Exception, match="broken"):
            await boss.invoke_async("go")
        with contextlib.nullcontext() if is_that_all else pytest.raises(Exception, match="broken again"):
            await boss.invoke_async("on")
    else:
        await boss.invoke_async("go")
        await asyncio.to_thread(boss.tool.add, a=1, b=2)
        await boss.invoke_async("on")
    await make_agent(model, name="after").invoke_async("go")
    name = "judge" if "agent" in asked else None
    found = described(model.trajectories)
    assert (found["2}"], found["next"]) == ((name, "summary", "boss"), ("after", "main", None))


async def test_a_guard_that_lets_its_agent_say_nothing_is_not_the_agent_and_the_next_one_is() -> None:
    async def refuse(event: BeforeInvocationEvent) -> None:
        await make_agent(event.agent.model, name="guard").invoke_async("good?")
        event.cancel = "no"

    model, _ = make(["bad", "fine", "done"])
    await make_agent(model, name="boss", hooks=[refuse]).invoke_async("go")
    for name in ("planner", "worker"):
        assert model.config.get("model_id") is None  # by which the SDK shows that an agent begins something
        await make_agent(model, name=name).invoke_async("go")
    assert [(path.agent_name, path.role) for path in model.trajectories] == [
        ("guard", "summary"), ("planner", "main"), ("worker", "main"),
    ]  # fmt: skip


@pytest.mark.parametrize("when", ["before", "between"])
async def test_what_a_program_asks_beside_its_agent_is_not_the_agents(when: str) -> None:
    model, _ = make(["short", "done", "more"] if when == "before" else ["done", "short", "more"])
    history = [message for text in "abcdef" for message in after(text)[:2]]
    manager = SummarizingConversationManager(preserve_recent_messages=1)
    agent = make_agent(model, name="boss", messages=history, conversation_manager=manager, context_manager=None)
    if when == "between":
        await agent.invoke_async("go")
    agent.conversation_manager.reduce_context(agent)
    for _ in range(2 if when == "before" else 1):
        await agent.invoke_async("go on")
    boss = model.token_manager and model.forest.current.agent_id
    assert {sampled_text(path).split("<")[0]: (path.role, path.parent, path.trainable) for path in model.trajectories}[
        "short"
    ] == ("summary", boss, False)
    assert {sample.agent_name for sample in samples_from_model(model)} == {"boss"}


async def test_tools_of_a_restored_history_run_before_the_first_call_of_an_agent_that_is_watched() -> None:
    use = {"toolUseId": "t", "name": "delegate", "input": {"task": "q"}}
    history: Any = [QUESTION[0], {"role": "assistant", "content": [{"toolUse": use}]}]
    model, _ = make(["worked", "done"])
    agent = make_agent(model, name="boss", tools=[delegate], messages=history)
    model.watch_agent(agent)
    await agent.invoke_async(None)
    assert described(model.trajectories) == {"worked": ("worker", "subagent", "boss"), "done": ("boss", "main", None)}


async def test_a_model_that_no_agent_calls_is_the_programs() -> None:
    model, _ = make(["one", "two"])
    for question in ("x", "y"):
        assert [event async for event in model.stream([{"role": "user", "content": [{"text": question}]}])]
    assert model.config.get("model_id") is None
    assert [(path.role, path.trainable) for path in model.trajectories] == [("main", True)] * 2


async def test_nodes_of_a_graph_and_a_program_work_for_nobody() -> None:
    model, _ = make(["left", "right", "after"])
    builder = GraphBuilder()
    builder.add_node(make_agent(model, name="a"), "a")
    builder.add_node(make_agent(model, name="b"), "b")
    builder.add_edge("a", "b")
    await builder.build().invoke_async("go")
    await model.conversation.turn(TurnRequest(messages=[{"role": "user", "content": [{"text": "hi"}]}]))
    assert [(path.agent_name, path.role, path.parent) for path in model.trajectories] == [
        ("a", "main", None), ("b", "main", None), (None, "main", None),
    ]  # fmt: skip


async def test_a_path_never_mixes_roles() -> None:
    @tool(context="tool_context")
    async def again(tool_context: ToolContext) -> str:
        """Go on with the conversation elsewhere."""
        history = [message for message in tool_context.agent.messages[:2]]
        return str(await make_agent(model, name="boss", tools=[again], messages=history).invoke_async("and?"))

    model, _ = make(["hello", calling("again"), "inner", "done"])
    agent = make_agent(model, name="boss", tools=[again])
    await agent.invoke_async("go")
    await agent.invoke_async("go on")
    inner = next(path for path in model.trajectories if "inner" in sampled_text(path))
    assert (inner.role, sampled_text(inner)) == (Role.SUBAGENT, "inner<|im_end|>")


# ---- environments ----------------------------------------------------------------------------------------------------


def make_env(script: list[Any], get_tools: Callable[[Environment], list[Any]], **methods: Any) -> Environment:
    kind = type("Env", (Environment,), {"get_tools": get_tools, **methods})
    client = Replay(script)
    factory = lambda: SGLangModel(tokenizer=tokenizer(), client=client)  # noqa: E731 - one model for each agent
    env: Environment = kind(model_factory=factory, reward_fn=lambda *_: 1.0)
    return env


def asking(name: str = "helper", **options: Any) -> Callable[[Environment], list[Any]]:
    def get_tools(env: Environment) -> list[Any]:
        @tool
        async def helper(task: str) -> str:
            """Ask a helper.

            Args:
                task: What.
            """
            model = env.model_for(name, **options)
            return str(await make_agent(model, tools=[ask]).invoke_async(task))

        return [helper, ask]

    return get_tools


HELPED = [calling("helper", task="q"), calling("ask", question="q"), "read", "helped", "done"]


async def test_an_environment_labels_the_paths_of_all_its_models() -> None:
    result = await make_env(HELPED, asking()).step(GO)
    assert [(p.agent_name, p.agent_id, p.role, p.parent, p.trainable) for p in result.trajectories] == [
        ("agent", "agent-0", "main", None, True),
        ("helper", "agent-1", "tool", "agent-2", False),
        ("helper", "agent-2", "subagent", "agent-0", True),
    ]
    untrained = result.observation.metrics["untrained_tokens"]
    assert untrained == sum(result.trajectories[1].loss_mask) > 0
    entry = EvalSample(prompt_id="p", index=0, action=GO, step_result=result)
    lines = summary_lines(summarize(ScoreTable.from_results({"p": [entry]})), title="run")
    assert any(f"; {untrained} sampled and not meant to be trained" in line for line in lines)
    assert StepResult.from_json(result.to_json()).trajectories == result.trajectories
    samples = samples_from_step(result)
    facts = [(s.agent_name, s.agent_id, s.role, s.parent) for s in samples]
    assert facts == [(p.agent_name, p.agent_id, p.role, p.parent) for p in result.trajectories[::2]]


async def test_the_agent_of_an_environment_that_a_tool_runs_is_a_main_one() -> None:
    inner: list[StepResult] = []

    def get_tools(env: Environment) -> list[Any]:
        @tool
        async def practise() -> str:
            """Run another episode."""
            inner.append(await make_env(["inside"], lambda env: []).step(GO))
            return "done"

        return [practise]

    result = await make_env([calling("practise"), "done"], get_tools).step(GO)
    assert [path.role for path in (*result.trajectories, *inner[0].trajectories)] == ["main", "main"]


async def test_a_role_that_the_environment_gives_and_a_decision_of_its_own() -> None:
    def is_trained(self: Environment, trajectory: Trajectory) -> bool:
        return trajectory.role is not Role.MAIN

    result = await make_env(HELPED, asking(role="tool"), is_trained=is_trained).step(GO)
    assert [(path.role, path.trainable) for path in result.trajectories] == [
        ("main", False), ("tool", True), ("tool", True),
    ]  # fmt: skip


async def test_an_unknown_role_fails_the_step_also_in_a_tool() -> None:
    result = await make_env([calling("helper", task="q"), "done"], asking(role="judge")).step(GO)
    assert result.termination_reason is TerminationReason.TOOL_ERROR and result.reward is None
    assert result.error is not None
    assert result.error.message == "unknown role 'judge': expected one of main, subagent, summary, tool"


@pytest.mark.parametrize(
    ("is_trained", "message"),
    [
        (lambda *_: 1 / 0, "is_trained() of the main 'agent' failed: ZeroDivisionError: division by zero"),
        (lambda *_: "yes", "is_trained() of the main 'agent' must return True or False, got 'yes'"),
    ],
    ids=["raises", "text"],
)
async def test_a_decision_that_fails_fails_the_step(is_trained: Any, message: str) -> None:
    result = await make_env(["done"], lambda env: [add], is_trained=is_trained).step(GO)
    assert result.termination_reason is TerminationReason.UNCLASSIFIED_ERROR and result.reward is None
    assert result.error is not None and result.error.message == message
    assert len(result.trajectories) == 1
