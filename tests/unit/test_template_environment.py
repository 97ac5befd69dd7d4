"""The jinja environment is that of `apply_chat_template`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import jinja2
import pytest

from strands_sglang.exceptions import TemplateError
from strands_sglang.template import ChatTemplate
from strands_sglang.template.chat_template import compile_template, pin


def show(text: str, **variables: Any) -> str:
    return compile_template(text).render(variables)


def test_tojson_is_plain_json() -> None:
    assert show("{{ x | tojson }}", x={"a": "<b> & 'é'"}) == '{"a": "<b> & \'é\'"}'


def test_tojson_takes_options() -> None:
    assert show("{{ x | tojson(indent=1, sort_keys=true) }}", x={"b": 1, "a": 2}) == '{\n "a": 2,\n "b": 1\n}'


def test_tojson_of_pinned_data_is_that_of_the_data() -> None:
    data = {"b": [1, {"c": None}], "a": "x"}
    text = "{{ x | tojson }}|{{ x | tojson(sort_keys=true) }}|{{ x | tojson }}|{{ x.b | tojson }}|{{ x }}"
    assert show(text, x=pin(data)) == show(text, x=data)


def test_blocks_are_trimmed() -> None:
    assert show("a\n  {% if true %}\nb\n  {% endif %}\nc") == "a\nb\nc"


def test_loop_controls_work() -> None:
    assert show("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "012"


def test_generation_tag_prints_its_body() -> None:
    assert show("a{% generation %}{{ x }}{% endgeneration %}c", x="b") == "abc"


def test_raise_exception_raises_with_the_message() -> None:
    with pytest.raises(jinja2.TemplateError, match="no tools here"):
        show("{{ raise_exception('no tools here') }}")


def test_dict_is_callable() -> None:
    assert show("{{ dict(a=1).a }}{{ dict.fromkeys(['x'], 2).x }}") == "12"


def test_namespace_refuses_underscores() -> None:
    with pytest.raises(jinja2.exceptions.SecurityError):
        show("{% set ns = namespace(_a=1) %}")
    with pytest.raises(jinja2.exceptions.SecurityError):
        show("{% set ns = namespace() %}{% set ns._a = 1 %}")


def test_lookups_on_mappings_prefer_methods_then_items() -> None:
    shown = show("{{ m.role }}|{{ m.keys() | list }}|{{ m.nothing is defined }}|{{ m.get('items') }}", m={"role": "r"})
    assert shown == "r|['role']|False|None"


def test_sandbox_keeps_out_of_internals() -> None:
    for attempt in ("{{ ''.__class__ }}", "{{ ''.__class__.__mro__ }}", "{{ '{0.__class__}'.format(1) }}"):
        with pytest.raises(jinja2.exceptions.SecurityError):
            show(attempt + "{{ ''.__class__.mro() }}")


def test_sandbox_refuses_to_change_the_messages() -> None:
    with pytest.raises(jinja2.exceptions.SecurityError):
        show("{% set _ = m.append(1) %}", m=[])


def test_invalid_jinja_is_a_template_error() -> None:
    with pytest.raises(TemplateError, match="not valid jinja"):
        ChatTemplate("{% for m in messages %}")


def test_clock_can_be_given() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", clock=lambda: datetime(2026, 11, 21))
    assert template.render([]) == "21 Nov 2026"


def test_clock_is_the_real_one_by_default() -> None:
    assert ChatTemplate("{{ strftime_now('%Y') }}").render([]) == datetime.now().strftime("%Y")
