"""`Environment.step`: what one whole agent loop gives back, however it ends."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, MagicMock, patch

import pytest
from provider_support import add
from strands import Agent, tool
from strands.agent.conversation_manager import SlidingWindowConversationManager
from strands.hooks import AfterToolsEvent, BeforeModelCallEvent, BeforeToolCallEvent
from strands.models import Model
from strands.types.exceptions import ContextWindowOverflowException

from strands_env.core import Action, Environment, RewardFunction, RewardResult, StepResult, TaskContext
from strands_env.core.termination import Phase, TerminationReason
from strands_env.testing import ScriptedModel, call, reply
from strands_env.tools import with_limits
from strands_sglang.conversation.messages import format_tool_specs


@tool
async def broken() -> str:
    """Always fail."""
    raise OSError("disk on fire")


class ToolEnv(Environment):
    hooks: tuple[Any, ...] = ()

    def get_tools(self) -> list[Any]:
        return [add, broken]

    def get_hooks(self) -> list[Any]:
        return list(self.hooks)


def scripted(*script: Any, **options: Any) -> Callable[[], ScriptedModel]:
    return lambda: ScriptedModel(script, **options)


def endless() -> ScriptedModel:
    return ScriptedModel(lambda messages: call("add", a=len(messages), b=1))


ADD = call("add", a=1, b=2)
ACTION = Action(message="What is 1 + 2?", task_context=TaskContext(ground_truth="3"))


async def test_step_gives_messages_tokens_metrics_and_reward() -> None:
    def score(action: Action, result: StepResult) -> float:
        return float(result.observation.final_response == action.task_context.ground_truth)

    env = ToolEnv(model_factory=scripted(ADD, "3"), system_prompt="Be brief.", reward_fn=score)
    result, again = await env.step(ACTION), await env.step(ACTION)  # a fresh model each

    assert result.termination_reason is again.termination_reason is TerminationReason.TASK_COMPLETE
    assert result.error is None
    assert result.reward == RewardResult(reward=1.0)
    assert [message["role"] for message in result.observation.messages] == ["user", "assistant", "user", "assistant"]
    tokens = result.observation.tokens
    assert bytes(tokens.initial_prompt_token_ids).startswith(b"Be brief.")
    assert tokens.rollout_loss_mask[0] == 1
    assert [trajectory.agent_name for trajectory in result.trajectories] == ["agent"]
    assert result.trajectories[0].tokens == tokens
    metrics = result.observation.metrics
    assert metrics["message_count"] == 4
    assert metrics["model_calls"] == 2
    assert metrics["tool_iters"] == metrics["tool_calls"] == 1
    assert metrics["per_tool_metrics"]["add"]["calls"] == 1
    assert metrics["input_tokens"]["max"] == metrics["input_tokens"]["total"] - metrics["input_tokens"]["min"]
    assert 0 <= metrics["tool_s"] <= metrics["wall_s"]
    first, last = metrics["turns"]
    assert first["tool_s"] > 0 and last["tool_s"] == 0
    assert first["input_tokens"] < last["input_tokens"]
    total = metrics["output_tokens"]["total"]
    assert total == sum(tokens.loss_mask) == first["output_tokens"] + last["output_tokens"]
    assert StepResult.from_json(result.to_json()) == result
    tools = result.observation.tools  # as chat templates take them; one text, however many results hold it
    assert json.loads(tools)[0] == format_tool_specs([add.tool_spec])[0]
    assert [each["function"]["name"] for each in json.loads(tools)] == ["add", "broken"]
    assert again.observation.tools is tools


SAID = [{"role": "user", "content": [{"text": "hi"}]}, {"role": "assistant", "content": [{"text": "hello"}]}]


async def test_history_comes_before_the_message_and_is_neither_changed_nor_repeated() -> None:
    model = ScriptedModel(["3"])
    action = Action(message="1 + 2?", task_context=TaskContext(conversation_history=SAID))
    before = action.model_dump()
    seen = (await Environment(model_factory=lambda: model).rollout(action)).observation

    assert len(model.last_messages) == 3
    assert [message["content"][0]["text"] for message in seen.messages] == ["1 + 2?", "3"]
    assert (seen.history, seen.tools) == (None, None)
    assert action.model_dump() == before


async def test_provider_without_token_data_gives_none() -> None:
    result = await Environment(model_factory=scripted("3", token_data=False)).step(ACTION)
    assert result.observation.tokens is None
    assert result.trajectories == []
    assert result.observation.metrics["output_tokens"]["total"] > 0


@pytest.mark.parametrize(
    ("options", "reason", "calls"),
    [
        ({"max_tool_iters": 2}, TerminationReason.MAX_TOOL_ITERATIONS_REACHED, 2),
        ({"max_tool_calls": 3}, TerminationReason.MAX_TOOL_CALLS_REACHED, 3),
        ({"max_total_tokens": 300}, TerminationReason.TOKEN_BUDGET_REACHED, None),
    ],
)
async def test_limits_end_the_loop_at_a_complete_iteration(options, reason, calls):
    env = ToolEnv(model_factory=endless, reward_fn=lambda action, result: 0.0, **options)
    result = await env.step(ACTION)
    assert result.termination_reason is reason
    assert result.error is None
    assert "toolResult" in result.observation.messages[-1]["content"][0]
    assert result.reward == RewardResult(reward=0.0)  # a truncated rollout is scored
    assert calls is None or result.observation.metrics["tool_calls"] == calls


async def test_normal_ends_and_limits_do_not_warn(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="strands_env"):
        await ToolEnv(model_factory=scripted("3")).step(ACTION)
        await ToolEnv(model_factory=endless, max_tool_iters=1).step(ACTION)
    assert caplog.records == []


@pytest.mark.parametrize("before", [(), (ADD,)], ids=["first-turn", "later-turn"])
async def test_failed_model_call_keeps_what_was_sampled_and_has_no_reward(before: tuple[Any, ...]) -> None:
    env = ToolEnv(model_factory=scripted(*before, ValueError("bad weights")), reward_fn=lambda action, result: 0.0)
    result = await env.step(ACTION)
    assert result.termination_reason is TerminationReason.MODEL_ERROR
    assert result.reward is None
    assert (result.error.type, result.error.message, result.error.where) == ("ValueError", "bad weights", Phase.MODEL)
    assert "bad weights" in result.error.traceback
    assert (result.observation.tokens is not None) == bool(before)
    assert len(result.observation.messages) == 1 + 2 * len(before)


@pytest.mark.parametrize(
    ("kind", "messages", "where"),
    [
        (BeforeToolCallEvent, 2, Phase.TOOL),
        (BeforeModelCallEvent, 1, Phase.LOOP),
        (BeforeModelCallEvent, 3, Phase.LOOP),
    ],
)
async def test_failing_hook_is_an_error_of_its_place(kind: type, messages: int, where: str) -> None:
    def fail(event: Any) -> None:
        if len(event.agent.messages) == messages:
            raise LookupError("no permission")

    fail.__annotations__["event"] = kind
    env = ToolEnv(model_factory=scripted(ADD, "3"))
    env.hooks = (fail,)
    result = await env.step(ACTION)
    reason = "tool_error" if where == "tool" else "unclassified_error"
    assert (result.termination_reason, result.error.where) == (reason, where)


@pytest.mark.parametrize("error", [OSError("today"), ContextWindowOverflowException("of another agent")], ids=repr)
@pytest.mark.parametrize("where", ["model", "tools"])
async def test_failing_setup_of_a_step_is_data(where: str, error: Exception) -> None:
    def fail(*given: Any) -> Any:
        raise error

    kind = type("Broken", (Environment,), {"get_tools": fail}) if where == "tools" else Environment
    result = await kind(model_factory=fail if where == "model" else scripted("3")).step(ACTION)
    assert result.termination_reason is TerminationReason.SETUP_ERROR
    assert result.error.where is Phase.SETUP


@pytest.mark.parametrize("metrics", [lambda *counters, **named: {}["mine"], lambda *counters, **named: {1: "nameless"}])
async def test_failing_metrics_do_not_lose_the_trajectory(metrics: Any) -> None:
    env = Environment(model_factory=scripted("3"), reward_fn=lambda action, result: 1.0)
    env.compute_metrics = metrics  # type: ignore[method-assign]
    result = await env.step(ACTION)
    assert result.observation.tokens is not None
    assert result.observation.metrics["output_tokens"]["total"] > 0
    assert (result.error.type, result.reward) == ("KeyError" if "'mine'" in result.error.message else "TypeError", None)
    assert result.termination_reason is TerminationReason.UNCLASSIFIED_ERROR


async def test_cancel_signal_ends_the_loop_and_keeps_the_tokens() -> None:
    signal = threading.Event()

    def cancel(event: AfterToolsEvent) -> None:
        signal.set()

    env = ToolEnv(model_factory=endless, reward_fn=lambda action, result: 1.0)
    env.hooks = (cancel,)
    result = await env.step(ACTION, cancel_signal=signal)
    assert result.termination_reason is TerminationReason.CANCELLED
    assert result.reward is None
    assert result.observation.tokens is not None


async def test_concurrent_steps_of_one_environment_stay_apart() -> None:
    def answer(messages: list[dict[str, Any]]) -> Any:
        if len(messages) == 1:
            return call("add", a=int(messages[0]["content"][0]["text"]), b=0)
        return messages[-1]["content"][0]["toolResult"]["content"][0]["text"]

    env = ToolEnv(model_factory=lambda: ScriptedModel(answer))
    results = await asyncio.gather(*(env.step(Action(message=str(i))) for i in range(50)))
    assert [result.observation.final_response for result in results] == [str(i) for i in range(50)]


async def test_observation_has_what_an_environment_composed_in_its_step() -> None:
    class Composing(Environment):
        async def step(self, action: Action, **options: Any) -> StepResult:
            self.system_prompt = f"You are asked {action.text}."
            context = action.task_context.model_copy(update={"conversation_history": SAID})
            return await super().step(Action(message=f"Board: {action.text}", task_context=context), **options)

    model = ScriptedModel(["done"])
    seen = (await Composing(model_factory=lambda: model).rollout(Action(message="x"))).observation
    assert seen.system_prompt == "You are asked x."
    asked = [*(seen.history or ()), *seen.messages][:-1]
    texts = [message["content"][0]["text"] for message in model.last_messages]
    assert [message["content"][0]["text"] for message in asked] == texts == ["hi", "hello", "Board: x"]


def test_system_prompt_comes_from_the_class_file_unless_given(tmp_path: Path) -> None:
    (tmp_path / "prompt.md").write_text("Be concise.\n", encoding="utf-8")
    kind = type("Env", (Environment,), {"default_system_prompt_path": tmp_path / "prompt.md"})
    assert kind(model_factory=endless).system_prompt == "Be concise."
    assert kind(model_factory=endless, system_prompt="Mine.").system_prompt == "Mine."
    assert Environment(model_factory=endless).system_prompt is None


def test_wrong_options_are_refused() -> None:
    wrong = {"max_tool_iters": -1, "max_total_tokens": -5, "step_timeout": 0, "max_tool_output_chars": 0}
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=name):
            Environment(model_factory=endless, **{name: value})  # type: ignore[arg-type]


async def test_what_needs_a_running_step_says_so() -> None:
    env = Environment(model_factory=scripted("3"))
    with pytest.raises(RuntimeError, match="call it from interact"):
        await env.invoke(Agent(model=ScriptedModel(["3"]), callback_handler=None), "hi")
    with pytest.raises(RuntimeError, match="needs a running step"):
        env.model_for("critic")


async def test_verbose_prints_and_quiet_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    await Environment(model_factory=scripted("three")).step(ACTION)
    assert capsys.readouterr().out == ""
    await Environment(model_factory=scripted("three"), verbose=True).step(ACTION)
    assert "three" in capsys.readouterr().out


@patch("strands_env.core.environment.Agent")
async def test_agent_and_reward_of_users_tests_may_be_mocks(agent_class: MagicMock) -> None:
    agent = agent_class.return_value = MagicMock(invoke_async=AsyncMock())
    agent.messages = [{"role": "assistant", "content": [{"text": "answer"}]}]
    agent.event_loop_metrics = MagicMock(cycle_count=1, cycle_durations=[0.1], tool_metrics={}, agent_invocations=[])
    reward = MagicMock(compute=AsyncMock(return_value=RewardResult(reward=1.0)))
    env = Environment(model_factory=lambda: MagicMock(spec=Model), reward_fn=reward)
    result = await env.step(Action(message={"role": "user", "content": [{"text": "hello"}]}))
    assert result.termination_reason is TerminationReason.TASK_COMPLETE
    assert result.reward == RewardResult(reward=1.0)
    assert result.observation.metrics["model_latency_s"]["total"] == 0.1
    agent.invoke_async.assert_awaited_once_with([{"text": "hello"}])


@tool
async def flood() -> str:
    """Answer with a lot."""
    return "x" * 1_000_000


class Flooded(Environment):
    def get_tools(self) -> list[Any]:
        return [flood, with_limits(tool(name="own")(lambda: "x" * 1_000), max_output_chars=10)]


@pytest.mark.parametrize(("options", "most"), [({}, 101_000), ({"max_tool_output_chars": None}, 1_000_000)])
async def test_output_of_tools_is_limited_and_they_keep_limits_of_their_own(options: Any, most: int) -> None:
    env = Flooded(model_factory=scripted(reply("", call("flood"), call("own")), "done"), **options)
    flooded, own = (await env.step(ACTION)).observation.messages[2]["content"]
    assert most - 1_000 < len(flooded["toolResult"]["content"][0]["text"]) <= most
    assert "[990 characters left out]" in own["toolResult"]["content"][0]["text"]


async def test_sync_rewards_run_beside_a_full_default_pool() -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    release = threading.Event()
    stuck = loop.run_in_executor(None, release.wait, 60)
    result = await Environment(
        model_factory=scripted("done"), reward_fn=lambda action, result: 1.0, reward_timeout=30
    ).step(ACTION)
    release.set()
    await stuck
    assert result.reward == RewardResult(reward=1.0)


@pytest.mark.parametrize("before", [0, 4])
async def test_messages_that_a_conversation_manager_drops_are_kept_in_the_result(before: int) -> None:
    action = Action(message="go", task_context=TaskContext(conversation_history=SAID * before))
    env = ToolEnv(model_factory=scripted(*(call("add", a=1, b=i) for i in range(5)), "3"))
    env.get_conversation_manager = lambda: SlidingWindowConversationManager(window_size=4)  # type: ignore[method-assign]
    observation = (await env.step(action)).observation
    assert observation.final_response == "3"
    assert [message["role"] for message in observation.messages] == ["user", "assistant"] * 6
    assert observation.messages[0]["content"] == [{"text": "go"}]


@pytest.mark.parametrize(("most", "reason"), [(None, "task_complete"), (2, "max_tool_iterations_reached")])
async def test_interact_may_invoke_the_agent_itself_within_the_limits(most: int | None, reason: str) -> None:
    env = ToolEnv(model_factory=scripted(*[ADD] * 4, "3"), max_tool_iters=most)
    env.interact = lambda agent, action: agent.invoke_async(action.prompt)  # type: ignore[method-assign]
    result = await env.step(ACTION)
    assert (result.termination_reason, result.error) == (reason, None)
    assert result.observation.final_response == (None if most else "3")


async def test_an_agent_made_otherwise_runs_within_the_limits_and_other_things_fail_the_setup() -> None:
    class Own(ToolEnv):
        def make_agent(self, **options: Any) -> Agent:
            return Agent(**{**options, "tools": [add]})

    env = Own(model_factory=endless, max_tool_calls=2)
    result = await env.step(ACTION)
    assert result.termination_reason is TerminationReason.MAX_TOOL_CALLS_REACHED
    assert '"add"' in (result.observation.tools or "") and '"broken"' not in (result.observation.tools or "")

    Own.make_agent = lambda self, **options: None  # type: ignore[assignment, return-value]
    result = await env.step(ACTION)
    assert result.termination_reason is TerminationReason.SETUP_ERROR
    assert result.error is not None and "Own.make_agent() must return a strands.Agent, got None" in result.error.message


async def test_interact_that_forgets_its_result_is_a_failure_that_says_so() -> None:
    env = Environment(model_factory=scripted("3"), reward_fn=lambda *_: 1.0)
    env.interact = AsyncMock(return_value=None)  # type: ignore[method-assign]
    result = await env.step(ACTION)
    assert (result.termination_reason, result.reward) == (TerminationReason.UNCLASSIFIED_ERROR, None)
    assert "must return the AgentResult" in result.error.message


class Giving(RewardFunction):
    def __init__(self, value: Any) -> None:
        self.value = value

    async def compute(self, action: Action, step_result: StepResult) -> Any:
        return self.value


ABSTENTION = RewardResult(info={"why": "unreadable"})


@pytest.mark.parametrize("value", [0.5, True, None, ABSTENTION, "0.5", float("nan"), {"reward": 1.0}])
async def test_reward_function_that_returns_a_number_has_given_a_result_and_others_have_failed(value: Any) -> None:
    result = await ToolEnv(model_factory=scripted("3"), reward_fn=Giving(value)).step(ACTION)
    is_number = value in (0.5, True, None)
    expected = RewardResult(reward=None if value is None else float(value)) if is_number else None
    assert result.reward == (expected if is_number else value if value is ABSTENTION else None)
    assert result.termination_reason == ("task_complete" if is_number or value is ABSTENTION else "reward_error")


async def test_reward_function_cannot_change_the_record() -> None:
    def destroy(action: Action, result: StepResult) -> float:
        result.observation.messages[0]["content"].clear()
        result.observation.messages.clear()
        result.observation.metrics.clear()
        result.trajectories.clear()
        result.observation = None  # type: ignore[assignment]
        return 1.0

    result = await ToolEnv(model_factory=scripted("3"), reward_fn=destroy).step(ACTION)
    assert result.reward == RewardResult(reward=1.0)
    assert result.observation.final_response == "3"
    assert result.observation.messages[0]["content"] == [{"text": "What is 1 + 2?"}]
    assert result.observation.metrics["message_count"] == 2
    assert len(result.trajectories) == 1


async def test_exceptions_of_tools_are_results_counted_and_kept_but_not_wrong_arguments() -> None:
    script = [call("broken"), call("add", a="no number"), call("no_such_tool"), "Done."]
    result = await ToolEnv(model_factory=scripted(*script)).step(ACTION)
    assert result.termination_reason is TerminationReason.TASK_COMPLETE
    assert "disk on fire" in str(result.observation.messages[2])
    assert result.observation.metrics["per_tool_metrics"]["broken"]["errors"] == 1
    assert result.observation.metrics["tool_exceptions"] == 1
    [record] = result.tool_errors
    assert (record.tool, record.error.type, record.error.message) == ("broken", "OSError", "disk on fire")
    assert "in broken" in record.error.traceback
    assert StepResult.from_json(result.to_json()).tool_errors == [record]
