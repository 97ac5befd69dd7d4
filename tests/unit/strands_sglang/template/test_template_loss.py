"""Histories that are rendered anew lose nothing silently."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from strands_sglang import LostContentError
from strands_sglang.template import ChatTemplate, DeltaRenderer, Flag
from strands_sglang.template.loss import require_content
from tests.unit.template_texts import CHATML, LLAMA

STOP = "<|eot_id|>"
USER = {"role": "user", "content": "Go."}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


def call(index: int = 0) -> dict[str, Any]:
    return {"id": f"abcdefgh{index}", "type": "function", "function": {"name": "f", "arguments": {"x": index}}}


def turn(content: str, *calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


RESULT = {"role": "tool", "tool_call_id": "abcdefgh0", "name": "f", "content": "I will look. Looked."}
SPOKEN = [USER, turn("I will look.", call()), RESULT]


def llama(source: str = LLAMA, **options: Any) -> DeltaRenderer:
    template = ChatTemplate(source, special_values={"bos_token": "<s>"})
    return DeltaRenderer(template, **{"tools": [TOOL], "stop_tokens": [STOP], **options})


def test_text_beside_a_call_becomes_a_message_of_its_own_where_the_template_drops_it() -> None:
    assert Flag.DROPS_TEXT_BESIDE_CALLS in llama().report.flags
    text = llama().root(SPOKEN).text
    assert text.index("I will look.<|eot_id|>") < text.index('"name": "f"') < text.index("Looked.")


def test_text_beside_a_call_is_an_error_or_dropped_on_request() -> None:
    with pytest.raises(LostContentError, match=r"drops the content 'I will look\.'"):
        llama(dropped_content="error").root(SPOKEN)
    assert llama(dropped_content="allow").root(SPOKEN).text.count("I will look.") == 1


def test_a_template_that_prints_text_and_calls_is_left_alone() -> None:
    renderer = DeltaRenderer(CHATML, tools=[TOOL], stop_tokens=["<|im_end|>"], dropped_content="error")
    assert Flag.DROPS_TEXT_BESIDE_CALLS not in renderer.report.flags
    assert renderer.root(SPOKEN).text.count("<|im_start|>assistant") == 2


def test_two_assistant_messages_in_a_row_may_be_refused_too() -> None:
    source = "{% if messages[1] and messages[2] and messages[1].role == messages[2].role %}{{ raise_exception('no') }}"
    with pytest.raises(LostContentError, match="neither text beside tool calls"):
        llama(source + "{% endif %}" + LLAMA).root(SPOKEN)


def test_a_second_call_that_is_not_printed_is_missed() -> None:
    first = CHATML.replace("message.tool_calls or []", "(message.tool_calls or [])[:1]")
    renderer = DeltaRenderer(first, tools=[TOOL], stop_tokens=["<|im_end|>"])
    with pytest.raises(LostContentError, match="drops the call of the tool 'f'"):
        renderer.root([USER, turn("", call(0), call(1)), RESULT])


def test_a_template_that_never_prints_calls_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    silent = "{% set unique = 'drops calls' %}" + CHATML.replace("message.tool_calls or []", "[]")
    renderer = DeltaRenderer(silent, tools=[TOOL], stop_tokens=["<|im_end|>"])
    with caplog.at_level(logging.WARNING):
        renderer.root([USER, turn("", call()), RESULT])
        renderer.root([USER, turn("", call()), RESULT])
    assert len([record for record in caplog.records if "drops the tool calls" in record.message]) == 1


def test_words_elsewhere_in_the_prompt_prove_nothing() -> None:
    messages = [{"role": "user", "content": "one"}, {"role": "user", "content": "two one"}]
    with pytest.raises(LostContentError, match="drops the content 'one'"):
        require_content(messages, "user: \nuser: two one\n", lambda ms: "".join(f"user: {m['content']}\n" for m in ms))


@pytest.mark.parametrize(
    "content", ["  trimmed \n", 'json "quoted"\n', "a<|eot_id|>b", "Usr\n\nuser\n", "x" * 5000, "/no_think go"]
)
def test_content_that_is_trimmed_or_looks_like_the_template_is_found(content: str) -> None:
    said = {"role": "assistant", "content": "Said."}
    assert llama().root([{"role": "user", "content": content}, said, {"role": "user", "content": "Go."}])


def test_reasoning_in_the_text_of_a_past_turn_may_be_dropped() -> None:
    source = CHATML.replace("message.content or ''", "(message.content or '').split('</think>')[-1]")
    renderer = DeltaRenderer(source, stop_tokens=["<|im_end|>"])
    assert renderer.root([USER, {"role": "assistant", "content": "<think>Hm.</think>Yes."}, USER])
    with pytest.raises(LostContentError, match="drops the content"):
        renderer.root([{"role": "user", "content": "What is </think> for?"}])


# ---- later steps of a kind are checked against what the first one has shown, and a step that differs is not

END = "<|im_end|>"
PAST = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]


def printing(printed: str) -> DeltaRenderer:
    """A template that prints a user's message in some way, after a step with an ordinary one."""
    turn = "{% if m.role == 'user' %}" + printed + "{% else %}{{ m.content }}{% endif %}"
    loop = "{% for m in messages %}<|{{ m.role }}|>" + turn + "<|im_end|>{% endfor %}"
    made = DeltaRenderer(loop + "{% if add_generation_prompt %}<|assistant|>{% endif %}", stop_tokens=[END])
    assert made.delta(PAST, [{"role": "user", "content": "Bye"}]).text
    return made


