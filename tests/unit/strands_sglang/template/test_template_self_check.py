"""Findings of the self-check about templates."""

from __future__ import annotations

from typing import Any

import pytest

from strands_sglang.template import DeltaRenderer, Flag, Report, Shape, TemplateVerdict
from strands_sglang.template.chat_messages import ArgumentForm, ContentForm, with_arguments
from strands_sglang.template.reasoning import opened_tags
from tests.unit.template_texts import CHATML, LLAMA, TOOLS, text, user

ANSWER = "{{ message.content or '' }}"
THINKING = (
    ANSWER + "{% if keep and message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
)


def check(source: str, *, tools: Any = TOOLS, **options: Any) -> Report:
    stops = options.pop("stop_tokens", ["<|im_end|>", "<|eot_id|>", "<|user|>", "<|observation|>"])
    return DeltaRenderer(source, tools=tools, stop_tokens=stops, **options).report


def test_refused_shape_makes_it_partial_and_matters_with_tools_only() -> None:
    report = check(LLAMA)
    assert (report.verdict, list(report.refused)) == (TemplateVerdict.PARTIAL, [Shape.CALLS_TOOLS])
    assert "only single tool-calls" in report.refused[Shape.CALLS_TOOLS] and "only single tool-calls" in report.summary
    report = check(LLAMA, tools=None)
    assert (report.verdict, list(report.shapes)) == (TemplateVerdict.EXACT, [Shape.TEXT_USER])


@pytest.mark.parametrize("switch", ["/no_think", "/nothink", "/think"])
def test_switch_that_lasts_for_the_rest_of_the_conversation_needs_the_full_history(switch: str) -> None:
    state = "{% set ns = namespace(on='') %}{% for m in messages %}{% if m.role == 'user' and '@' in m.content %}"
    state += "{% set ns.on = ' (switched)' %}{% endif %}{% endfor %}"
    source = (state + CHATML + "{{ ns.on }}").replace("@", switch)
    renderer = DeltaRenderer(source, tools=TOOLS, stop_tokens=["<|im_end|>"])
    assert renderer.report.verdict is TemplateVerdict.EXACT_FULL
    delta = renderer.delta([user(f"Q {switch}"), text("A"), user("Q2"), text("A2")], [user("Q3")])
    assert delta.text.endswith("<|im_start|>assistant\n (switched)")


@pytest.mark.parametrize("kind", ["image", "video"])
def test_media_numbered_over_the_conversation_need_the_full_history(kind: str) -> None:
    shown = "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content or [] %}"
    shown += "{% if part.type == 'text' %}{{ part.text }}{% else %}{% set ns.n = ns.n + 1 %}"
    shown += "{{ part.type }}{{ ' %d' % ns.n if numbered }}: {% endif %}{% endfor %}{% endif %}"
    source = "{% set ns = namespace(n=0) %}" + CHATML.replace(ANSWER, shown)
    assert check(source).verdict is TemplateVerdict.EXACT
    renderer = DeltaRenderer(source, stop_tokens=["<|im_end|>"], template_kwargs={"numbered": True})
    assert renderer.report.verdict is TemplateVerdict.EXACT_FULL
    see = {"role": "user", "content": [{"type": kind}, {"type": "text", "text": "look"}]}
    delta = renderer.delta([see, text("A"), user("Q2"), text("A2")], [see])
    assert f"user\n{kind} 2: look<|im_end|>" in delta.text


def test_forms_of_content_and_arguments_are_found_out() -> None:
    assert check(CHATML).argument_form is ArgumentForm.OBJECT
    assert check(CHATML.replace("arguments | tojson", "arguments + ''")).argument_form is ArgumentForm.TEXT
    takes_parts = CHATML.replace(
        ANSWER,
        "{% if message.content is string or not message.content %}{{ message.content or '' }}"
        "{% else %}{{ message.content | map(attribute='text') | join }}{% endif %}",
    )
    forms = check(takes_parts).content_forms
    assert (forms["user"], forms["tool"]) == (ContentForm.BOTH, ContentForm.STRING)
    for printed in ("message.content", "message.content | tojson", "message.content | string"):  # parts as source
        assert check(CHATML.replace("message.content or ''", printed)).content_forms["user"] is ContentForm.STRING


