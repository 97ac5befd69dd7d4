"""Findings of the self-check about templates."""

from __future__ import annotations

from typing import Any

import pytest

from strands_sglang.template import (
    ArgumentForm,
    ContentForm,
    DeltaRenderer,
    Flag,
    Path,
    Report,
    Shape,
    TemplateVerdict,
    generation_opens_reasoning,
)
from tests.unit.template_texts import CHATML, GLM, LLAMA, TOOLS, call, result, text, user

ANSWER = "{{ message.content or '' }}"
THINKING = (
    ANSWER + "{% if keep and message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
)


def check(source: str, *, tools: Any = TOOLS, **options: Any) -> Report:
    stops = options.pop("stop_tokens", ["<|im_end|>", "<|eot_id|>", "<|user|>", "<|observation|>"])
    return DeltaRenderer(source, tools=tools, stop_tokens=stops, **options).report


@pytest.mark.parametrize("source", [CHATML, GLM])
def test_template_that_takes_everything_is_exact(source: str) -> None:
    report = check(source)
    assert (report.verdict, report.path, report.needs_full_history) == (TemplateVerdict.EXACT, Path.COMPACT, False)
    assert report.refused == {}


def test_refused_shape_makes_it_partial() -> None:
    report = check(LLAMA)
    assert report.verdict is TemplateVerdict.PARTIAL
    assert list(report.refused) == [Shape.CALLS_TOOLS]
    assert "only single tool-calls" in report.refused[Shape.CALLS_TOOLS]
    assert "only single tool-calls" in report.summary


def test_lost_tool_results_make_it_unsupported() -> None:
    report = check(
        CHATML.replace("{%- if message.role == 'tool' %}", "{%- if message.role == 'tool' and false %}").replace(
            "{% else %}<|im_start|>{{ message.role }}",
            "{% elif message.role != 'tool' %}<|im_start|>{{ message.role }}",
        )
    )
    assert report.verdict is TemplateVerdict.UNSUPPORTED
    assert "drops" in report.refused[Shape.CALL_TOOL]


def test_without_tools_only_text_counts() -> None:
    report = check(LLAMA, tools=None)
    assert (report.verdict, list(report.shapes)) == (TemplateVerdict.EXACT, [Shape.TEXT_USER])


def test_state_over_the_whole_history_needs_the_full_history() -> None:
    source = CHATML.replace("<tool_response>\n", "<tool_response>{{ loop.index }}\n")
    renderer = DeltaRenderer(source, tools=TOOLS, stop_tokens=["<|im_end|>"])
    assert (renderer.report.verdict, renderer.report.needs_full_history) == (TemplateVerdict.EXACT_FULL, True)
    history = [user("Q"), call("a"), result("a"), call("b")]
    delta = renderer.delta(history, [result("b", "here")])
    assert "<tool_response>5\nhere" in delta.text
    assert delta.path is Path.FULL


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


def test_closers_by_shape() -> None:
    closers = check(GLM).closers
    assert (closers[Shape.TEXT_USER], closers[Shape.CALL_TOOL]) == ("<|user|>", "<|observation|>")


def test_arguments_as_text_are_found_out() -> None:
    assert check(CHATML).argument_form is ArgumentForm.OBJECT
    assert check(CHATML.replace("arguments | tojson", "arguments + ''")).argument_form is ArgumentForm.TEXT


def test_content_forms_are_found_out_by_role() -> None:
    source = CHATML.replace(
        "{{ message.content or '' }}",
        "{% if message.content is string or not message.content %}{{ message.content or '' }}"
        "{% else %}{{ message.content | map(attribute='text') | join }}{% endif %}",
    )
    forms = check(source).content_forms
    assert (forms["user"], forms["tool"]) == (ContentForm.BOTH, ContentForm.STRING)


