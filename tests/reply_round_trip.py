"""The round trip of replies: what a template prints for known parts has to be read back as these parts.

With small templates of our own, one for each kind of frame.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from strands_sglang.conversation.reply_format import choose_reader
from strands_sglang.template import DeltaRenderer

ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {
            "type": "object",
            "properties": {
                "note": {"type": "string", "description": "A note."},
                "n": {"type": "integer", "description": "A number."},
            },
            "required": ["note", "n"],
        },
    },
}
THOUGHT = "First a look,\nthen 2 < 3?"
SAID = "**425**, so: 425.\n\n- all of it"
ASKED = "What is it?"
PARTS = [(False, True, 0), (True, True, 0), (False, False, 1), (False, True, 1), (True, False, 1), (True, True, 1)]
PARTS += [(False, False, 2), (True, True, 2)]

Parts = tuple[str, str, list[dict[str, Any]]]


def note(number: int) -> str:
    return f"Zürich <b> {number}"


def arguments(number: int) -> dict[str, Any]:
    return {"note": note(number), "n": number}


def printed(renderer: DeltaRenderer, *, function_ids: bool) -> Iterator[tuple[str, tuple[str, str] | None, Parts]]:
    """Each reply as a model would sample it, the tags of the reasoning that it begins in, and its parts."""
    render = renderer._checked.render  # in the forms that the template takes
    asked = {"role": "user", "content": ASKED}
    prompt = renderer.initial([asked]).rpartition(ASKED)[2]
    for has_thought, has_text, count in PARTS:
        if count and renderer.tools is None:
            continue
        ids = [f"functions.add:{number}" if function_ids else f"abcdefgh{number}" for number in range(count)]
        turn: dict[str, Any] = {"role": "assistant", "content": SAID if has_text else ""}
        if has_thought:
            turn |= {"reasoning_content": THOUGHT, "reasoning": THOUGHT}
        if count:
            functions = [{"name": "add", "arguments": arguments(number)} for number in range(count)]
            turn["tool_calls"] = [
                {"id": each, "type": "function", "function": function}
                for each, function in zip(ids, functions, strict=True)
            ]
        results = [{"role": "tool", "tool_call_id": each, "name": "add", "content": f"Got {each}."} for each in ids]
        for following in ([], results or [{"role": "user", "content": "And then?"}]):
            try:
                whole = render([asked, turn, *following], generate=False).partition(ASKED)[2]
            except Exception:  # not a shape of this template
                continue
            first = min((at for each in (THOUGHT, SAID, note(0)) if (at := whole.find(each)) >= 0), default=0)
            start, goes_on = _start(whole[:first], prompt)
            if start is None or (start == first and has_thought and not goes_on):
                continue  # no reply to this prompt, which has closed the block, or ends inside the header of another
            text = whole[start:]
            last = text.rfind(note(count - 1)) if count else text.find(SAID) + len(SAID)
            ends = [at for stop in renderer._step.vocabulary.stops if (at := text.find(stop, max(last, 0))) >= 0]
            if following and not ends:
                continue  # nothing tells where the turn ends
            text = text[: min(ends, default=len(text))]
            opened = renderer.report.opened_tags(prompt) if goes_on else None
            parts = THOUGHT if THOUGHT in text else "", SAID if SAID in text else "", list(map(arguments, range(count)))
            if not all(note(number) in text for number in range(count)) or not (parts[1] or count):
                continue  # the template drops them
            if opened and not parts[0] and opened[1] not in text:
                continue  # no reply to this prompt, which has opened reasoning
            yield text, opened, parts


def _start(before: str, prompt: str) -> tuple[int | None, bool]:
    """Where the reply starts in the text before its parts, and True if that text goes on where the prompt ends."""
    if before.startswith(stem := prompt.rstrip()):
        return len(stem), True
    header = re.sub(r"<\w+>$", "", stem)  # without the reasoning that it opens
    for end in (r"\S+$", r"<[^<>\s]+>$"):
        found = re.search(end, header)
        if found and found[0] in before and not found[0].startswith("<think>"):
            return before.index(found[0]) + len(found[0]), False
    same = next((at for at, (a, b) in enumerate(zip(before, prompt, strict=False)) if a != b), len(before))
    if (
        before[same : same + 1].isalpha()
        and prompt[same : same + 1].isalpha()
        and "<" not in before[:same].split(">")[-1]
    ):
        return None, False
    return len(re.sub(r"<[^<>\s]*$", "", before[:same])), False


def misread(renderer: DeltaRenderer) -> tuple[int, list[tuple[str, Any]]]:
    """The number of replies read, and those that are not read back as their parts."""
    reader = choose_reader(renderer)
    wrong, count = [], 0
    for text, opened, parts in printed(renderer, function_ids=reader.needs_function_ids):
        count += 1
        parser = reader.parser if opened is None else reader.parser.with_think_tokens(opened)
        for sampled in (text, text + parser.tool_end_token):  # a stop token may end the call
            read = parser.parse_all(sampled, in_reasoning=opened is not None, tools=renderer.tools)
            if len(read.calls) == len(parts[2]):
                break
        got = read.reasoning.strip(), read.text.strip(), [call.input for call in read.calls]
        if got != parts or any(call.name != "add" for call in read.calls):
            wrong.append((text, got))
    return count, wrong


# ---- templates, one for each kind of frame


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
        prompt="<|channel|>outer",
        thought=("<|channel|>inner<|message|>", "<|end|>"),
        text=("<|channel|>outer<|message|>", "<|end|>"),
    ),
    "a frame of the text that only reasoning brings": framed(
        thought=("<|musing|>", "<|/musing|>"), text=("<|say|>", "<|/say|>"), text_alone=("", "")
    ),
    "words that close reasoning": framed(
        prompt="My steps:\n", thought=("My steps:\n", "\n[BEGIN FINAL RESPONSE]\n"), text_alone=("", "")
    ),
}
ONE_BAR = framed(thought=("<|bar|>", "<|bar|>"))
