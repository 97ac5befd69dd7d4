"""Sub-agents of an environment: agent as tool, Graph and Swarm, each with its own trajectories."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from strands import Agent, tool
from strands.hooks import AfterToolCallEvent, BeforeToolCallEvent, HookProvider
from strands.multiagent import GraphBuilder, Swarm

from strands_env.core import Action, Environment
from strands_env.core.termination import TerminationReason
from strands_env.testing import ScriptedModel, call, reply
from strands_sglang.fast_paths import FastPath

ACTION = Action(message="go")


def sub_agent(env: Environment, name: str, script: list[Any], *, trainable: bool = True) -> Agent:
    model = env.model_for(name, trainable=trainable, model_factory=lambda: ScriptedModel(script))
    return Agent(model=model, name=name, callback_handler=None)


def by_agent(result: Any) -> dict[str, tuple[bool, str]]:
    """Agent name to trainable flag and the text it sampled."""
    found = {}
    for item in result.trajectories:
        sampled = zip(item.tokens.token_ids, item.tokens.loss_mask, strict=True)
        found[item.agent_name] = item.trainable, bytes(token for token, mask in sampled if mask).decode()
    return found


def env_with(get_tools: Callable[[Environment], list[Any]], *script: Any) -> Environment:
    env = Environment(model_factory=lambda: ScriptedModel(script), reward_fn=lambda *_: 0.0)
    env.get_tools = partial(get_tools, env)  # type: ignore[method-assign]
    return env


async def test_agent_as_tool() -> None:
    env = env_with(
        lambda env: [sub_agent(env, "researcher", ["Paris"], trainable=False).as_tool()],
        *(call("researcher", input="capital?"), "It is Paris"),
    )
    await env.step(ACTION)
    result = await env.step(ACTION)  # its trajectories are its own
    assert result.termination_reason is TerminationReason.TASK_COMPLETE
    assert len(result.trajectories) == 2
    found = by_agent(result)
    assert found["researcher"] == (False, "Paris\n")
    assert found["agent"][0] is True
    assert found["agent"][1].endswith("It is Paris\n")


async def test_graph_and_swarm_inside_a_tool() -> None:
    def team_of(env: Environment) -> list[Any]:
        @tool
        async def team(task: str) -> str:
            """Ask the team."""
            builder = GraphBuilder()
            builder.add_node(sub_agent(env, "left", ["L"]), "left")
            builder.add_node(sub_agent(env, "right", ["R"]), "right")
            builder.set_execution_timeout(60)
            await builder.build().invoke_async(task)
            await Swarm([sub_agent(env, "bee", ["buzz"])]).invoke_async(task)
            return "done"

        return [team]

    result = await env_with(team_of, call("team", task="x"), "ok").step(ACTION)
    assert result.observation.final_response == "ok"
    said = {name: text for name, (_, text) in by_agent(result).items() if name != "agent"}
    assert said == {"left": "L\n", "right": "R\n", "bee": "buzz\n"}


async def test_model_of_a_sub_agent_may_be_wrapped_by_an_object_that_only_it_holds() -> None:
    class Recorder:
        def __init__(self, model: Any) -> None:
            self.stream = model.stream
            model.stream = self.recorded

        async def recorded(self, *args: Any, **kwargs: Any) -> Any:
            async for event in self.stream(*args, **kwargs):
                yield event

    def helper(env: Environment) -> list[Any]:
        model = ScriptedModel(["yes"])
        Recorder(model)
        wrapped = env.model_for("helper", model_factory=lambda: model)
        return [Agent(model=wrapped, name="helper", callback_handler=None).as_tool()]

    result = await env_with(helper, call("helper", input="?"), "ok").step(ACTION)
    assert by_agent(result)["helper"] == (True, "yes\n")


@tool
async def ping() -> str:
    """Answer."""
    return "pong"


def critic_env(script: Any, *, replies: int = 1) -> Environment:
    def critic(env: Environment) -> list[Any]:
        model = env.model_for("critic", model_factory=lambda: ScriptedModel(script))
        agent = Agent(model=model, name="critic", tools=[ping], callback_handler=None, retry_strategy=None)
        return [agent.as_tool()]

    return env_with(critic, *[call("critic", input="?")] * replies, "done")


async def test_unreachable_server_of_a_sub_agent_is_no_wrong_answer_until_its_next_call_goes_well() -> None:
    result = await critic_env([ConnectionError("gone")]).step(ACTION)
    assert (result.termination_reason, result.error.message) == (TerminationReason.CONNECTION_ERROR, "gone")
    assert result.reward is None
    result = await critic_env([ConnectionError("gone"), "fine"], replies=2).step(ACTION)
    assert result.termination_reason is TerminationReason.TASK_COMPLETE
    assert result.reward is not None


@pytest.mark.skipif(not FastPath.FLAT_LOOP.is_on, reason="the loop of the SDK is recursive")
async def test_a_turn_of_a_sub_agent_is_no_deeper_than_the_one_before() -> None:
    depths: list[int] = []

    def answer(messages: Any) -> Any:
        depths.append(len(inspect.stack(0)))
        return call("ping") if len(depths) < 5 else "enough"

    result = await critic_env(answer).step(ACTION)
    assert "enough" in str(result.observation.messages[2])
    assert len(depths) == 5
    assert len(set(depths[1:])) == 1


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_tool_of_a_sub_agent_that_exits_has_failed(is_async: bool) -> None:
    """The SDK runs it in a task, and an exit that leaves a task ends the event loop, and the evaluation with it."""

    async def quit_async() -> None:
        sys.exit(3)

    leave = tool(name="leave", description="Leave.")(quit_async if is_async else lambda: sys.exit(3))
    seen: list[Any] = []

    def answer(messages: Any) -> Any:
        seen[:] = messages[-1]["content"]
        return "enough" if "toolResult" in seen[0] else call("leave")

    def helper(env: Environment) -> list[Any]:
        return [Agent(model=ScriptedModel(answer), name="helper", tools=[leave], callback_handler=None).as_tool()]

    result = await env_with(helper, call("helper", input="?"), "done").step(ACTION)
    assert result.termination_reason is TerminationReason.TASK_COMPLETE
    assert seen[0]["toolResult"]["status"] == "error"
    assert seen[0]["toolResult"]["content"] == [{"text": "Error: the tool called sys.exit(3)"}]


@pytest.mark.parametrize("kind", [BeforeToolCallEvent, AfterToolCallEvent])
@pytest.mark.parametrize("in_background", [False, True])
async def test_a_hook_around_a_tool_that_exits_fails_the_step(kind: Any, in_background: bool) -> None:
    class Background(Environment):
        def get_tools(self) -> list[Any]:
            return [ping]

        def make_agent(self, **options: Any) -> Agent:
            if not in_background:
                return super().make_agent(**options)
            return super().make_agent(**options, background_tasks={"always": ["ping"], "agentic": []})

        def get_hooks(self) -> list[Any]:
            return [Exits()]

    class Exits(HookProvider):
        def register_hooks(self, registry: Any, **kwargs: Any) -> None:
            registry.add_callback(kind, lambda event: sys.exit(3))

    result = await Background(model_factory=lambda: ScriptedModel([call("ping"), "done", "done"])).step(ACTION)
    if in_background and kind is AfterToolCallEvent:  # the SDK makes a failed task of it
        assert result.termination_reason is TerminationReason.TASK_COMPLETE
        assert "the hook called sys.exit(3)" in str(result.observation.messages)
    else:
        assert result.termination_reason is TerminationReason.TOOL_ERROR
        assert result.error.message == "the hook called sys.exit(3)"


async def test_background_tasks_of_an_agent_that_nobody_knows_end_with_the_step() -> None:
    """An agent that a tool makes, and that does not wait for its tasks: they ran beside the reward and `cleanup`."""
    begun, order = asyncio.Event(), []

    @tool
    async def linger(first: bool) -> str:
        """Linger."""
        if first:
            begun.set()
        try:
            return await asyncio.Event().wait() or ""
        finally:
            await asyncio.sleep(0.1)  # it closes what it has opened
            order.append("linger")

    class Team(Environment):
        def get_tools(self) -> list[Any]:
            @tool
            async def ask() -> str:
                """Ask."""
                background = {"always": ["linger"], "agentic": [], "wait_for_completion": False, "max_concurrency": 1}
                both = reply("", call("linger", first=True), call("linger", first=False))
                agent = Agent(
                    model=ScriptedModel([both, "asked"]),
                    tools=[linger],
                    background_tasks=background,
                    callback_handler=None,
                )
                answer = str(await agent.invoke_async("?"))
                await asyncio.wait_for(begun.wait(), 10)
                return answer

            return [ask]

        async def get_state(self) -> None:
            order.append("state")

    env = Team(model_factory=lambda: ScriptedModel([call("ask"), "done"]), reward_fn=lambda *_: 1.0)
    result = await env.rollout(ACTION)
    assert (result.termination_reason, order) == (TerminationReason.TASK_COMPLETE, ["linger", "state"])


async def test_models_of_sub_agents_come_from_the_same_factory_within_the_same_budget() -> None:
    made: list[ScriptedModel] = []

    def factory() -> ScriptedModel:
        made.append(ScriptedModel(["done"]))
        made[-1].update_config(max_trajectory_tokens=None)
        return made[-1]

    def ask_for_a_model(env: Environment) -> list[Any]:
        env.model_for("critic")
        return []

    env = env_with(ask_for_a_model)
    env.model_factory, env.max_total_tokens = factory, 1234
    result = await env.step(ACTION)
    assert [model.config["max_trajectory_tokens"] for model in made] == [1234, 1234]
    assert [item.agent_name for item in result.trajectories] == ["agent"]  # the other one never spoke
