"""Rollouts with real Strands agents over the embedded engine, and what the two arms train on."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from strands import tool
from task import TOOL, Problem

from strands_env.core import Action, Environment, StepResult, TaskContext
from strands_env.core.models import sglang_model_factory
from strands_env.training import TrainingSample, samples_from_step
from strands_sglang.trajectory.drift import count_changed_tokens


@tool(name=TOOL)
def calculator(expression: str) -> str:
    """Compute `a+b`, `a-b` or `a*b`."""
    for sign, operation in (("+", int.__add__), ("*", int.__mul__), ("-", int.__sub__)):
        left, found, right = expression.partition(sign)
        if found and left.isdigit() and right.isdigit() and max(len(left), len(right)) <= 6:
            return str(operation(int(left), int(right)))
    raise ValueError("expected two whole numbers and one of + - *")


class ArithmeticEnv(Environment):
    """A question, one tool call, an answer."""

    def get_tools(self) -> list[Any]:
        return [calculator]


def reward(action: Action, result: StepResult) -> float:
    """Half for calling the tool with the question, half for answering with the tool's result."""
    called, answered = outcome(result, action.task_context.problem)
    return 0.5 * called + 0.5 * (called and answered)


def outcome(result: StepResult, problem: Problem) -> tuple[bool, bool]:
    """Whether the tool was called with the question, and whether the answer is right."""
    blocks = [block for message in result.observation.messages for block in message["content"]]
    calls = [block["toolUse"]["input"] for block in blocks if "toolUse" in block]
    called = calls == [{"expression": problem.expression}]
    return called, (result.observation.final_response or "").strip() == problem.answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One episode, its sample, and what happened in it."""

    sample: TrainingSample
    messages: list[Any]
    reward: float
    called: bool
    answered: bool
    drifted_tokens: int


async def collect(
    engine: Any, problems: Sequence[Problem], *, samples_per_problem: int, temperature: float = 1.0, drift: bool = True
) -> list[Rollout]:
    """Run every problem several times, all at once."""
    factory = sglang_model_factory(
        tokenizer=engine.tokenizer,
        client=engine,
        sampling_params={"temperature": temperature, "max_new_tokens": 48},
        max_sampled_tokens=80,
    )
    env = ArithmeticEnv(model_factory=factory, reward_fn=reward, max_tool_iters=2)

    async def one(group: int, problem: Problem) -> Rollout:
        action = Action(
            message=problem.expression, task_context=TaskContext(ground_truth=problem.answer, problem=problem)
        )
        result = await env.step(action)
        (sample,) = samples_from_step(result, group_id=str(group))
        called, answered = outcome(result, problem)
        sampled = [sample.token_ids[i] for i in range(len(sample)) if sample.loss_mask[i]]
        return Rollout(
            sample=sample.validate(logprobs_required=True),
            messages=list(result.observation.messages),
            reward=sample.reward or 0.0,
            called=called,
            answered=called and answered,
            drifted_tokens=count_changed_tokens([int(i) for i in sampled], engine.tokenizer) if drift else 0,
        )

    jobs = [one(group, problem) for group, problem in enumerate(problems) for _ in range(samples_per_problem)]
    return list(await asyncio.gather(*jobs))


def retokenized(sample: TrainingSample, tokenizer: Any) -> TrainingSample:
    """The sample as a trainer sees it that was given text: the conversation decoded, and encoded again in one piece.

    A token has loss where its characters were sampled. There are no recorded log-probabilities: they belong to the
    tokens that were sampled, not to these.
    """
    text, spans = "", []
    position = 0
    for is_sampled, run in groupby(sample.loss_mask.tolist()):
        length = len(list(run))
        ids = sample.token_ids[position : position + length].tolist()
        piece = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if is_sampled:
            spans.append((len(text), len(text) + len(piece)))
        text += piece
        position += length
    return _encoded(text, spans, sample, tokenizer)


def through_chat(rollout: Rollout, tokenizer: Any) -> TrainingSample:
    """The rollout as a trainer sees it that was given OpenAI-style messages: parsed calls, arguments as JSON.

    The chat template prints them, the tokenizer encodes the whole, and what the template prints for the assistant,
    its closing token included, has loss. As chat servers do, a call that could not be parsed stays text.
    """
    messages = [part for message in rollout.messages for part in _as_chat(message)]
    text = tokenizer.apply_chat_template(messages, tools=[{"name": TOOL}], tokenize=False)
    spans = [match.span(1) for match in re.finditer(r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)", text, re.DOTALL)]
    return _encoded(text, spans, rollout.sample, tokenizer)


def _as_chat(message: Any) -> list[dict[str, Any]]:
    """A message of the SDK as OpenAI-style messages."""
    results = [block["toolResult"] for block in message["content"] if "toolResult" in block]
    if results:
        texts = ["".join(str(part.get("text", part.get("json"))) for part in result["content"]) for result in results]
        return [{"role": "tool", "content": text} for text in texts]
    text = "".join(block["text"] for block in message["content"] if "text" in block)
    calls = []
    for block in message["content"]:
        if "toolUse" in block:
            given = block["toolUse"]["input"]
            if set(given) == {"malformed_call"}:
                text += given["malformed_call"]
            else:
                function = {"name": block["toolUse"]["name"], "arguments": json.dumps(given)}
                calls.append({"type": "function", "function": function})
    return [{"role": message["role"], "content": text, **({"tool_calls": calls} if calls else {})}]


def _encoded(text: str, spans: Sequence[tuple[int, int]], sample: TrainingSample, tokenizer: Any) -> TrainingSample:
    """A sample of the ids that a text encodes to, with loss on the tokens inside `spans`."""
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    mask = [
        int(any(start >= first and end <= last and end > start for first, last in spans))
        for start, end in encoded["offset_mapping"]
    ]
    ids = np.array(encoded["input_ids"], dtype=np.int32)
    prompt_length = mask.index(1) if 1 in mask else len(mask)
    return TrainingSample(
        token_ids=ids,
        prompt_length=prompt_length,
        loss_mask=np.array(mask, dtype=np.uint8),
        reward=sample.reward,
        group_id=sample.group_id,
        rollout_id=sample.rollout_id,
        status=sample.status,
    )
