"""Compiled deltas: only where nothing about the content matters, or the same as before."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from strands_sglang import TemplateError
from strands_sglang.template import DeltaRenderer
from strands_sglang.template.compiled import CompiledDelta

STOP = "<|im_end|>"
PAST = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]


ONE_USER = ("user", ("user", None, None))
"""Key of a step with one user message, after a turn that answered one."""


class Nothing(dict[Any, Any]):
    """Keeps no compiled deltas."""

    def __contains__(self, key: object) -> bool:
        return True


def template(printed: str, before: str = "") -> str:
    turn = "{% if m.role == 'user' %}" + printed + "{% else %}{{ m.content }}{% endif %}"
    loop = "{% for m in messages %}<|{{ m.role }}|>" + turn + "<|im_end|>{% endfor %}"
    return before + loop + "{% if add_generation_prompt %}<|assistant|>{% endif %}"


def compiled(source: str) -> tuple[DeltaRenderer, CompiledDelta | None]:
    renderer = DeltaRenderer(source, stop_tokens=[STOP])
    renderer.delta(PAST, [{"role": "user", "content": "Bye"}])
    return renderer, renderer._compiled[ONE_USER]


def is_assembled(source: str, content: str) -> bool:
    """True if a step with this content needs no rendering; its answer is checked against one."""
    renderer, found = compiled(source)
    assert found is not None
    new = [{"role": "user", "content": content}]
    fresh = DeltaRenderer(source, stop_tokens=[STOP])
    assert fresh.report
    fresh._compiled = Nothing()
    assert renderer.delta(PAST, new).text == fresh.delta(PAST, new).text
    return found.text(["Hi", content]) is not None


@pytest.mark.parametrize(
    "printed",
    [
        "{{ m.content }}",
        "{{ 'a' ~ m.content ~ 'b' }}",
        "{{ '[' + m.content + ']' }}",
        "{% set x %}{{ m.content }}{% endset %}{{ x }}",
        "{% if m.content is string %}{{ m.content }}{% else %}{{ m.content[0].text }}{% endif %}",
        "{{ ['x', m.content] | join(' ') }}",
    ],
)
def test_content_that_is_only_printed_is_assembled_whatever_it_is(printed: str) -> None:
    for content in ("Bye", ' "x"\n', "", "0"):
        assert is_assembled(template(printed), content)


@pytest.mark.parametrize(
    ("printed", "same", "other"),
    [
        ("{{ m.content | trim }}", "a b", " a"),
        ("{{ m.content.strip() }}", "a b", "a\n"),
        ("{% if m.content.startswith('/') %}!{% endif %}{{ m.content }}", "a", "/a"),
        ("{% if '/no' in m.content %}!{% endif %}{{ m.content }}", "a", "b /no"),
        ("{% if m.content == 'stop' %}!{% endif %}{{ m.content }}", "a", "stop"),
        ("{% if m.content in ['stop', 'end'] %}!{% endif %}{{ m.content }}", "a", "end"),
        ("{% if not m.content %}!{% endif %}{{ m.content }}", "a", ""),
        ("{{ m.content.split('</think>')[-1] }}", "a", "b</think>a"),
        ("{{ m.content | replace('x', 'yy') }}", "a", "x"),
        ("{% if messages[0].content == m.content %}!{% endif %}{{ m.content }}", "a", "Hi"),
        ("{% macro show(c) %}{{ c }}{% endmacro %}{{ show(m.content) | trim }}", "a", " a "),
    ],
)
def test_a_question_about_the_content_is_asked_again(printed: str, same: str, other: str) -> None:
    assert is_assembled(template(printed), same)
    with contextlib.suppress(TemplateError):  # the rendering itself may be refused: some of these lose content
        assert not is_assembled(template(printed), other)


@pytest.mark.parametrize(
    "printed",
    [
        "{{ m.content | tojson }}",
        "{{ (' ' ~ m.content ~ ' ') | trim }}",
        "{{ {'text': m.content} | tojson }}",
        "{{ m.content | upper }}{{ m.content }}",
        "{{ m.content[:2] }}{{ m.content }}",
        "{{ '%s' | format(m.content) }}",
        "{{ '%s' % m.content }}",
        "{% if m.content in 'a long text' %}!{% endif %}{{ m.content }}",
        "{% if 'text'.startswith(m.content) %}!{% endif %}{{ m.content }}",
        "{% if m.content < 'b' %}!{% endif %}{{ m.content }}",
        "{% if {'a': 1}.get(m.content) %}!{% endif %}{{ m.content }}",
        "{{ m.content }}{{ m | string }}",
        "{% for c in m.content %}{{ c }}{% endfor %}",
        "{{ strftime_now('%M') }}{{ m.content }}",
        "{{ 'User says hello' | replace(m.content, '') }}{{ m.content }}",
        "{{ 'xabcx' | trim(m.content) }}{{ m.content }}",
        "{{ ['a', 'b'] | select('equalto', m.content) | list | length }}{{ m.content }}",
    ],
)
def test_whatever_else_is_done_with_a_content_is_always_rendered(printed: str) -> None:
    assert compiled(template(printed))[1] is None


def test_the_clock_in_front_does_not_matter() -> None:
    assert compiled(template("{{ m.content }}", before="{{ strftime_now('%d') }}"))[1] is not None


def test_what_earlier_messages_say_is_asked_again_too() -> None:
    source = template("{{ m.content }}{% if '/x' in messages[0].content %}!{% endif %}")
    _, found = compiled(source)
    assert found.text(["Hi", "Bye"]) is not None
    assert found.text(["Hi /x", "Bye"]) is None


def test_new_roles_and_parts_have_their_own_steps() -> None:
    renderer, _ = compiled(template("{{ m.content }}"))
    parts: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "Bye"}]}]
    assert renderer.delta(PAST, parts).text == renderer.delta(PAST, [{"role": "user", "content": "Bye"}]).text
    renderer.delta(PAST, [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
    assert ("user", *[("user", None, None)] * 2) in renderer._compiled
