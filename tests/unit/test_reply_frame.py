"""The frame of replies: what a chat template prints around reasoning, text and calls belongs to none of them."""

from __future__ import annotations

from typing import Any

import pytest
from provider_support import GO, Replay, tokenizer

from strands_sglang.conversation import Conversation, TurnRequest

SPEC: Any = {"name": "add", "description": "Adds.", "inputSchema": {"json": {"type": "object", "properties": {}}}}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


def framed(
    *,
    prompt: str = "",
    thought: tuple[str, str] | None = None,
    text: tuple[str, str],
    calls: tuple[str, str] = ("", ""),
) -> str:
    """A ChatML template that prints these texts in front of and behind the parts of a reply."""
    reasoning = "" if thought is None else f"{{% if m.reasoning_content %}}{'{}R{}'.format(*thought)}{{% endif %}}"
    return (
        "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}{% for m in messages %}"
        "{% if m.role == 'assistant' %}<|im_start|>assistant\n"
        f"{reasoning.replace('R', '{{ m.reasoning_content }}')}"
        f"{{% if m.content %}}{text[0]}{{{{ m.content }}}}{text[1]}{{% endif %}}"
        f"{{% for c in m.tool_calls or [] %}}{calls[0]}<tool_call>"
        '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
        f"</tool_call>{calls[1]}{{% endfor %}}<|im_end|>\n"
        "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
        f"{{% if add_generation_prompt %}}<|im_start|>assistant\n{prompt}{{% endif %}}"
    )


RESPONSE = framed(text=("<|START_RESPONSE|>", "<|END_RESPONSE|>"))


@pytest.mark.parametrize("tools", [[], [SPEC]], ids=["without tools", "with tools"])
async def test_an_answer_is_read_without_its_frame_and_printed_again_with_it_once(tools: list[Any]) -> None:
    client = Replay(["<|START_RESPONSE|>425<|END_RESPONSE|>", "more"])
    conversation = Conversation(tokenizer=tokenizer(), client=client, chat_template=RESPONSE)
    sampled = await conversation.turn(TurnRequest(messages=GO, tools=tools))
    assert sampled.reply.text == "425"
    history = [*GO, {"role": "assistant", "content": [{"text": sampled.reply.text}]}, *GO]
    anew = conversation.prepare(TurnRequest(messages=history, tools=tools, system="Another."))
    assert conversation.text_of(anew.prompt.ids).count("<|START_RESPONSE|>425<|END_RESPONSE|>") == 1