@pytest.mark.parametrize(
    ("keep", "keeping"),
    [
        ("{% set keep = true %}", None),
        ("{% set keep = preserve_thinking or loop.last %}", {"preserve_thinking": True}),
        (
            "{% set keep = (clear_thinking is defined and not clear_thinking) or loop.last %}",
            {"clear_thinking": False},
        ),
        ("{% set keep = loop.last %}{# preserve_thinking #}", {}),  # mentioned, and does nothing
    ],
)
def test_dropped_reasoning_is_flagged_with_the_variable_that_keeps_it(
    keep: str, keeping: dict[str, Any] | None
) -> None:
    source = CHATML.replace(ANSWER, keep + THINKING)
    report = check(source)
    drops = set() if keeping is None else {Flag.DROPS_REASONING_AT_USER, Flag.DROPS_REASONING_AT_TOOL}
    assert (report.flags, report.keep_reasoning_kwargs) == (drops, keeping or {})
    if keeping:
        assert check(source, template_kwargs=keeping).flags == set()


AT_USER = "{% if loop.last and tools %}{{ tools | tojson }}{{ messages[0].content }}{% endif %}"
TURN = "<|im_start|>{{ message.role }}\n"


@pytest.mark.parametrize(
    ("source", "options", "flags"),
    [
        (CHATML, {"stop_tokens": ["</s>"], "special_tokens": ["<|im_end|>"]}, {Flag.CLOSER_IS_NOT_A_STOP}),
        ("{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant]", {}, {Flag.NO_CLOSER}),
        (CHATML + "{% if add_generation_prompt %}<think>\n{% endif %}", {}, {Flag.GENERATION_PROMPT_NOT_IN_HISTORY}),
        (CHATML.replace(TURN, TURN + AT_USER), {}, {Flag.REPEATS_TOOLS, Flag.REPEATS_SYSTEM}),
    ],
    ids=["closer is no stop", "no closer", "generation prompt", "repeats"],
)
def test_what_a_template_does_beside_its_verdict_is_flagged(source: str, options: Any, flags: set[Flag]) -> None:
    assert flags <= check(source, **options).flags


def test_tools_are_probed_in_the_form_of_the_template() -> None:
    assert not check(CHATML).prints_tools
    assert check("{{ tools | tojson if tools }}" + CHATML).prints_tools
    flat = "{% for tool in tools or [] %}{{ tool.name.upper() }}{% endfor %}" + CHATML
    assert check(flat, tools=[TOOLS[0]["function"]]).verdict is TemplateVerdict.EXACT
    needs_tools = "{% for tool in tools %}{{ tool | tojson }}{% endfor %}" + CHATML
    assert check(needs_tools).verdict is TemplateVerdict.EXACT


@pytest.mark.parametrize(
    ("prompt", "tag"),
    [
        ("<|im_start|>assistant\n<think>\n", "<think>"),
        ("[THINK]", "[THINK]"),
        ("<think>\n\n</think>\n\n", None),
        ("<think>x", None),
        ("<seed:think>\n", "<seed:think>"),
        ("<my_thoughts>", "<my_thoughts>"),
        ("[reasoning]\n", "[reasoning]"),
        ("</my_thoughts>", None),
        ("<assistant>", None),
        ("", None),
    ],
)
def test_open_reasoning_tag(prompt: str, tag: str | None) -> None:
    closing = None if tag is None else f"{tag[0]}/{tag[1:]}"
    assert (opened_tags(prompt) or (None, None)) == (tag, closing)


def test_a_tag_that_the_generation_prompt_opens_counts_wherever_it_is_and_one_of_the_user_does_not() -> None:
    generation = "<|im_start|>assistant\n<seed:think>\nThe budget is 512 tokens.\n"
    report = check(CHATML.replace("<|im_start|>assistant\n", generation))
    assert (report.generation_prompt, report.opens_reasoning) == (generation, "<seed:think>")
    assert opened_tags(f"Hi<|im_end|>\n{generation}", generation) == ("<seed:think>", "</seed:think>")
    assert opened_tags(f"<seed:think>Hi<|im_end|>\n{CHATML}", CHATML) is None


@pytest.mark.parametrize("arguments", ['{"a": 1, "a": 2}', '{"x": 1e-400}', '{"x": 1e400}', "[1]", "no JSON"])
def test_arguments_that_an_object_would_not_say_exactly_stay_text(arguments: str) -> None:
    call = {"id": "t", "type": "function", "function": {"name": "add", "arguments": arguments}}
    shaped = with_arguments({"role": "assistant", "content": "", "tool_calls": [call]}, ArgumentForm.OBJECT)
    assert shaped["tool_calls"] == [call]
