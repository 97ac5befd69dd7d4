"""Structured output is what was sampled, whatever tags it holds and wherever the prompt ends."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest
from provider_support import Replay, add, completion, tokenizer
from strands import Agent

from strands_sglang import SGLangModel, StructuredOutputError
from strands_sglang.backends.engine.templates import HERMES_TEMPLATE
from strands_sglang.conversation import Conversation, TurnRequest

GO = [{"role": "user", "content": [{"text": "go"}]}]
THINKING = HERMES_TEMPLATE.replace("<|im_start|>assistant\\n' }}", "<|im_start|>assistant\\n<think>\\n' }}").replace(
    "<|im_start|>assistant\n' }}", "<|im_start|>assistant\n<think>\n' }}"
)


class Note(pydantic.BaseModel):
    a: str


async def note(reply: Any, **options: Any) -> tuple[str, Replay]:
    client = Replay([reply])
    model = SGLangModel(tokenizer=tokenizer(), client=client, **options)
    return [event async for event in model.structured_output(Note, GO)][-1]["output"].a, client


@pytest.mark.parametrize(
    "text", ["see <think>x</think> here", "</think>", "<tool_call>{}</tool_call>", "  x ", "<think>never closed"]
)
async def test_strings_keep_their_tags_and_spaces(text: str) -> None:
    value, client = await note(Note(a=text).model_dump_json())
    assert value == text
    assert "require_reasoning" not in client.requests[0].fields


@pytest.mark.parametrize("text", ["x", "a </think> b"])
async def test_a_prompt_that_opens_a_reasoning_block_may_be_answered_at_once(text: str) -> None:
    """A server without a reasoning parser constrains the text from its beginning."""
    value, client = await note(Note(a=text).model_dump_json(), chat_template=THINKING)
    assert tokenizer().decode(client.prompts[0]).endswith("<think>\n")
    assert value == text


@pytest.mark.parametrize("tags", [("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("◁think▷", "◁/think▷")])
async def test_a_grammar_is_asked_for_behind_the_block_that_the_prompt_opens(tags: tuple[str, str]) -> None:
    template = THINKING.replace("<think>", tags[0])
    value, client = await note(f'I think.\n{tags[1]}\n\n{{"a": "see </think>"}}', chat_template=template)
    assert client.requests[0].fields["require_reasoning"] is True
    assert value == "see </think>"


@pytest.mark.parametrize(
    ("reply", "text", "reasoning"),
    [
        ('{"a": "x"}', '{"a": "x"}', ""),
        ('{"a": "</think>"}', '{"a": "</think>"}', ""),
        ('hm</think>{"a": "x"}', '{"a": "x"}', "hm"),
        ("yes", "yes", ""),
    ],
)
async def test_a_constrained_reply_is_read_from_its_beginning_where_the_server_constrained_it_there(
    reply: str, text: str, reasoning: str
) -> None:
    conversation = Conversation(tokenizer=tokenizer(), client=Replay([reply]), chat_template=THINKING)
    request = TurnRequest(messages=GO, constraints={"json_schema": "{}"} if "{" in reply else {"regex": "yes|no"})
    read = (await conversation.turn(request)).reply
    assert (read.text, read.reasoning) == (text, reasoning)


async def test_a_call_under_a_grammar_is_found_though_the_prompt_opened_reasoning() -> None:
    said = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    conversation = Conversation(tokenizer=tokenizer(), client=Replay([said]), chat_template=THINKING)
    request = TurnRequest(messages=GO, tools=[add.tool_spec], forced_tools=["add"])
    sampled = await conversation.turn(request)
    assert [call.input for call in sampled.reply.calls] == [{"a": 1, "b": 2}]
    assert [call.error for call in sampled.turn.calls] == [None]


async def test_text_that_is_no_json_is_still_refused() -> None:
    for reply in ('{"a": "1"} x', 'I think. {"a": "x"}', "</think>"):
        with pytest.raises(StructuredOutputError, match="does not validate as Note"):
            await note(reply, chat_template=THINKING)


async def test_an_unfinished_answer_is_refused() -> None:
    ids = list(completion('{"a": "x"}', stop=False).ids or ())
    entries = [[-0.5, token, None] for token in ids]
    meta = {"finish_reason": {"type": "weird"}, "output_token_logprobs": entries}
    with pytest.raises(StructuredOutputError, match="was cut"):
        await note({"output_ids": ids, "meta_info": meta})


async def test_structured_answers_to_one_conversation_are_all_used() -> None:
    model = SGLangModel(tokenizer=tokenizer(), client=Replay([completion("the answer"), *['{"a": "x"}'] * 2]))
    agent = Agent(model=model, callback_handler=None, context_manager=False, retry_strategy=None)
    await agent.invoke_async("go")
    for _ in range(2):
        assert [event async for event in model.structured_output(Note, GO)]
    assert [trajectory.is_discarded for trajectory in model.trajectories] == [False, False, False]
