"""Core types: actions, observations, results, and their JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from strands_env.core import Environment
from strands_env.core.jsonable import exact
from strands_env.core.scoring import FunctionReward, as_reward_function, as_reward_result
from strands_env.core.termination import ErrorRecord, Phase, TerminationReason
from strands_env.core.types import (
    Action,
    Observation,
    RewardResult,
    SpanReward,
    StepResult,
    TaskContext,
    TokenObservation,
    Trajectory,
    WeightVersionSpan,
)
from strands_env.testing import ScriptedModel
from strands_env.training.formats import PromptRecord, prompt_rows
from strands_sglang.trajectory.media import PlacedMedium

IMAGE = PlacedMedium(data="data:image/png;base64,AA==", digest="d", processor="p", grid=(1, 2, 2), offset=1, length=1)


TOKENS = TokenObservation(
    token_ids=[10, 20, 30, 40, 50],
    prompt_length=2,
    loss_mask=[0, 0, 1, 1, 0],
    logprobs=[None, None, -0.5, -math.inf, None],
    weight_versions=[WeightVersionSpan(version="7", start=2, end=4)],
)


def full_result() -> StepResult:
    return StepResult(
        observation=Observation(
            messages=[
                {"role": "user", "content": [{"image": {"format": "png", "source": {"bytes": b"\x89PNG\xff\x00"}}}]},
                {"role": "assistant", "content": [{"text": "4"}], "metadata": {"usage": {"inputTokens": 3}}},
            ],
            tokens=TOKENS,
            metrics={"message_count": 2, "model_latency_s": None},
        ),
        reward=RewardResult(
            reward=0.5,
            info={"why": ["a", 1, None]},
            turn_rewards={0: 1.0, 3: -1.0},
            span_rewards=[SpanReward(start=2, end=4, reward=0.25)],
        ),
        termination_reason=TerminationReason.MODEL_ERROR,
        error=ErrorRecord(type="ValueError", message="bad", traceback="Traceback ...", where=Phase.MODEL),
        cleanup_error=ErrorRecord(type="OSError", message="gone", traceback="", where=Phase.CLEANUP),
        trajectories=[
            Trajectory(
                agent_name="critic",
                trainable=False,
                tokens=TOKENS,
                is_discarded=True,
                finish_reason="stop",
                media=[IMAGE],
                routed_experts=b"\x00\xff\x01",
            )
        ],
    )


def test_context_keeps_any_field() -> None:
    context = TaskContext(ground_truth="42", difficulty=3, tags=["math"])
    assert (context.ground_truth, context.difficulty, context.tags) == ("42", 3, ["math"])
    assert context.id != TaskContext().id


def test_chat_messages_are_a_prompt_and_its_history() -> None:
    first = {"role": "user", "content": "text"}
    for message in ([first], first, (first,)):
        action = Action(message=message, task_context=TaskContext(id="a", ground_truth="4"))
        assert (action.text, action.task_context.conversation_history) == ("text", [])
    chat = [
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": [{"type": "text", "text": "Sure?"}]},
    ]
    action = Action(message=chat, task_context=action.task_context)
    assert (action.text, action.ground_truth) == ("Sure?", "4")  # a field of the context
    assert action.task_context.conversation_history == [
        {"role": "user", "content": [{"text": "2 + 2?"}]},
        {"role": "assistant", "content": [{"text": "4"}]},
    ]
    assert Action.model_validate_json(action.model_dump_json()) == action
    with pytest.raises(ValidationError, match="give one"):
        Action(message=chat, task_context=action.task_context)


CALLED = [
    {"role": "user", "content": "1 + 2?"},
    {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "add", "arguments": "{}"}}]},
]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ([*CALLED, {"role": "tool", "tool_call_id": "c", "content": "3"}], "ends with a tool result"),
        (
            [*CALLED, {"role": "user", "content": [{"toolResult": {"toolUseId": "c", "content": [{"text": "3"}]}}]}],
            "ends with a tool result",
        ),
        ({"role": "user", "content": 5}, "give the content as a list of blocks"),
        ([{"role": "user", "content": 5}], "the content 5, expected text or a list of parts"),
        ([{"role": "user", "content": "a"}, 5], "expected text, a list of content blocks or a message"),
        ((), "message is empty"),
        ([{"role": "assistant", "content": "Hi"}], "must end with a user message"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "expected text or an image",
        ),
    ],
)
def test_chat_messages_that_are_no_prompt_are_refused(message: object, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Action(message=message)


def test_action_prompt_and_text() -> None:
    assert (Action(message="hello").prompt, Action(message="hello").text) == ("hello", "hello")
    blocks = [{"text": "a"}, {"image": {}}, {"text": "b"}]
    for message in (blocks, {"role": "user", "content": blocks}):
        assert (Action(message=message).prompt, Action(message=message).text) == (blocks, "a\nb")


@pytest.mark.parametrize(
    ("messages", "answer"),
    [
        ([], None),
        ([{"role": "user", "content": [{"text": "hi"}]}], None),
        ([{"role": "assistant", "content": []}], None),
        ([{"role": "assistant", "content": [{"text": "hello"}, {"text": "world"}]}], "world"),
        ([{"role": "assistant", "content": [{"toolUse": {"name": "c"}}, {"text": "4"}]}], "4"),
        ([{"role": "assistant", "content": [{"toolUse": {"name": "c"}}]}], None),
        ([{"role": "assistant", "content": [{"text": "<think>a</think>b<think>c</think> d"}]}], "d"),
        ([{"role": "assistant", "content": [{"text": "<think>only</think>"}]}], None),
        ([{"role": "assistant", "content": [{"text": "a</seed:think>\n\n42"}]}], "42"),
        ([{"role": "assistant", "content": [{"text": "[THINK]a[/THINK]42"}]}], "42"),
        (
            [{"role": "assistant", "content": [{"reasoningContent": {}}, {"text": "a </think> ends it"}]}],
            "a </think> ends it",
        ),
        ([{"role": "assistant", "content": [{"text": "<reasoning>a</reasoning>42"}]}], "<reasoning>a</reasoning>42"),
        ([{"role": "assistant", "content": [{"text": "4"}]}, {"role": "user", "content": []}], None),
    ],
)
def test_final_response(messages: list[dict[str, object]], answer: str | None) -> None:
    assert Observation(messages=messages).final_response == answer


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


CARRIERS: dict[str, Callable[[StepResult], StepResult]] = {
    "json": lambda result: StepResult.from_json(result.to_json()),
    "parsed json": lambda result: StepResult.model_validate(json.loads(result.to_json(), parse_constant=refuse)),
    "dict": lambda result: StepResult.model_validate(result.model_dump()),
    "bytes": lambda result: StepResult.from_bytes(result.to_bytes()),
}


@pytest.mark.parametrize("carry", CARRIERS.values(), ids=CARRIERS)
def test_step_result_survives(carry: Callable[[StepResult], StepResult]) -> None:
    for result in (full_result(), StepResult(observation=Observation())):
        assert carry(result) == result
    assert carry(full_result()).observation.messages[1]["metadata"] == {"usage": {"inputTokens": 3}}  # a key of the SDK


@pytest.mark.parametrize("reward", [math.nan, -math.inf])
def test_reward_must_be_a_number(reward: float) -> None:
    with pytest.raises(ValidationError):
        RewardResult(reward=reward)
    with pytest.raises(ValueError, match="must be a finite number"):
        SpanReward(start=0, end=1, reward=reward)


@pytest.mark.parametrize(
    ("value", "reward"),
    [
        *[(None, None), (1, 1.0), (True, 1.0), (0.5, 0.5), (Fraction(1, 4), 0.25)],
        *[(np.float32(0.5), 0.5), (np.float64(0.5), 0.5), (np.int64(2), 2.0), (np.bool_(True), 1.0)],
    ],
)
def test_plain_values_become_results(value: object, reward: float | None) -> None:
    assert as_reward_result(value) == RewardResult(reward=reward)


@pytest.mark.parametrize(("reward", "words"), [(FunctionReward, "give an instance"), (1.0, r"got 1\.0")])
def test_what_is_no_reward_function_is_refused(reward: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        as_reward_function(reward)


LONE = "a \ud83d b"


@pytest.mark.parametrize(
    "value",
    [
        {"__bytes_encoded__": True, "data": 5},
        {"__bytes_encoded__": True, "data": "A"},
        {"__bytes_encoded__": True, "data": "AAAA"},
        {"__bytes_encoded__": "utf-8", "data": "AAAA"},
        {"!__utf-8__AAAA": {"__bytes_encoded__": True, "data": "AAAA"}},
        LONE,
        {LONE: [LONE, b"\xff"]},
    ],
)
def test_what_a_model_writes_survives_construction_and_json(value: Any) -> None:
    block = {"toolUse": {"toolUseId": "1", "name": "f", "input": {"x": value}}}
    result = StepResult(
        observation=Observation(messages=[{"role": "assistant", "content": [block]}], metrics={"x": value}),
        reward=RewardResult(info={"x": value}),
    )
    assert result.observation.messages[0]["content"][0]["toolUse"]["input"]["x"] == value
    assert StepResult.from_json(result.to_json()) == result
    assert StepResult.model_validate(json.loads(result.to_json())) == result


@pytest.mark.parametrize("value", [[{"a": "\u4f60 __bytes__"}], {"__bytes_encoded_": 1}, "utf-8", (1, [None])])
def test_what_json_can_hold_is_written_without_a_copy(value: Any) -> None:
    assert exact(value) is value


def test_image_bytes_extra_fields_and_lone_surrogates_survive_json() -> None:
    history = [{"role": "user", "content": [{"text": "hi"}]}]
    context = TaskContext(id="t1", ground_truth={"answer": 4}, conversation_history=history, seed=7)
    image = {"image": {"format": "png", "source": {"bytes": b"\xff\x00"}}}
    for message in (LONE, [{"text": LONE}, image]):
        action = Action(message=message, task_context=context)
        assert Action.model_validate_json(action.model_dump_json()) == action
    record = ErrorRecord.from_exception(ValueError(LONE), Phase.LOOP)
    result = StepResult(observation=Observation(), error=record)
    assert StepResult.from_json(result.to_json()) == result


def test_bytes_of_a_long_result_are_compact() -> None:
    tokens = TokenObservation(token_ids=range(100_000), prompt_length=1)
    trajectory = Trajectory(agent_name="a", tokens=tokens, routed_experts=b"\x00\xff" * 100_000)
    result = StepResult(observation=Observation(tokens=tokens), trajectories=[trajectory])
    data = result.to_bytes()
    assert StepResult.from_bytes(data) == result
    assert len(data) < 2 * 14 * 100_000 + 200_000


@pytest.mark.parametrize("cut", [0, 3, 8, 20, -1])
def test_damaged_bytes_are_refused(cut: int) -> None:
    with pytest.raises(ValueError, match=r"expected|damaged"):
        StepResult.from_bytes(full_result().to_bytes()[:cut])


@pytest.mark.parametrize("name", ["schema", "json", "copy", "dict", "validate", "Due Date", "_id", "groundtruth"])
def test_data_is_read_before_the_methods_of_a_model(name: str, caplog: pytest.LogCaptureFixture) -> None:
    context = TaskContext(ground_truth="4", **{name: "mine"})
    action = Action(message="2 + 2?", task_context=context)
    for read in (context, action.task_context, Action.model_validate_json(action.model_dump_json()).task_context):
        assert (getattr(read, name), read.model_extra) == ("mine", {name: "mine"})
    assert name == "_id" or getattr(action, name) == "mine"
    assert ("did you mean ground_truth?" in caplog.text) == (name == "groundtruth")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model_dump", r"a field 'model_dump' would hide TaskContext\.model_dump: rename it"),
        ("__class__", "a field '__class__' would hide"),
        ("text", "has a field 'text', which means the prompt on an Action: rename it"),
        ("prompt", "has a field 'prompt', which means"),
    ],
)
def test_data_that_would_not_be_read_is_refused_by_name(name: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Action(message="2 + 2?", task_context={name: "mine"})


async def test_a_system_message_of_the_prompt_is_the_tasks_own() -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    action = Action(message=chat, task_context=TaskContext(ground_truth="4"))
    for one in (action, Action.model_validate_json(action.model_dump_json())):
        env = Environment(model_factory=lambda: ScriptedModel(["Yes."]), system_prompt="Be long.")
        assert (await env.step(one)).observation.system_prompt == "Be brief."
    (row,) = prompt_rows([PromptRecord(prompt_id="p", action=action)])
    assert (row["prompt"], row["metadata"]) == (chat, {})
    with pytest.raises(ValidationError, match="is another: give one"):
        Action(message=chat, task_context=TaskContext(system_prompt="Be long."))
    result = await env.step(Action(message="Hi", task_context=TaskContext(system_prompt={"a": 1})))
    assert result.error is not None and "the system_prompt of a task is text" in result.error.message
