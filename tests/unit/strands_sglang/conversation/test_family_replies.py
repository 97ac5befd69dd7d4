"""Replies of whole families: what a template prints for reasoning, text and calls is read back as just these parts."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from strands_sglang.conversation.reply_format import choose_reader
from strands_sglang.template import ChatTemplate, DeltaRenderer
from strands_sglang.tool_parsers import get_tool_parser
from tests.provider_support import assert_prefix_law, completion, make, make_agent
from tests.unit.family_templates import FAMILIES, Family, ended
from tests.unit.gateway_support import CHAT_TOOLS, rig

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "box": {
            "type": "object",
            "properties": {"at": {"type": "array", "items": {"type": "number"}}, "on": {"type": "boolean"}},
        },
    },
}
TOOLS = [{"type": "function", "function": {"name": name, "description": "d", "parameters": SCHEMA}} for name in "fg"]
ARGUMENTS = {"city": ' Zürich\n5 <b> &amp; "q"', "days": 3, "box": {"at": [1, -2.5], "on": True}}
THOUGHT, SAID = "Hm,\nso.", "I look <here>."
PARTS = [
    (thought, said, calls)
    for thought in ("", THOUGHT)
    for said, calls in ((SAID, ()), ("", ("f",)), (SAID, ("f",)), ("", ("f", "g")))
]
MODES = [
    (family, kwargs)
    for family in FAMILIES
    for kwargs in ({}, *([{"thinking": False}] if "thinking |" in family.template else ()))
]


def turn(thought: str, said: str, calls: tuple[str, ...]) -> dict[str, Any]:
    made = [
        {"id": f"QZid0000{n}", "type": "function", "function": {"name": name, "arguments": ARGUMENTS if not n else {}}}
        for n, name in enumerate(calls)
    ]
    return {
        "role": "assistant",
        "content": said,
        "reasoning_content": thought,
        **({"tool_calls": made} if made else {}),
    }


@pytest.mark.parametrize("tools", [None, TOOLS], ids=["without tools", "with tools"])
@pytest.mark.parametrize(("family", "kwargs"), MODES, ids=lambda value: getattr(value, "parser", str(value)))
def test_what_the_template_prints_is_read_back(
    family: Family, kwargs: dict[str, Any], tools: Any, caplog: pytest.LogCaptureFixture
) -> None:
    template = ChatTemplate(family.template)
    renderer = DeltaRenderer(
        template, tools=tools, template_kwargs=kwargs, stop_tokens=family.stops, special_tokens=family.specials
    )
    with caplog.at_level(logging.WARNING):
        parser = choose_reader(renderer).parser
    assert (type(parser), caplog.messages) == (type(get_tool_parser(family.parser)), [])
    opened = renderer.report.opened_tags(renderer.report.generation_prompt)
    parser = parser.with_think_tokens(opened or parser.think_tokens)
    asked: dict[str, Any] = {"role": "user", "content": "Hi?"}
    count = 0
    for thought, said, calls in PARTS:
        messages = [asked, turn(thought, said, calls)]
        prompt = template.render([asked], tools=tools, add_generation_prompt=True, **kwargs)
        whole = template.render(messages, tools=tools, add_generation_prompt=False, **kwargs).rstrip("\n")
        if (calls and tools is None) or (said and said not in whole) or (thought and thought not in whole):
            continue
        assert whole.startswith(prompt)
        reply = whole[len(prompt) :]
        for stop in family.stops:
            if stop not in parser.tool_call_tokens:
                reply = reply.removesuffix(stop)
        read = parser.parse_all(reply, tools=tools, in_reasoning=opened is not None)
        expected = [(name, ARGUMENTS if not n else {}) for n, name in enumerate(calls)]
        assert [(call.name, call.input) for call in read.calls] == expected, read
        assert (read.reasoning.strip(), read.text.strip()) == (thought, said), reply
        count += 1
    assert count >= (3 if tools else 1)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda each: each.parser)
def test_a_printed_call_is_whole_where_its_recipient_begins_as_another_does(family: Family) -> None:
    parser = get_tool_parser(family.parser)
    renderer = DeltaRenderer(family.template, tools=TOOLS, stop_tokens=family.stops, special_tokens=family.specials)
    for name in ("all_of", "user_of"):
        printed = renderer.printed_call(name, {"x": "y"})
        assert printed is not None
        end = "" if parser.tool_end_token in printed else parser.tool_end_token
        assert [(call.name, call.input) for call in parser.parse(printed + end)] == [(name, {"x": "y"})]


async def test_the_frame_is_taken_off_beside_half_a_frame_of_calls_too() -> None:
    sampled = CALLS["kimi_k3"].replace("<|open|>tools<|sep|>", "").replace("<|close|>tools<|sep|>", "")
    model, _ = make([completion(sampled), completion(ANSWERS["kimi_k3"])], chat_template=ended("kimi_k3"))
    agent = make_agent(model)
    await agent.invoke_async("What is 1 + 2?")
    texts = [block["text"] for block in agent.messages[1]["content"] if "text" in block]
    assert (texts, len(model.tool_parse_errors)) == (["I add."], 1)


CALLS = {
    "kimi_k3": "So.<|close|>think<|sep|><|open|>response<|sep|>I add.<|close|>response<|sep|><|open|>tools<|sep|>"
    '<|open|>call tool="add" index="1"<|sep|><|open|>argument key="a" type="number"<|sep|>1<|close|>argument<|sep|>'
    '<|open|>argument key="b" type="number"<|sep|>2<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
    "<|close|>message<|sep|>",
    "muse_glimmer": " to=self<|message|>So.<|eom|><|start|>assistant to=user<|message|>I add.<|eom|>"
    '<|start|>assistant to=add<|message|><atem:function_calls>\n<atem:invoke name="add">\n'
    '<atem:parameter name="a">1</atem:parameter>\n<atem:parameter name="b">2</atem:parameter>\n'
    "</atem:invoke>\n</atem:function_calls>",
    "functionary": 'all\nI add.>>>add\n{"a": 1, "b": 2}',
}
ANSWERS = {
    "kimi_k3": "<|close|>think<|sep|><|open|>response<|sep|>It is 3.<|close|>response<|sep|><|close|>message<|sep|>",
    "muse_glimmer": " to=user<|message|>It is 3.",
    "functionary": "all\nIt is 3.",
}


@pytest.mark.parametrize("family", CALLS)
async def test_an_agent_of_each_kind_acts_and_answers(family: str) -> None:
    model, client = make([completion(CALLS[family]), completion(ANSWERS[family])], chat_template=ended(family))
    agent = make_agent(model)
    result = await agent.invoke_async("What is 1 + 2?")
    assert str(result).strip() == "It is 3."
    _, reply, results, _ = agent.messages
    *texts, call = reply["content"]
    assert [block["text"] for block in texts if "text" in block] == ["I add."]
    assert (call["toolUse"]["name"], call["toolUse"]["input"]) == ("add", {"a": 1, "b": 2})
    assert results["content"][0]["toolResult"]["content"] == [{"text": "3"}]
    assert len(client.prompts) == 2
    assert_prefix_law(client, model)


async def test_a_gateway_streams_the_parts_of_a_reply_of_several_messages() -> None:
    script = [completion(CALLS["muse_glimmer"]), completion(ANSWERS["muse_glimmer"])]
    async with rig(script, chat_template=ended("muse_glimmer")) as session:
        messages: list[Any] = [{"role": "user", "content": "What is 1 + 2?"}]
        choice = (await session.chat(messages, tools=CHAT_TOOLS))["choices"][0]
        message = choice["message"]
        (call,) = message["tool_calls"]
        assert (message["content"], message["reasoning_content"], choice["finish_reason"]) == (
            "I add.",
            "So.",
            "tool_calls",
        )
        assert (call["function"]["name"], call["function"]["arguments"]) == ("add", '{"a":1,"b":2}')
        messages += [message, {"role": "tool", "tool_call_id": call["id"], "content": "3"}]
        body = {"model": "m", "messages": messages, "tools": CHAT_TOOLS}
        events = [event for event in await session.events("/v1/chat/completions", body) if isinstance(event, dict)]
        deltas = [choice["delta"] for event in events for choice in event["choices"]]
        assert "".join(delta.get("content") or "" for delta in deltas) == "It is 3."
