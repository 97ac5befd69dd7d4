"""ChatEnv: conversations with simulated users, and whose tokens are whose."""

from __future__ import annotations

import asyncio
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
    assert [role for role, _ in texts(result)] == ["user", "assistant"] * 3
    assert [text for _, text in texts(result)] == ["first", "one", "second", "two", "third", "three"]
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


async def test_concurrent_conversations_do_not_mix_and_thoughts_of_a_user_are_not_said() -> None:
    user = ModelUser(
        lambda: ScriptedModel(lambda messages: "<think>secret</think>again" if len(messages) < 2 else "###STOP###"),
        role="x",
    )
    env = ChatEnv(model_factory=lambda: ScriptedModel(lambda messages: f"seen {len(messages)}"), user=user)
    results = await asyncio.gather(*(env.step(Action(message="go")) for _ in range(20)))
    said = [("user", "go"), ("assistant", "seen 1"), ("user", "again"), ("assistant", "seen 3")]
    assert all(texts(result) == said and len(result.trajectories) == 2 for result in results)


async def test_limit_of_user_turns() -> None:
    class Echo(SimulatedUser):
        async def reply(self, turn: int, answer: str, action: Action) -> str | None:
            return f"{action.text} {turn}: {answer}"

    for most, said in {3: ["go", "go 0: yes?", "go 1: yes?", "go 2: yes?"], 0: ["go"]}.items():
        env = ChatEnv(model_factory=lambda: ScriptedModel(lambda _: "yes?"), user=Echo(), max_user_turns=most)
        result = await env.step(Action(message="go"))
        spoken = texts(result)
        assert result.termination_reason is TerminationReason.TASK_COMPLETE
        assert [text for role, text in spoken if role == "user"] == said
        assert spoken[-1] == ("assistant", "yes?")


async def test_tools_and_their_limits_hold_over_the_conversation() -> None:
    def answer(messages: list[Any]) -> Any:
        return call("calculator", expression="6*7") if len(messages) % 4 == 1 else "ok"

    env = ChatEnv(model_factory=lambda: ScriptedModel(answer), user=["more"] * 5, tools=[calculator], max_tool_iters=2)
    result = await env.step(Action(message="go"))
    assert result.termination_reason is TerminationReason.MAX_TOOL_ITERATIONS_REACHED
    assert result.observation.metrics["tool_calls"] == 2
    assert "'text': '42'" in str(result.observation.messages[2])


async def test_cut_answer_ends_the_conversation() -> None:
    env = ChatEnv(model_factory=lambda: ScriptedModel([reply("cut", stop_reason="max_tokens")]), user=["more"])
    result = await env.step(Action(message="go"))
    assert result.termination_reason is TerminationReason.MAX_TOKENS_REACHED
    assert result.observation.final_response == "cut"


@pytest.mark.parametrize(
    ("said", "reason", "words"),
    [
        (ConnectionError("no user model"), TerminationReason.CONNECTION_ERROR, "no user model"),
        (
            reply("I want", stop_reason="max_tokens"),
            TerminationReason.UNCLASSIFIED_ERROR,
            "allow its model more",
        ),
    ],
    ids=["failing", "cut off"],
)
async def test_failing_user_fails_the_episode_and_keeps_the_tokens(said: Any, reason: Any, words: str) -> None:
    user = ModelUser(lambda: ScriptedModel([said]), role="x")
    env = ChatEnv(model_factory=lambda: ScriptedModel(["hello"]), user=user, reward_fn=lambda action, result: 1.0)
    result = await env.step(Action(message="go"))
    assert (result.termination_reason, result.reward) == (reason, None)
    assert words in result.error.message
    assert result.observation.tokens is not None


async def test_role_with_unknown_field_is_named() -> None:
    env = ChatEnv(model_factory=lambda: ScriptedModel(["hello"]), user=ModelUser(role="You want {goal}."))
    result = await env.step(Action(message="go"))
    assert "'goal', which is not a field of the task context" in result.error.message


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="max_user_turns"):
        ChatEnv(model_factory=ScriptedModel, max_user_turns=-1)
    with pytest.raises(TypeError, match="list of texts"):
        ScriptedUser("one text")
