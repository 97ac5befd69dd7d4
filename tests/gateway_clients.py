"""Unmodified clients of OpenAI, Anthropic and Google that ask questions and answer every call of `add` with 3."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.unit.gateway_support import ANTHROPIC_TOOLS, CHAT_TOOLS, GOOGLE_TOOLS, RESPONSES_TOOLS


def check(arguments: Any, expected: Any) -> None:
    """Arguments of a call as the client parsed them; None expects any object."""
    assert arguments == expected if expected is not None else isinstance(arguments, dict)


async def chat(
    url: str, key: str, questions: Sequence[str], *, stream: bool, rounds: int = 9, arguments: Any = None
) -> None:
    """Chat Completions; at most so many requests per question, and calls with these arguments."""
    openai = pytest.importorskip("openai", reason="the extra 'test' is not installed")
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key) as client:
        messages: list[Any] = [{"role": "system", "content": "Be brief."}]
        strict = [{**tool, "function": {**tool["function"], "strict": True}} for tool in CHAT_TOOLS]
        for question in questions:
            messages.append({"role": "user", "content": question})
            for _ in range(rounds):
                body: dict[str, Any] = {"model": "policy", "messages": messages, "tools": strict}
                if stream:
                    async with client.chat.completions.stream(**body) as events:
                        done = await events.get_final_completion()
                else:
                    done = await client.chat.completions.create(**body)
                reply = done.choices[0].message.model_dump(exclude_none=True, exclude={"parsed"})
                for call in reply.get("tool_calls", ()):
                    call["function"].pop("parsed_arguments", None)
                messages.append(reply)
                if not reply.get("tool_calls"):
                    break
                for call in reply["tool_calls"]:
                    check(json.loads(call["function"]["arguments"]), arguments)
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": "3"})


async def responses(
    url: str, key: str, questions: Sequence[str], *, stream: bool, rounds: int = 9, arguments: Any = None
) -> None:
    """Responses; at most so many requests per question, and calls with these arguments."""
    openai = pytest.importorskip("openai", reason="the extra 'test' is not installed")
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key) as client:
        items: list[Any] = []
        for question in questions:
            items.append({"role": "user", "content": question})
            for _ in range(rounds):
                body: dict[str, Any] = {"model": "policy", "input": items, "tools": RESPONSES_TOOLS}
                if stream:
                    async with client.responses.stream(**body) as events:
                        done = await events.get_final_response()
                else:
                    done = await client.responses.create(**body)
                items += [item.model_dump(exclude_none=True) for item in done.output]
                calls = [item for item in done.output if item.type == "function_call"]
                if not calls:
                    break
                for call in calls:
                    check(json.loads(call.arguments), arguments)
                items += [{"type": "function_call_output", "call_id": call.call_id, "output": "3"} for call in calls]


async def messages(
    url: str, key: str, questions: Sequence[str], *, stream: bool, rounds: int = 9, arguments: Any = None
) -> None:
    """Anthropic Messages; at most so many requests per question, and calls with these arguments."""
    anthropic = pytest.importorskip("anthropic", reason="the extra 'test' is not installed")
    async with anthropic.AsyncAnthropic(base_url=url, api_key=key) as client:
        history: list[Any] = []
        for question in questions:
            history.append({"role": "user", "content": question})
            for _ in range(rounds):
                body: dict[str, Any] = {
                    "model": "policy", "max_tokens": 512, "system": "Be brief.", "messages": history,
                    "tools": ANTHROPIC_TOOLS,
                }  # fmt: skip
                if stream:
                    async with client.messages.stream(**body) as events:
                        done = await events.get_final_message()
                else:
                    done = await client.messages.create(**body)
                history.append({"role": "assistant", "content": done.content})
                uses = [block for block in done.content if block.type == "tool_use"]
                if not uses:
                    break
                for use in uses:
                    check(use.input, arguments)
                results = [{"type": "tool_result", "tool_use_id": use.id, "content": "3"} for use in uses]
                history.append({"role": "user", "content": results})


async def google(
    url: str, key: str, questions: Sequence[str], *, stream: bool, rounds: int = 9, arguments: Any = None
) -> None:
    """Gemini's chat, which keeps the history itself; at most so many requests per question."""
    genai = pytest.importorskip("google.genai", reason="the extra 'test' is not installed")
    options = {"base_url": url, "retry_options": {"attempts": 1}}
    client = genai.Client(api_key=key, http_options=options).aio
    config = {"system_instruction": "Be brief.", "tools": GOOGLE_TOOLS, "automatic_function_calling": {"disable": True}}
    talk = client.chats.create(model="policy", config=config)
    for question in questions:
        said: Any = question
        for _ in range(rounds):
            if stream:
                done = [event async for event in await talk.send_message_stream(said)][-1]
            else:
                done = await talk.send_message(said)
            if not done.function_calls:
                break
            for call in done.function_calls:
                check(call.args, arguments)
            said = [
                genai.types.Part.from_function_response(name=call.name, response={"result": "3"})
                for call in done.function_calls
            ]
    await client.aclose()
