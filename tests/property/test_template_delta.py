"""First prompt, sampled turns and deltas add up to what the template prints for the whole conversation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strands_sglang.exceptions import TemplateError
from strands_sglang.template import ChatTemplate, DeltaRenderer
from strands_sglang.template.chat_messages import HistoryPart
from tests.unit.template_texts import CHATML, GLM, LLAMA, TOOLS

# The three print a sampled turn literally, so here a full rendering is the truth.
FAMILIES = {
    "chatml": (CHATML, ["<|im_end|>"]),
    "glm": (GLM, ["<|user|>", "<|observation|>"]),
    "llama": (LLAMA, ["<|eot_id|>"]),
    "numbered": (CHATML.replace("<tool_response>\n", "<tool_response>{{ loop.index }}\n"), ["<|im_end|>"]),
    "separated": (CHATML.replace("<|im_end|>\n", "<|im_end|>\n----\n\n"), ["<|im_end|>"]),
    "plain closer": (CHATML.replace("<|im_end|>", "*** end ***"), ["*** end ***"]),
}
TEMPLATES = {name: (ChatTemplate(source), stops) for name, (source, stops) in FAMILIES.items()}

# Words: LLAMA trims, and no content may spell a marker of a turn.
words = st.text(
    st.characters(codec="utf-8", exclude_characters="<|*[", exclude_categories=["C", "Z"]), min_size=1, max_size=20
)
sentences = st.lists(words, min_size=1, max_size=4).map(" ".join)
arguments = st.dictionaries(
    st.text("abcxyz", min_size=1, max_size=3),
    sentences | st.integers() | st.booleans() | st.lists(st.integers()),
    max_size=3,
)


@st.composite
def rounds(draw: st.DrawFn) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Assistant turns, each with the messages that follow it."""
    out = []
    for i in range(draw(st.integers(1, 4))):
        count = draw(st.integers(0, 2))
        calls = [
            {"id": f"id{i:04d}{k:03d}", "type": "function", "function": {"name": "add", "arguments": draw(arguments)}}
            for k in range(count)
        ]
        if calls:
            turn = {"role": "assistant", "content": "", "tool_calls": calls}
            new = [{"role": "tool", "tool_call_id": c["id"], "name": "add", "content": draw(sentences)} for c in calls]
        else:
            turn, new = {"role": "assistant", "content": draw(sentences)}, []
        if not new or draw(st.booleans()):
            new.append({"role": "user", "content": draw(sentences)})
        out.append((turn, new))
    return out


@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
def test_the_parts_add_up_to_the_whole(family: str, data: st.DataObject) -> None:
    template, stops = TEMPLATES[family]
    renderer = DeltaRenderer(template, tools=TOOLS, stop_tokens=stops)
    messages: list[dict[str, Any]] = [{"role": "user", "content": data.draw(sentences)}]
    if data.draw(st.booleans()):
        messages.insert(0, {"role": "system", "content": data.draw(sentences)})
    trajectory = renderer.initial(messages)
    for turn, new in data.draw(rounds()):
        messages.append(turn)
        try:
            delta = renderer.delta(messages, new)
        except TemplateError:
            assert family == "llama" and len(turn.get("tool_calls", [])) > 1
            return
        messages += new
        whole = template.render(messages, tools=TOOLS, add_generation_prompt=True)
        assert whole.startswith(trajectory)
        assert whole.endswith(delta.closer + delta.text)
        sampled = whole[len(trajectory) : len(whole) - len(delta.text)]
        _assert_is_the_turn(sampled.removesuffix(delta.closer), turn)
        trajectory += sampled + delta.text
    assert trajectory == whole
    assert delta.history is (HistoryPart.FULL if family == "numbered" else HistoryPart.SHORT)


def _assert_is_the_turn(sampled: str, turn: dict[str, Any]) -> None:
    """The text between two deltas is that of this turn alone."""
    assert turn["content"] in sampled
    for call in turn.get("tool_calls", []):
        values = call["function"]["arguments"].values()
        assert all(value in sampled for value in values if isinstance(value, str) and json.dumps(value)[1:-1] == value)
    assert not any(
        mark in sampled for mark in ("<|im_start|>", "<|start_header_id|>", "<tool_response>", "<|assistant|>")
    )


@given(
    closer=words, separator=st.sampled_from(["", "\n", "\n\n", " ", "||"]), content=sentences, truncated=st.booleans()
)
def test_any_closer_and_separator(closer: str, separator: str, content: str, truncated: bool) -> None:
    closer = "<|" + closer.replace("{", "").replace("}", "") + "|>"
    body = json.dumps(separator)
    source = (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}" + closer
        + "{{ " + body + " }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )  # fmt: skip
    renderer = DeltaRenderer(source, stop_tokens=[closer])
    history, new = (
        [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}],
        [{"role": "user", "content": content}],
    )
    delta = renderer.delta(history, new, emitted=None if truncated else closer, truncated=truncated)
    expected = separator + "<|user|>" + content + closer + separator + "<|assistant|>"
    assert delta.text == (closer + expected if truncated else expected)
