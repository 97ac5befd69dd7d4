"""Environments over `SGLangModel`: exact tokens, branches, budgets and parse errors reach the step result."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from provider_support import Replay, add, call, completion, make_agent, tokenizer
from strands import Agent, tool
from strands.hooks import AfterModelCallEvent, BeforeInvocationEvent

from strands_env.core import Action, Environment, StepResult
from strands_env.core.models import sglang_model_factory
from strands_env.core.termination import TerminationReason
from strands_env.core.types import WeightVersionSpan

ACTION = Action(message="What is 1 + 2?")


class AddEnv(Environment):
    hooks: tuple[Any, ...] = ()

    def get_tools(self) -> list[Any]:
        return [add]

    def get_hooks(self) -> list[Any]:
        return list(self.hooks)


def env_over(*script: Any, env_options: dict[str, Any] | None = None, **options: Any) -> tuple[AddEnv, Replay]:
    client = Replay(list(script))
    options.setdefault("sampling_params", {"max_new_tokens": 200})
    factory = sglang_model_factory(tokenizer=tokenizer(), client=client, **options)
    return AddEnv(model_factory=factory, **(env_options or {})), client


async def test_step_carries_the_exact_tokens() -> None:
    env, client = env_over(completion(call(1, 2), version="7", cached=0), completion("3", version="8", cached=5))
    result = await env.step(ACTION)
    tokens = result.observation.tokens
    assert tokens.token_ids[: tokens.prompt_length] == client.prompts[0]
    assert tokens.token_ids[: len(client.prompts[1])] == client.prompts[1]
    assert [is_output for is_output, _ in tokens.segment_info] == [False, True, False, True]
    assert [version.version for version in tokens.weight_versions] == ["7", "8"]
    assert isinstance(tokens.weight_versions[0], WeightVersionSpan)
    assert set(tokens.logprobs[: tokens.prompt_length]) == {None}
    assert None not in tokens.rollout_logprobs
    assert result.observation.metrics["cache_read_input_tokens"]["total"] == 5
    assert [(item.agent_name, item.finish_reason) for item in result.trajectories] == [("agent", "stop")]
    assert result.trajectories[0].tokens is tokens
    assert result.main_trajectory is result.trajectories[0]
    assert StepResult.from_json(result.to_json()) == result


async def test_discarded_sample_is_a_trajectory_of_its_own() -> None:
    retried = False

    def retry(event: AfterModelCallEvent) -> None:
        nonlocal retried
        if not retried:
            retried = event.retry = True

    env, _ = env_over("wrong", "right")
    env.hooks = (retry,)
    result = await env.step(ACTION)
    assert [item.is_discarded for item in result.trajectories] == [False, True]
    assert [item.is_main for item in result.trajectories] == [True, False]
    assert result.observation.tokens == result.trajectories[0].tokens
    assert result.observation.final_response == "right"


async def test_malformed_call_is_counted_and_answered() -> None:
    broken = "<tool_call>\n{not json}\n</tool_call>"
    env, _ = env_over(broken, "sorry")
    result = await env.step(ACTION)
    assert result.termination_reason is TerminationReason.TASK_COMPLETE
    assert result.observation.metrics["parse_errors"] == 1
    assert "toolResult" in result.observation.messages[2]["content"][0]


async def test_sampling_params_are_not_changed_and_not_shared() -> None:
    params = {"max_new_tokens": 64, "temperature": 0.5}
    env, client = env_over("3", "4", sampling_params=params)
    await env.step(ACTION)
    assert params == {"max_new_tokens": 64, "temperature": 0.5}
    params["temperature"] = 2.0
    await env.step(ACTION)
    assert [request.fields["sampling_params"]["temperature"] for request in client.requests] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"sampling_params": {"max_new_tokens": 3}}, TerminationReason.MAX_TOKENS_REACHED),
        ({"max_sampled_tokens": 3}, TerminationReason.TOKEN_BUDGET_REACHED),
        ({"sampling_params": {"max_new_tokens": 3}, "max_sampled_tokens": 4}, TerminationReason.MAX_TOKENS_REACHED),
        ({"sampling_params": {}, "max_trajectory_tokens": 3}, TerminationReason.TOKEN_BUDGET_REACHED),
        ({"max_total_tokens": 3}, TerminationReason.TOKEN_BUDGET_REACHED),
        ({"context_window_limit": 5}, TerminationReason.CONTEXT_WINDOW_OVERFLOW),
    ],
)
async def test_a_cut_reply_has_the_reason_of_what_cut_it(options: dict[str, Any], reason: TerminationReason) -> None:
    """Bounds on whole sequences are given from the end of the prompt on."""
    probe, client = env_over("probe")
    await probe.step(ACTION)
    whole = ("max_trajectory_tokens", "context_window_limit", "max_total_tokens")
    prompt = len(client.prompts[0])
    given = {name: value + prompt if name in whole else value for name, value in options.items()}
    if "max_total_tokens" in given:  # the environment's, for each model
        given = {"env_options": given}
    env, _ = env_over(lambda _, fields: [5] * fields["sampling_params"]["max_new_tokens"], **given)
    env_cut = await env.step(ACTION)
    assert env_cut.termination_reason is TerminationReason.TASK_COMPLETE  # a stop, though as long as it may be
    env, _ = env_over(completion("one two three four", stop=False), **given)
    result = await env.step(ACTION)
    assert sum(result.observation.tokens.loss_mask) == 3
    assert (result.termination_reason, result.error) == (reason, None)


async def test_a_step_waits_until_a_sub_agent_in_the_background_has_ended() -> None:
    """The SDK takes it for ended once its event loop is asked to cancel it; its last answer is in no history then."""
    has_sampled, order = asyncio.Event(), []

    async def judge(event: AfterModelCallEvent) -> None:
        has_sampled.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.3)  # it closes what it has opened
            order.append("sub-agent")

    class Background(Environment):
        def get_tools(self) -> list[Any]:
            @tool
            async def ask(question: str) -> str:
                """Ask."""
                agent = make_agent(self.model_for("asked"), tools=[add], system_prompt="Be asked.", hooks=[judge])
                return str(await agent.invoke_async(question))

            return [ask]

        def make_agent(self, **options: Any) -> Agent:
            background = {"always": ["ask"], "agentic": [], "wait_for_completion": False}
            return super().make_agent(**options, background_tasks=background)

        async def get_state(self) -> None:
            order.append("state")

    async def answer(ids: list[int], fields: Any) -> Any:
        if "Be asked." in tokenizer().decode(ids):
            return completion("Nobody reads this.")
        if len(client.prompts) == 1:
            return completion('<tool_call>{"name": "ask", "arguments": {"question": "?"}}</tool_call>')
        await asyncio.wait_for(has_sampled.wait(), 10)
        return completion("Done.")

    client = Replay([answer], cycle=True)
    env = Background(model_factory=sglang_model_factory(tokenizer=tokenizer(), client=client), reward_fn=lambda *_: 1.0)
    result = await env.rollout(ACTION)
    assert (result.termination_reason, order) == (TerminationReason.TASK_COMPLETE, ["sub-agent", "state"])
    assert {path.agent_name: path.is_discarded for path in result.trajectories} == {"agent": False, "asked": True}


async def test_a_guard_of_a_model_made_for_an_agent_is_not_that_agent_where_the_agent_never_samples() -> None:
    async def refuse(event: BeforeInvocationEvent) -> None:
        event.cancel = str(await make_agent(event.agent.model, tools=[], name="guard").invoke_async("good?"))

    class Guarded(Environment):
        def get_tools(self) -> list[Any]:
            @tool
            async def ask(question: str) -> str:
                """Ask."""
                critic = make_agent(self.model_for("critic"), name="critic", hooks=[refuse])
                return str(await critic.invoke_async(question))

            return [ask]

    asked = '<tool_call>{"name": "ask", "arguments": {"question": "?"}}</tool_call>'
    client = Replay([completion(asked), completion("No."), completion("Done.")])
    result = await Guarded(model_factory=sglang_model_factory(tokenizer=tokenizer(), client=client)).rollout(ACTION)
    assert result.termination_reason is TerminationReason.TASK_COMPLETE
    found = [(path.agent_name, path.role, path.trainable) for path in result.trajectories]
    assert found == [("agent", "main", True), ("critic", "summary", False)]
