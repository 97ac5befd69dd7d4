"""Rollouts over the embedded engine, and the tokens that each arm trains."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import httpx
import numpy as np
from strands import tool
from task import TOOL, Problem

from strands_env.eval.drift import find_drift
from strands_env.training import TrainingSample, samples_from_model
from strands_sglang.conversation import Conversation, TurnRequest
from strands_sglang.conversation.model_options import MalformedCalls
from strands_sglang.gateway import Gateway

TURNS = 2
"""A call and an answer. A rollout that calls the tool again ends there, without reward for the answer."""
SAMPLING = {"temperature": 1.0, "max_new_tokens": 48}


@tool(name=TOOL)
def calculator(expression: str) -> str:
    """Compute `a+b`, `a-b` or `a*b`."""
    if not isinstance(expression, str):  # a call's arguments are any JSON: this function is called without Strands
        raise ValueError("expected a text")
    for sign, operation in (("+", int.__add__), ("*", int.__mul__), ("-", int.__sub__)):
        left, found, right = expression.partition(sign)
        if found and left.isdigit() and right.isdigit() and max(len(left), len(right)) <= 6:
            return str(operation(int(left), int(right)))
    raise ValueError("expected two whole numbers and one of + - *")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One episode: its sample, and its conversation as OpenAI-style messages.

    Attributes:
        called: The tool was called once, with the question.
        answered: It was, and the answer is the tool's result.
        drifted_tokens: Sampled tokens that encoding their text again would change.
    """

    sample: TrainingSample
    messages: list[dict[str, Any]]
    called: bool
    answered: bool
    drifted_tokens: int


def reward(called: bool, answered: bool) -> float:
    """Half for calling the tool with the question, half for answering with its result."""
    return 0.5 * called + 0.5 * (called and answered)


async def collect(
    engine: Any, problems: Sequence[Problem], *, samples_per_problem: int, seed: str, gateway: bool = False
) -> list[Rollout]:
    """Run every problem several times, all at once.

    The loop is written out over `Conversation`, the core under `SGLangModel` and the gateway; no agent runs.

    Args:
        engine: Samples.
        problems: One group each.
        samples_per_problem: Rollouts of a group.
        seed: The same name, problems and weights give the same rollouts.
        gateway: Go through the gateway, as a plain OpenAI client over HTTP. Requests then carry no seeds of their own.
    """
    jobs = [(group, problem, index) for group, problem in enumerate(problems) for index in range(samples_per_problem)]
    if gateway:
        options = {"sampling_params": SAMPLING}
        async with (
            Gateway(client=engine, tokenizer=engine.tokenizer, **options) as served,
            httpx.AsyncClient(timeout=600) as http,
        ):
            return list(await asyncio.gather(*(_through_gateway(served, http, group, each) for group, each, _ in jobs)))
    seeds = np.random.SeedSequence(list(seed.encode())).generate_state(len(jobs) * TURNS).tolist()
    return list(
        await asyncio.gather(
            *(
                _in_process(engine, group, problem, seeds[TURNS * i : TURNS * (i + 1)])
                for i, (group, problem, _) in enumerate(jobs)
            )
        )
    )


async def _in_process(engine: Any, group: int, problem: Problem, seeds: Sequence[int]) -> Rollout:
    conversation = Conversation(client=engine, tokenizer=engine.tokenizer, sampling_params=SAMPLING)
    messages: list[Any] = [{"role": "user", "content": [{"text": problem.expression}]}]
    chat: list[dict[str, Any]] = [{"role": "user", "content": problem.expression}]
    for seed in seeds:
        request = TurnRequest(
            messages=messages,
            tools=[calculator.tool_spec],
            params={"sampling_seed": seed},
            malformed_calls=MalformedCalls.TEXT,
        )
        reply = (await conversation.turn(request)).reply
        uses = [{"toolUse": {"toolUseId": call.id, "name": call.name, "input": call.input}} for call in reply.calls]
        calls = [_chat_call(call.id, call.name, json.dumps(call.input)) for call in reply.calls]
        messages.append({"role": "assistant", "content": [*([{"text": reply.text}] if reply.text else []), *uses]})
        chat.append(_chat_reply(reply.text, calls))
        results = _run(calls)
        if not results:
            break
        chat += results
        content = [
            {
                "toolResult": {
                    "toolUseId": each["tool_call_id"],
                    "content": [{"text": each["content"]}],
                    "status": "success",
                }
            }
            for each in results
        ]
        messages.append({"role": "user", "content": content})
    return _rollout(conversation, chat, problem, group, engine.tokenizer)


async def _through_gateway(gateway: Gateway, http: httpx.AsyncClient, group: int, problem: Problem) -> Rollout:
    session = gateway.open()
    spec = calculator.tool_spec
    function = {"name": TOOL, "description": spec["description"], "parameters": spec["inputSchema"]["json"]}
    chat: list[dict[str, Any]] = [{"role": "user", "content": problem.expression}]
    for _ in range(TURNS):
        body = {"model": "default", "messages": chat, "tools": [{"type": "function", "function": function}]}
        answer = await http.post(
            f"{session.base_url}/chat/completions", json=body, headers={"Authorization": f"Bearer {session.key}"}
        )
        message = answer.raise_for_status().json()["choices"][0]["message"]
        chat.append(_chat_reply(message.get("content") or "", message.get("tool_calls") or []))
        results = _run(chat[-1].get("tool_calls", []))
        if not results:
            break
        chat += results
    rollout = _rollout(session, chat, problem, group, gateway.tokenizer)
    await session.close()
    return rollout


def _rollout(source: Any, chat: list[dict[str, Any]], problem: Problem, group: int, tokenizer: Any) -> Rollout:
    """Score a conversation, and take its sample from who holds the trajectory."""
    replies = [message for message in chat if message["role"] == "assistant"]
    calls = [json.loads(c["function"]["arguments"]) for reply in replies for c in reply.get("tool_calls", [])]
    called = calls == [{"expression": problem.expression}]
    answered = called and replies[-1]["content"].strip() == problem.answer
    (sample,) = samples_from_model(source, reward=reward(called, answered), group_id=str(group))
    sampled = sample.token_ids[sample.loss_mask == 1].tolist()
    return Rollout(
        sample=sample.validate(logprobs_required=True),
        messages=chat,
        called=called,
        answered=answered,
        drifted_tokens=sum(span.end - span.start for span in find_drift(sampled, tokenizer)),
    )


def _chat_reply(text: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}


def _chat_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _run(calls: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results of tool calls, as messages."""
    results = []
    for call in calls:
        try:
            content = calculator(**json.loads(call["function"]["arguments"]))
        except (TypeError, ValueError) as error:  # the model's own mistakes: wrong arguments, or no calculation
            content = f"Error: {error}"
        results.append({"role": "tool", "tool_call_id": call["id"], "content": content})
    return results


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
    text = tokenizer.apply_chat_template(rollout.messages, tools=[{"name": TOOL}], tokenize=False)
    spans = [match.span(1) for match in re.finditer(r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)", text, re.DOTALL)]
    return _encoded(text, spans, rollout.sample, tokenizer)


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
        end=sample.end,
    )
