"""Sub-agents of an environment: agent as tool, Graph and Swarm, each with its own trajectories."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from strands import Agent, tool
from strands.multiagent import GraphBuilder, Swarm

from strands_env.core import Action, Environment
from strands_env.core.termination import TerminationReason
from strands_env.testing import ScriptedModel, call
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
