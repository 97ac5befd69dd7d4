"""Where a chat template comes from and what it renders."""

from __future__ import annotations

import json
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import jinja2
import pytest
from provider_support import tokenizer

from strands_sglang.exceptions import TemplateError
from strands_sglang.template import ChatTemplate, DeltaRenderer
from strands_sglang.template.chat_template import compile_template, pin
from tests.unit.template_texts import CHATML, GLM, LLAMA, TOOLS, call, result, system, text, user

NAMED = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]


@pytest.mark.parametrize(
    ("chat_template", "name", "tools", "shown"),
    [
        ("{{ bos_token }}|{{ eos_token }}", None, None, "<s>|"),
        (NAMED, None, None, "plain"),
        (NAMED, None, TOOLS, "tools"),
        ({"default": "a", "rag": "b"}, None, TOOLS, "a"),
        ({"default": "a", "rag": "b"}, "rag", None, "b"),
        ("own", "given", None, "given"),
    ],
)
def test_which_template_of_a_tokenizer_is_rendered(chat_template: Any, name: Any, tools: Any, shown: str) -> None:
    template = ChatTemplate.from_tokenizer(
        SimpleNamespace(chat_template=chat_template, special_tokens_map={"bos_token": "<s>"}), name
    )
    assert template.render([], tools=tools) == shown


def test_several_templates_without_a_default_are_refused() -> None:
    with pytest.raises(TemplateError, match="'rag', 'short'"):
        ChatTemplate.from_tokenizer(SimpleNamespace(chat_template={"rag": "a", "short": "b"}))


def test_kwargs_win_over_special_tokens() -> None:
    assert ChatTemplate("{{ bos_token }}", special_values={"bos_token": "<s>"}).render([], bos_token="x") == "x"


def test_no_template_says_what_to_pass() -> None:
    class Rendering:
        """Renders by code of its own, as mistral-common's does."""

        def apply_chat_template(self, messages: Any, **kwargs: Any) -> str:
            return "text"

    for renders in (object(), Rendering()):
        with pytest.raises(TemplateError, match="pass chat_template="):
            ChatTemplate.from_tokenizer(renders)


def test_reasoning_reaches_templates_under_its_names() -> None:
    template = ChatTemplate("{{ messages[0].reasoning_content }}|{{ messages[0].thinking }}")
    assert template.render([{"role": "assistant", "content": "", "thinking": "hm"}]) == "hm|hm"
    assert template.render([{"role": "assistant", "content": "", "reasoning": "hm"}]) == "hm|hm"


PRINTS_NULL = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.content is none or m.content == '' %}"
    "{% for c in m.tool_calls %}{{ c.function.arguments.a }}{% endfor %}{% endif %}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def test_keys_that_are_null_are_left_out_of_what_is_passed_and_kept_in_what_is_planted() -> None:
    null = {**call("c1", a="x"), "content": None, "name": None}
    template = ChatTemplate(PRINTS_NULL)
    assert template.render([null]) == template.render([{k: v for k, v in null.items() if v is not None}])
    assert template.render([null]) == "<assistant></s>"
    assert null["content"] is None
    pytest.importorskip("transformers")
    for source in (PRINTS_NULL, CHATML):
        theirs = tokenizer().apply_chat_template([user("q"), null], chat_template=source, tokenize=False)
        assert ChatTemplate(source).render([user("q"), null]) == theirs
    # The renderer's own copy of a turn is printed with its call, in this template only where the content is null.
    renderer = DeltaRenderer(PRINTS_NULL.replace(" or m.content == ''", ""), tools=TOOLS, stop_tokens=["</s>"])
    assert renderer.delta([user("q"), null], [result("c1", "42")]).text == "<tool>42</s><assistant>"
    assert renderer.initial([user("q"), {"role": "assistant", "content": None}]).startswith(
        "<user>q</s><assistant></s>"
    )


def test_foreign_objects_do_not_reach_templates() -> None:
    class Image:
        secret = "x"

    template = ChatTemplate("{{ messages[0].content[0].image }}{{ messages[0].content[0].image.secret }}")
    assert template.render([user([{"type": "image", "image": Image()}])]) == "<Image>"


@pytest.mark.parametrize("source", [CHATML, GLM, LLAMA])
def test_renders_as_transformers_does(source: str) -> None:
    chat_utils = pytest.importorskip("transformers.utils.chat_template_utils")
    messages = [system("S"), user("Ü <b>"), call("c1", a="x'y"), result("c1"), text("Done."), user([{"type": "text"}])]
    messages = messages[:-1] if source == LLAMA else messages
    rendered, _ = chat_utils.render_jinja_template(
        [messages], tools=TOOLS, chat_template=source, add_generation_prompt=True, bos_token="<s>", extra=1
    )
    ours = ChatTemplate(source, special_values={"bos_token": "<s>"})
    assert ours.render(messages, tools=TOOLS, add_generation_prompt=True, extra=1) == rendered[0]


# ---- the jinja environment of `apply_chat_template` ------------------------------------------------------------------

DATA: dict[str, Any] = {"b": [1, {"c": None}], "a": "x"}


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("{{ x.a | tojson }}{{ '<b> & é' | tojson }}", '"x""<b> & é"'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}", '{\n "a": 2,\n "b": 1\n}'),
        ("a\n  {% if true %}\nb\n  {% endif %}\nc", "a\nb\nc"),
        ("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
        ("a{% generation %}{{ x.a }}{% endgeneration %}c", "axc"),
        ("{{ dict(a=1).a }}{{ dict.fromkeys(['x'], 2).x }}", "12"),
        ("{{ x.a }}|{{ x.keys() | list }}|{{ x.no is defined }}|{{ x.get('items') }}", "x|['b', 'a']|False|None"),
        ("{{ x | tojson }}|{{ x.b | tojson }}|{{ x }}", f"{json.dumps(DATA)}|{json.dumps(DATA['b'])}|{DATA}"),
        ("{{ x | tojson(sort_keys=true) }}", json.dumps(DATA, sort_keys=True)),
    ],
)
def test_a_template_prints_what_transformers_prints(source: str, shown: str) -> None:
    for data in (DATA, pin(DATA)):
        assert compile_template(source).render(x=data) == shown


@pytest.mark.parametrize(
    "source",
    [
        "{% set ns = namespace(_a=1) %}",
        "{% set ns = namespace() %}{% set ns._a = 1 %}",
        "{{ ''.__class__ }}{{ ''.__class__.mro() }}",
        "{{ '{0.__class__}'.format(1) }}{{ ''.__class__.mro() }}",
        "{% set _ = x.append(1) %}",
    ],
)
def test_a_template_is_kept_in_its_sandbox(source: str) -> None:
    with pytest.raises(jinja2.exceptions.SecurityError):
        compile_template(source).render(x=[])


def test_wrong_templates_and_their_own_errors_are_named() -> None:
    with pytest.raises(TemplateError, match="not valid jinja"):
        ChatTemplate("{% for m in messages %}")
    with pytest.raises(jinja2.TemplateError, match="no tools here"):
        compile_template("{{ raise_exception('no tools here') }}").render()


def test_the_clock_is_the_real_one_or_the_one_that_is_given() -> None:
    given = ChatTemplate("{{ strftime_now('%d %b %Y') }}", clock=lambda: datetime(2026, 11, 21))
    assert given.render([]) == "21 Nov 2026"
    assert ChatTemplate("{{ strftime_now('%Y') }}").render([]) == datetime.now().strftime("%Y")
