"""The frame of replies: what a chat template prints around reasoning, text and calls belongs to none of them."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from provider_support import GO, Replay, completion, tokenizer
from reply_round_trip import ADD, FRAMES, ONE_BAR, RESPONSE, framed, misread, printed

from strands_sglang.backends.engine.tiny import make_tiny_tokenizer
from strands_sglang.conversation import Conversation, TurnRequest
from strands_sglang.conversation.reply_format import choose_reader
from strands_sglang.exceptions import TemplateError
from strands_sglang.template import DeltaRenderer
from strands_sglang.testing import Reply, ScriptedClient
from strands_sglang.tool_parsers import HermesToolParser
from tests.unit.gateway_support import rig

SPEC: Any = {"name": "add", "description": "Adds.", "inputSchema": {"json": {"type": "object", "properties": {}}}}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


GIGACHAT = framed(end="<|message_sep|>\n").replace("</tool_call>", "").replace("<tool_call>", "<|function_call|>")


def renderer(template: str, *, tools: bool) -> DeltaRenderer:
    stops, specials = ["<|im_end|>"], ["<|im_start|>", "<|im_end|>"]
    return DeltaRenderer(template, tools=[ADD] if tools else None, stop_tokens=stops, special_tokens=specials)


@pytest.mark.parametrize("tools", [False, True], ids=["without tools", "with tools"])
@pytest.mark.parametrize("kind", FRAMES)
def test_each_part_of_a_printed_reply_is_read_back_without_the_frame(
    kind: str, tools: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    count, wrong = misread(renderer(FRAMES[kind], tools=tools))
    assert (wrong, caplog.records) == ([], [])
    assert count >= (5 if tools else 1)


@pytest.mark.parametrize("kind", [kind for kind in FRAMES if "words" not in kind and "recipient" not in kind])
def test_a_reply_that_was_cut_shows_no_part_of_its_frame(kind: str) -> None:
    made = renderer(FRAMES[kind], tools=False)
    parser = choose_reader(made).parser
    for text, opened, (thought, said, _) in printed(made, function_ids=False):
        reader = parser if opened is None else parser.with_think_tokens(opened)
        for cut in range(len(text) + 1):
            if re.search(r"<[^<>\s]*$|\n<\|im_start\|>$", text[:cut]) and said not in text[:cut]:
                continue  # inside a token, which is sampled whole
            read = reader.parse_all(text[:cut], in_reasoning=opened is not None)
            assert thought.startswith(read.reasoning.strip()), text[:cut]
            assert said.startswith(read.text.strip()) or re.search(r"<[^<>\s]*$", text[:cut]), text[:cut]


@pytest.mark.parametrize("tools", [[], [SPEC]], ids=["without tools", "with tools"])
async def test_an_answer_is_read_without_its_frame_and_printed_again_with_it_once(tools: list[Any]) -> None:
    client = Replay(["<|START_RESPONSE|>425<|END_RESPONSE|>", "more"])
    conversation = Conversation(tokenizer=tokenizer(), client=client, chat_template=RESPONSE)
    sampled = await conversation.turn(TurnRequest(messages=GO, tools=tools))
    assert sampled.reply.text == "425"
    history = [*GO, {"role": "assistant", "content": [{"text": sampled.reply.text}]}, *GO]
    anew = conversation.prepare(TurnRequest(messages=history, tools=tools, system="Another."))
    assert conversation.text_of(anew.prompt.ids).count("<|START_RESPONSE|>425<|END_RESPONSE|>") == 1


@pytest.mark.parametrize(
    ("sampled", "text"),
    [
        ("<|START_RESPONSE|>a <|END_RESPONSE|> b<|END_RESPONSE|>", "a <|END_RESPONSE|> b"),
        ("<|START_RESPONSE|><|START_RESPONSE|>a", "<|START_RESPONSE|>a"),
        ("a<|START_RESPONSE|>b", "a<|START_RESPONSE|>b"),
        ("\n<|START_RESPONSE|>\nä<|END_RESPONSE|>\n", "ä"),
        ("<|START_RESPONSE|><|END_RESPONSE|>", ""),
        ("<|START_RESPONSE|>", ""),
        ("<|END_RESPONSE|>", ""),
        (f"<|START_RESPONSE|>I look.<|END_RESPONSE|>{CALL}", "I look."),
        (f"<think>So<|END_RESPONSE|></think><|START_RESPONSE|>a<|END_RESPONSE|>{CALL}b", "ab"),
        ("", ""),
    ],
)
def test_a_frame_is_taken_off_once_at_the_edges_and_nowhere_else(sampled: str, text: str) -> None:
    read = choose_reader(renderer(RESPONSE, tools=True)).parser.parse_all(sampled)
    assert read.text.strip() == text
    assert "".join(sampled[start:end] for _, start, end in read.segments) == sampled


def texts_in(answer: Any) -> Iterator[str]:
    """Every text under the keys by which dialects give visible text."""
    if isinstance(answer, list):
        for each in answer:
            yield from texts_in(each)
    elif isinstance(answer, dict):
        for key, value in answer.items():
            if isinstance(value, str) and key in ("content", "text"):
                yield value
            yield from texts_in(value)


def test_markers_that_nothing_takes_off_are_refused_with_tools_and_warned_of_once_without(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strands_sglang.conversation.formats._warned", set())  # a test before may have been warned
    caplog.set_level(logging.WARNING)
    for tools in ([], [], [SPEC]):
        conversation = Conversation(tokenizer=tokenizer(), client=Replay([]), chat_template=ONE_BAR)
        with pytest.raises(TemplateError) if tools else nullcontext() as refusal:
            conversation.prepare(TurnRequest(messages=GO, tools=tools))
    assert "'<|bar|>REASONING<|bar|>TEXT'" in str(refusal.value)
    assert [record.message.count("'<|bar|>REASONING<|bar|>TEXT'") for record in caplog.records] == [1]


@pytest.mark.parametrize("tags", [None, ("<mine>", "</mine>")])
def test_who_names_tags_of_reasoning_or_asks_for_none_is_not_overruled(tags: Any) -> None:
    for template in (FRAMES["a header behind reasoning"], ONE_BAR):
        parser = choose_reader(renderer(template, tools=True), HermesToolParser(think_tokens=tags)).parser
        read = parser.parse_all("<mine>a</mine>b<|musing|>c")
        assert (read.reasoning, read.text) == (
            ("", "<mine>a</mine>b<|musing|>c") if tags is None else ("a", "b<|musing|>c")
        )


STEPS, SHORT = "My steps:", "\n[BEGIN FINAL RESPONSE]\n"


@pytest.mark.parametrize(
    ("prompt", "opening", "sampled"),
    [
        (f"{STEPS}\n", "", f"I add.{SHORT}425."),
        (f"{STEPS}\n", f"{STEPS}\n", f"I add.{SHORT}425."),
        ("", f"{STEPS}\n", f"{STEPS}\nI add.{SHORT}425."),
        ("", f"{STEPS}\n", "425."),
    ],
    ids=["only the prompt opens it", "the prompt opens it", "the reply opens it", "no reasoning"],
)
async def test_words_open_reasoning_where_a_reply_begins_and_are_text_further_on(
    prompt: str, opening: str, sampled: str
) -> None:
    template = framed(prompt=prompt, thought=(opening, SHORT), text_alone=("", ""))
    conversation = Conversation(
        tokenizer=tokenizer(), client=Replay([f"{sampled} {STEPS} 4, 25."]), chat_template=template
    )
    reply = (await conversation.turn(TurnRequest(messages=GO))).reply
    assert (reply.text.strip(), reply.reasoning.strip()) == (
        f"425. {STEPS} 4, 25.",
        "I add." if SHORT in sampled else "",
    )


@pytest.mark.parametrize("stop", ["<|message_sep|>", "<|im_end|>"])
@pytest.mark.parametrize(
    ("sampled", "text", "calls"),
    [("425", "425", 0), ('<|function_call|>{"name": "add", "arguments": {"a": 1}}', "", 1), ("<think>hm", "", 0)],
)
async def test_a_stop_token_that_ends_calls_is_no_part_of_an_answer(
    sampled: str, text: str, calls: int, stop: str
) -> None:
    tok = make_tiny_tokenizer(1024, 4096, ("<|message_sep|>", "<|function_call|>"))
    ids = [*tok.encode(sampled, add_special_tokens=False), tok.convert_tokens_to_ids(stop)]
    conversation = Conversation(
        tokenizer=tok,
        client=ScriptedClient([Reply(ids=ids, finish="stop", matched=ids[-1])], tokenizer=tok),
        stop_tokens=["<|message_sep|>", "<|im_end|>"],
        chat_template=GIGACHAT,
    )
    reply = (await conversation.turn(TurnRequest(messages=GO, tools=[SPEC]))).reply
    assert (reply.text, len(reply.calls), "<|" in reply.reasoning) == (text, calls, False)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_clients_of_the_gateway_see_no_marker(path: str) -> None:
    script = [completion("<|START_RESPONSE|>4 < 25<|END_RESPONSE|>") for _ in range(2)]
    async with rig(script, chat_template=RESPONSE) as r:
        body = {"model": "m", "max_tokens": 99, "messages": [{"role": "user", "content": "Hi"}]}
        whole, events = await r.post(path, body), await r.events(path, body)
    for answer in (whole, events):
        assert "4 < 25" in "".join(texts_in(answer))
        assert "_RESPONSE" not in json.dumps(answer)