@pytest.mark.parametrize("printed", ["message.content", "message.content | tojson", "message.content | string"])
def test_parts_printed_as_source_are_not_taken(printed: str) -> None:
    assert check(CHATML.replace("message.content or ''", printed)).content_forms["user"] is ContentForm.STRING


def test_dropped_reasoning_is_flagged_with_the_variable_that_keeps_it() -> None:
    keep = "{% set keep = preserve_thinking or loop.last %}"
    source = CHATML.replace(ANSWER, keep + THINKING)
    report = check(source)
    assert Flag.DROPS_REASONING_AT_USER in report.flags
    assert Flag.DROPS_REASONING_AT_TOOL in report.flags
    assert report.keep_reasoning_kwargs == {"preserve_thinking": True}
    assert check(source, template_kwargs={"preserve_thinking": True}).flags == set()


def test_variable_that_keeps_by_being_false() -> None:
    keep = "{% set keep = (clear_thinking is defined and not clear_thinking) or loop.last %}"
    assert check(CHATML.replace(ANSWER, keep + THINKING)).keep_reasoning_kwargs == {"clear_thinking": False}


def test_variable_that_is_mentioned_but_does_nothing_is_not_offered() -> None:
    keep = "{% set keep = loop.last %}{# preserve_thinking #}"
    assert check(CHATML.replace(ANSWER, keep + THINKING)).keep_reasoning_kwargs == {}


def test_kept_reasoning_is_not_flagged() -> None:
    assert check(CHATML.replace(ANSWER, "{% set keep = true %}" + THINKING)).flags == set()


def test_generation_prompt_that_never_gets_into_the_history() -> None:
    report = check(CHATML + "{% if add_generation_prompt %}<think>\n{% endif %}")
    assert report.flags == {Flag.GENERATION_PROMPT_NOT_IN_HISTORY}
    assert report.opens_reasoning == "<think>"


def test_repeated_tools_and_system_text() -> None:
    at_user = "{% if loop.last and tools %}{{ tools | tojson }}{{ messages[0].content }}{% endif %}"
    report = check(CHATML.replace("<|im_start|>{{ message.role }}\n", "<|im_start|>{{ message.role }}\n" + at_user))
    assert {Flag.REPEATS_TOOLS, Flag.REPEATS_SYSTEM} <= report.flags


def test_end_of_turn_that_is_no_stop_token() -> None:
    report = check(CHATML, stop_tokens=["</s>"], special_tokens=["<|im_end|>"])
    assert Flag.CLOSER_IS_NOT_A_STOP in report.flags


def test_missing_end_of_turn() -> None:
    source = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant]"
    assert Flag.NO_CLOSER in check(source, tools=None).flags


def test_tools_that_are_never_shown() -> None:
    assert not check(CHATML).prints_tools
    assert check("{{ tools | tojson if tools }}" + CHATML).prints_tools


def test_flat_tools_are_probed_flat() -> None:
    source = "{% for tool in tools or [] %}{{ tool.name.upper() }}{% endfor %}" + CHATML
    assert check(source, tools=[TOOLS[0]["function"]]).verdict is TemplateVerdict.EXACT


def test_template_that_needs_tools() -> None:
    source = "{% for tool in tools %}{{ tool | tojson }}{% endfor %}" + CHATML
    renderer = DeltaRenderer(source, tools=TOOLS, stop_tokens=["<|im_end|>"])
    assert renderer.report.verdict is TemplateVerdict.EXACT
    assert renderer.delta([user("Q"), text("A")], [user("More")]).text


@pytest.mark.parametrize(
    ("prompt", "tag"),
    [
        ("<|im_start|>assistant\n<think>\n", "<think>"),
        ("[THINK]", "[THINK]"),
        ("<think>\n\n</think>\n\n", None),
        ("<think>x", None),
        ("", None),
    ],
)
def test_open_reasoning_tag(prompt: str, tag: str | None) -> None:
    assert generation_opens_reasoning(prompt) == tag
