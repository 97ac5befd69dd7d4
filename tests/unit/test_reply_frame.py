"""The frame of replies: what a chat template prints around reasoning, text and calls belongs to none of them."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import Any

import pytest
from provider_support import GO, Replay, tokenizer
from reply_round_trip import ADD, misread

from strands_sglang.backends.engine.tiny import make_tiny_tokenizer
from strands_sglang.conversation import Conversation, TurnRequest
from strands_sglang.conversation.reply_format import choose_reader
from strands_sglang.exceptions import TemplateError
from strands_sglang.template import DeltaRenderer
from strands_sglang.testing import Reply, ScriptedClient
from strands_sglang.tool_parsers import HermesToolParser

SPEC: Any = {"name": "add", "description": "Adds.", "inputSchema": {"json": {"type": "object", "properties": {}}}}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


def framed(
    *,
    prompt: str = "",
    thought: tuple[str, str] | None = None,
    text: tuple[str, str] = ("", ""),
    text_alone: tuple[str, str] | None = None,
    calls: tuple[str, str] = ("", ""),
    each: tuple[str, str] = ("", ""),
    end: str = "<|im_end|>\n",
) -> str:
    """A ChatML template that prints such texts in front of and behind the parts of a reply.

    Args:
        prompt: The rest of the generation prompt.
        text_alone: Around text without reasoning, if other than `text`.
        calls, each: Around all calls of a reply, and around each.
    """

    def between(value: str, pair: tuple[str, str]) -> str:
        return f"{pair[0]}{{{{ {value} }}}}{pair[1]}"

    said = between("m.content", text)
    if text_alone is not None:
        alone = between("m.content", text_alone)
        said = f"{{% if m.reasoning_content %}}{said}{{% else %}}{alone}{{% endif %}}"
    call = '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    return (
        "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}{% for m in messages %}"
        "<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
        f"{{% if m.reasoning_content %}}{between('m.reasoning_content', thought) if thought else ''}{{% endif %}}"
        f"{{% if m.content %}}{said}{{% endif %}}"
        f"{{% if m.tool_calls %}}{calls[0]}{{% for c in m.tool_calls %}}{each[0]}<tool_call>{call}</tool_call>{each[1]}"
        f"{{% endfor %}}{calls[1]}{{% endif %}}{end}"
        "{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
        f"{{% if add_generation_prompt %}}<|im_start|>assistant\n{prompt}{{% endif %}}"
    )


GIGACHAT = framed(end="<|message_sep|>\n").replace("</tool_call>", "").replace("<tool_call>", "<|function_call|>")
RESPONSE = framed(text=("<|START_RESPONSE|>", "<|END_RESPONSE|>"))
FRAMES = {
    "no frame": framed(thought=("<think>\n", "\n</think>\n\n")),
    "markers around the text": RESPONSE,
    "markers and reasoning that the prompt opens": framed(
        prompt="<think>", thought=("<think>", "</think>"), text=("<|START_TEXT|>", "<|END_TEXT|>")
    ),
    "text blocks that no name tells from reasoning": framed(
        thought=("<|block:a|>", "<|end|>"), text=("<|block:b|>", "<|end|>"), calls=("<|block:c|>", "<|end|>")
    ),
    "a tag of several tokens, opened by the prompt": framed(
        prompt="<|open|>muse<|sep|>",
        thought=("<|open|>muse<|sep|>", "<|close|>muse<|sep|>"),
        text=("<|open|>say<|sep|>", "<|close|>say<|sep|>"),
        text_alone=("<|open|>muse<|sep|><|close|>muse<|sep|><|open|>say<|sep|>", "<|close|>say<|sep|>"),
        calls=("<|open|>do<|sep|>", "<|close|>do<|sep|>"),
    ),
    "a header behind reasoning": framed(
        thought=("<|musing|>", "<|end|>\n<|im_start|>assistant\n"), text=("<|content|>", "")
    ),
    "a recipient in plain words": framed(text=("all\n", ""), calls=("\n>>>", "")),
    "a recipient for each part": framed(
        thought=(" to=self<|message|>", "<|eom|><|start|>assistant"), text=(" to=user<|message|>", "")
    ),
    "a wrapper around all calls": framed(calls=("<tool_calls>\n", "\n</tool_calls>")),
    "a wrapper around each call": framed(each=("<tool_calls>", "</tool_calls>")),
    "a prompt that ends inside the opening of reasoning": framed(
        prompt="<|channel|>inner",
        thought=("<|channel|>inner<|message|>", "<|end|>"),
        text=("<|channel|>outer<|message|>", ""),
    ),
    "a prompt that ends inside the opening of the text": framed(
        prompt="<|channel|>outer", text=("<|channel|>outer<|message|>", "<|end|>")
    ),
    "words that close reasoning": framed(
        prompt="My steps:\n", thought=("My steps:\n", "\n[BEGIN FINAL RESPONSE]\n"), text_alone=("", "")
    ),
}


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


ONE_BAR = framed(thought=("<|bar|>", "<|bar|>"))


def test_markers_that_nothing_takes_off_are_refused_with_tools_and_warned_of_once_without(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    for tools in (False, False, True):
        with pytest.raises(TemplateError) if tools else nullcontext() as refusal:
            choose_reader(renderer(ONE_BAR, tools=tools))
    assert "'<|bar|>REASONING<|bar|>TEXT'" in str(refusal.value)
    assert [record.message.count("'<|bar|>REASONING<|bar|>TEXT'") for record in caplog.records] == [1]
    # Who asks for no reasoning sees it as text, with its tags.
    as_text = choose_reader(renderer(ONE_BAR, tools=True), HermesToolParser(think_tokens=None)).parser
    assert as_text.parse_all("<|bar|>a<|bar|>b").text == "<|bar|>a<|bar|>b"


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