def count_renderings(monkeypatch: pytest.MonkeyPatch, known: DeltaRenderer, *new: dict[str, Any]) -> int:
    render, made = ChatTemplate.render_as_given, []

    def counted(self: ChatTemplate, *args: Any, **options: Any) -> str:
        made.append(render(self, *args, **options))
        return made[-1]

    monkeypatch.setattr(ChatTemplate, "render_as_given", counted)
    known.delta(PAST, new)
    return len(made)


@pytest.mark.parametrize("content", ["Bye", " padded\n", "0", '"quoted" <b>', END[:-1]])
def test_a_known_kind_of_step_is_rendered_once(content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert count_renderings(monkeypatch, printing("{{ m.content }}"), {"role": "user", "content": content}) == 1


def test_a_new_kind_of_step_is_rendered_with_markers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    two = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert count_renderings(monkeypatch, printing("{{ m.content }}"), *two) > 1


@pytest.mark.parametrize(
    ("printed", "content", "expected"),
    [
        ("{{ m.content | trim }}", " a ", "a"),
        ("{% if m.content.startswith('/') %}!{% endif %}{{ m.content }}", "/a", "!/a"),
        ("{% if '/no' in m.content %}{{ m.content }}!{% else %}{{ m.content }}{% endif %}", "b /no", "b /no!"),
        ("{{ m.content | tojson }}", 'a\n"b"', '"a\\n\\"b\\""'),
        ("{% if m.content | length > 3 %}long {% endif %}{{ m.content }}", "abcd", "long abcd"),
    ],
)
def test_a_content_that_the_template_looks_at_is_printed_as_it_prints_it(
    printed: str, content: str, expected: str
) -> None:
    delta = printing(printed).delta(PAST, [{"role": "user", "content": content}])
    assert delta.text == f"<|user|>{expected}{END}<|assistant|>"


@pytest.mark.parametrize(
    ("printed", "content"),
    [
        ("{% if m.content != 'stop' %}{{ m.content }}{% endif %}", "stop"),
        ("{{ m.content | replace('longer', '') }}", "a longer one"),
        ("{{ m.content.split('#')[0] }}", "one #two"),
        ("{% if 'x' in m.content %}Bye{% else %}{{ m.content }}{% endif %}", "a box"),
    ],
)
def test_a_content_that_the_template_loses_is_refused_after_others_too(printed: str, content: str) -> None:
    with pytest.raises(LostContentError):
        printing(printed).delta(PAST, [{"role": "user", "content": content}])
