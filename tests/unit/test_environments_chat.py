"""ChatEnv: conversations with simulated users, and whose tokens are whose."""

from __future__ import annotations

from typing import Any

import pytest

from strands_env.core import Action, TaskContext, TerminationReason
from strands_env.environments import ChatEnv, ModelUser, ScriptedUser, SimulatedUser
from strands_env.testing import ScriptedModel, call, reply
from strands_env.tools import calculator


def texts(result: Any) -> list[tuple[str, str]]:
    return [
        (message["role"], block["text"])
        for message in result.observation.messages
        for block in message["content"]
        if "text" in block
    ]


def decoded(trajectory: Any, *, sampled: bool) -> str:
    tokens = trajectory.tokens
    return bytes(
        token for token, mask in zip(tokens.token_ids, tokens.output_mask, strict=True) if mask is sampled
    ).decode()


async def test_scripted_user_speaks_in_turn_and_all_is_one_trajectory() -> None:
    env = ChatEnv(model_factory=lambda: ScriptedModel(["one", "two", "three"]), user=["second", "third"])
    result = await env.step(Action(message="first"))
    assert texts(result) == [
        ("user", "first"),
        ("assistant", "one"),
        ("user", "second"),
        ("assistant", "two"),
        ("user", "third"),
        ("assistant", "three"),
    ]
    assert result.termination_reason is TerminationReason.TASK_COMPLETE
    (trajectory,) = result.trajectories
    assert decoded(trajectory, sampled=True) == "one\ntwo\nthree\n"
    assert '"second"' in decoded(trajectory, sampled=False)


async def test_user_played_by_a_model_has_its_own_trajectory() -> None:
    user = ModelUser(
        lambda: ScriptedModel(["I need a {thing}", "###STOP###"]), role="You are {name} and want a {goal}."
    )
    env = ChatEnv(model_factory=lambda: ScriptedModel(["What do you need?", "Here it is."]), user=user)
    context = TaskContext(name="Ann", goal="refund")
    result = await env.step(Action(message="hello", task_context=context))
    assert [text for _, text in texts(result)] == ["hello", "What do you need?", "I need a {thing}", "Here it is."]
    assistant, simulated = result.trajectories
    assert (assistant.agent_name, assistant.trainable) == ("agent", True)
    assert (simulated.agent_name, simulated.trainable) == ("user", False)
    assert decoded(assistant, sampled=True) == "What do you need?\nHere it is.\n"
    assert decoded(simulated, sampled=True) == "I need a {thing}\n###STOP###\n"
    prompt = decoded(simulated, sampled=False)
    assert "You are Ann and want a refund." in prompt
    assert "hello" in prompt


async def test_concurrent_conversations_do_not_mix() -> None:
    import asyncio

    user = ModelUser(lambda: ScriptedModel(lambda messages: "again" if len(messages) < 4 else "###STOP###"), role="x")
    env = ChatEnv(model_factory=lambda: ScriptedModel(lambda messages: f"seen {len(messages)}"), user=user)
    results = await asyncio.gather(*(env.step(Action(message="go")) for _ in range(20)))
    assert {str(texts(result)) for result in results} == {str(texts(results[0]))}
    assert all(len(result.trajectories) == 2 for result in results)


async def test_thoughts_of_the_user_are_not_said() -> None:
    user = ModelUser(lambda: ScriptedModel(["<think>secret</think>\n\nhello", "###STOP###"]), role="x")
    env = ChatEnv(model_factory=lambda: ScriptedModel(["a", "b"]), user=user)
    assert "secret" not in str((await env.step(Action(message="go"))).observation.messages)


async def test_limit_of_user_turns() -> None:
    env = ChatEnv(model_factory=lambda: ScriptedModel(lambda _: "yes?"), user=["more"] * 100, max_user_turns=3)
    assert [role for role, _ in texts(await env.step(Action(message="go")))].count("user") == 4
    env = ChatEnv(model_factory=lambda: ScriptedModel(["only"]), user=["more"], max_user_turns=0)
    assert len(texts(await env.step(Action(message="go")))) == 2


async def test_assistant_may_use_tools() -> None:
    script = [call("calculator", expression="6*7"), "42", "You are welcome."]
    env = ChatEnv(model_factory=lambda: ScriptedModel(script), user=["thanks"], tools=[calculator])
    result = await env.step(Action(message="6*7?"))
    assert result.observation.final_response == "You are welcome."
    assert result.observation.metrics["tool_calls"] == 1


async def test_limits_hold_over_the_conversation() -> None:
    env = ChatEnv(
        model_factory=lambda: ScriptedModel(
            lambda messages: call("calculator", expression="1") if len(messages) % 4 == 1 else "ok"
        ),
        user=["more"] * 5,
        tools=[calculator],
        max_tool_iters=2,
    )
    result = await env.step(Action(message="go"))
    assert result.termination_reason is TerminationReason.MAX_TOOL_ITERATIONS_REACHED


async def test_cut_answer_ends_the_conversation() -> None:
    env = ChatEnv(model_factory=lambda: ScriptedModel([reply("cut", stop_reason="max_tokens")]), user=["more"])
    result = await env.step(Action(message="go"))
    assert result.termination_reason is TerminationReason.MAX_TOKENS_REACHED


async def test_failing_user_fails_the_episode_and_keeps_the_tokens() -> None:
    user = ModelUser(lambda: ScriptedModel([ConnectionError("no user model")]), role="x")
    env = ChatEnv(model_factory=lambda: ScriptedModel(["hello"]), user=user, reward_fn=lambda action, result: 1.0)
    result = await env.step(Action(message="go"))
    assert result.termination_reason is TerminationReason.CONNECTION_ERROR
    assert result.reward is None
    assert result.observation.tokens is not None


async def test_reply_of_the_user_that_is_cut_off_is_no_limit_of_the_assistant() -> None:
    env = ChatEnv(
        model_factory=lambda: ScriptedModel(["hello"]),
        user=ModelUser(lambda: ScriptedModel([reply("I want", stop_reason="max_tokens")]), role="A customer."),
        reward_fn=lambda action, result: 0.0,
    )
    result = await env.step(Action(message="hi"))
    assert (result.termination_reason, result.reward) == (TerminationReason.UNCLASSIFIED_ERROR, None)
    assert "allow its model more tokens" in result.error.message


async def test_own_user_class() -> None:
    class Echo(SimulatedUser):
        async def reply(self, turn: int, answer: str, action: Action) -> str | None:
            return f"{action.text}: {answer}" if turn == 0 else None

    env = ChatEnv(model_factory=lambda: ScriptedModel(["one", "two"]), user=Echo())
    assert ("user", "go: one") in texts(await env.step(Action(message="go")))


async def test_role_with_unknown_field_is_named() -> None:
    env = ChatEnv(model_factory=lambda: ScriptedModel(["hello"]), user=ModelUser(role="You want {goal}."))
    result = await env.step(Action(message="go"))
    assert "'goal', which is not a field of the task context" in result.error.message


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="max_user_turns"):
        ChatEnv(model_factory=ScriptedModel, max_user_turns=-1)
    with pytest.raises(TypeError, match="list of texts"):
        ScriptedUser("one text")
