"""Later steps of a kind are checked against what the first one has shown, and a step that differs is not."""

from __future__ import annotations

from typing import Any

import pytest

from strands_sglang import LostContentError
from strands_sglang.template import ChatTemplate, DeltaRenderer

STOP = "<|im_end|>"
PAST = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]


def renderer(printed: str) -> DeltaRenderer:
    """A template that prints a user's message in some way, after a step with an ordinary one."""
    turn = "{% if m.role == 'user' %}" + printed + "{% else %}{{ m.content }}{% endif %}"
    loop = "{% for m in messages %}<|{{ m.role }}|>" + turn + "<|im_end|>{% endfor %}"
    made = DeltaRenderer(loop + "{% if add_generation_prompt %}<|assistant|>{% endif %}", stop_tokens=[STOP])
    assert made.delta(PAST, [{"role": "user", "content": "Bye"}]).text
    return made


def count_renderings(monkeypatch: pytest.MonkeyPatch, known: DeltaRenderer, *new: dict[str, Any]) -> int:
    render, made = ChatTemplate.render, []

    def counted(self: ChatTemplate, *args: Any, **options: Any) -> str:
        made.append(render(self, *args, **options))
        return made[-1]

    monkeypatch.setattr(ChatTemplate, "render", counted)
    known.delta(PAST, new)
    return len(made)


@pytest.mark.parametrize("content", ["Bye", " padded\n", "0", '"quoted" <b>', STOP[:-1]])
def test_a_known_kind_of_step_is_rendered_once(content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert count_renderings(monkeypatch, renderer("{{ m.content }}"), {"role": "user", "content": content}) == 1


def test_a_new_kind_of_step_is_rendered_with_markers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    two = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert count_renderings(monkeypatch, renderer("{{ m.content }}"), *two) > 1


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
    delta = renderer(printed).delta(PAST, [{"role": "user", "content": content}])
    assert delta.text == f"<|user|>{expected}{STOP}<|assistant|>"


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
        renderer(printed).delta(PAST, [{"role": "user", "content": content}])
