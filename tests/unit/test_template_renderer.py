"""First prompts and deltas."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

from strands_sglang.exceptions import TemplateError
from strands_sglang.template import ChatTemplate, DeltaRenderer, Path, generation_opens_reasoning
from strands_sglang.template import renderer as renderer_module
from tests.unit.template_texts import CHATML, GLM, LLAMA, TOOLS, call, result, system, text, user

ENDS = {
    CHATML: ["<|im_end|>", "<|endoftext|>"],
    GLM: ["<|user|>", "<|observation|>"],
    LLAMA: ["<|eot_id|>", "<|eom_id|>"],
}


def renderer(source: Any = CHATML, **options: Any) -> DeltaRenderer:
    options = {"tools": TOOLS, "stop_tokens": ENDS.get(source, ["<|im_end|>"]), **options}
    return DeltaRenderer(source, **options)


# ---- deltas ---------------------------------------------------------------------------------------------------------


def test_separator_after_the_stop_token_is_in_the_delta() -> None:
    delta = renderer().delta([user("Q"), text("A")], [user("More")], emitted="<|im_end|>")
    assert delta.text == "\n<|im_start|>user\nMore<|im_end|>\n<|im_start|>assistant\n"
    assert (delta.path, delta.closer) == (Path.COMPACT, "<|im_end|>")


def test_tool_result_follows_a_call() -> None:
    delta = renderer(LLAMA).delta([user("Q"), call("c1")], [result("c1", "42")])
    head = "<|start_header_id|>{}<|end_header_id|>\n\n"
    assert delta.text == head.format("ipython") + "42<|eot_id|>" + head.format("assistant")


def test_sampled_text_is_never_echoed() -> None:
    """A template that prints the content of a turn again after the tool results."""
    source = CHATML.replace(
        "</tool_response><|im_end|>",
        "</tool_response><|im_end|>{% set turn = messages[loop.index0 - 1] %}"
        "{% if turn.content %}AGAIN {{ turn.content }}{% endif %}",
    )
    turn = {**call("c1"), "content": "Let me see."}
    assert "AGAIN" not in renderer(source).delta([user("Q"), turn], [result("c1")]).text


def test_model_that_stops_on_the_next_opener() -> None:
    delta = renderer(GLM).delta([user("Q"), call("c1")], [result("c1", "42")], emitted="<|observation|>")
    assert delta.text == "<tool_response>\n42\n</tool_response><|assistant|>"


def test_announced_role_that_does_not_come_is_followed_by_the_right_opener() -> None:
    delta = renderer(GLM).delta([user("Q"), text("A")], [user("More")], emitted="<|observation|>")
    assert delta.text == "<|user|>\nMore<|assistant|>"


def test_stand_in_stop_token_stays() -> None:
    delta = renderer(LLAMA).delta([user("Q"), text("A")], [user("More")], emitted="<|eom_id|>")
    assert delta.text.startswith("<|start_header_id|>user")


def test_truncated_turn_is_closed() -> None:
    delta = renderer().delta([user("Q"), text("A")], [user("More")], truncated=True)
    assert delta.text.startswith("<|im_end|>\n<|im_start|>user")


def test_template_without_an_end_of_turn() -> None:
    source = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant]"
    plain = renderer(source, tools=None, stop_tokens=["</s>"])
    delta = plain.delta([user("Q"), text("A")], [user("More")], emitted="</s>")
    assert delta.text == "\n[user] More\n[assistant]"
    assert delta.closer == ""


def test_words_that_start_alike_are_not_cut() -> None:
    source = "{% for m in messages %} Speaker {{ m.role }}: {{ m.content }}{% endfor %} Speech:"
    delta = renderer(source, tools=None, stop_tokens=["</s>"]).delta([user("Q"), text("A")], [user("More")])
    assert delta.text == " Speaker user: More Speech:"


def test_two_ends_in_a_row_are_cut_after_the_sampled_one() -> None:
    source = CHATML.replace("{%- endfor %}<|im_end|>\n", "{%- endfor %}<|im_end|><|stop|>\n")
    both = renderer(source, stop_tokens=["<|im_end|>", "<|stop|>"])
    step = ([user("Q"), text("A")], [user("More")])
    first = both.delta(*step, emitted="<|im_end|>").text
    second = both.delta(*step, emitted="<|stop|>").text
    assert (first, second) == ("<|stop|>" + second, second)
    assert second.startswith("\n<|im_start|>user")


def test_stop_token_nobody_announced_is_found_where_it_is_printed() -> None:
    wrong = renderer(CHATML, stop_tokens=["</s>"])
    delta = wrong.delta([user("Q"), call("c1")], [result("c1")], emitted="<|im_end|>")
    assert delta.text.startswith("\n<|im_start|>user\n<tool_response>")


def test_stop_inside_the_markup_of_a_call() -> None:
    """An engine told to stop on `</tool_call>`: the rest of the end is still to come."""
    delta = renderer().delta([user("Q"), call("c1")], [result("c1")], emitted="</tool_call>")
    assert delta.text.startswith("<|im_end|>\n<|im_start|>user\n<tool_response>")


def test_results_get_name_and_id_of_their_call() -> None:
    source = CHATML.replace("<tool_response>\n{{", "<tool_response>\n{{ message.name }} {{ message.tool_call_id }} {{")
    turn = call("c1", "c2")
    turn["tool_calls"][1]["function"]["name"] = "mul"
    by_id = renderer(source).delta([user("Q"), turn], [result("c2", "x", None), result("c1", "y", None)]).text
    by_order = renderer(source).delta([user("Q"), turn], [result(None, "x", None), result(None, "y", None)]).text
    assert "mul c2 x" in by_id and "add c1 y" in by_id
    assert "add c1 x" in by_order and "mul c2 y" in by_order


def test_history_is_read_from_its_end_only() -> None:
    class Trapped(list):  # type: ignore[type-arg]
        def __getitem__(self, index: Any) -> Any:
            assert index in (0, 1, -1), f"message {index} was read"
            return super().__getitem__(index)

        def __iter__(self) -> Any:
            raise AssertionError("the history was copied")

    rounds = [m for i in range(50) for m in (call(f"c{i}"), result(f"c{i}"))]
    history = Trapped([system("S"), *rounds, user("Q"), call("last")])
    assert "42" in renderer().delta(history, [result("last")]).text


def test_other_sequences_are_accepted() -> None:
    assert renderer().delta((user("Q"), text("A")), (user("More"),)).text.endswith("assistant\n")


def test_callers_messages_are_not_changed() -> None:
    history, new = [user("Q"), call("c1", a=1)], [result("c1", "x", None)]
    renderer().delta(history, new)
    assert (history, new) == ([user("Q"), call("c1", a=1)], [result("c1", "x", None)])


# ---- content --------------------------------------------------------------------------------------------------------


def test_text_parts_are_joined_for_a_template_that_takes_text() -> None:
    new = [user([{"type": "text", "text": "One"}, {"type": "text", "text": "Two"}])]
    assert "user\nOne\nTwo<|im_end|>" in renderer().delta([user("Q"), text("A")], new).text


def test_image_is_refused_by_a_template_that_takes_text() -> None:
    new = [user([{"type": "text", "text": "Look"}, {"type": "image"}])]
    with pytest.raises(TemplateError, match="takes only text"):
        renderer(LLAMA).delta([user("Q"), text("A")], new)
    with pytest.raises(TemplateError, match="takes only text"):
        renderer(LLAMA).initial(new)


PARTS = CHATML.replace(
    "{{ message.content or '' }}",
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content or [] %}"
    "{% if part.type == 'text' %}{{ part.text }}{% elif part.type == 'image' %}<|image|>{% endif %}"
    "{% endfor %}{% endif %}",
)


def test_parts_reach_a_template_that_takes_them() -> None:
    new = [user([{"type": "image"}, {"type": "text", "text": "Look"}])]
    assert "user\n<|image|>Look<|im_end|>" in renderer(PARTS).delta([user("Q"), text("A")], new).text


def test_part_that_the_template_drops_is_refused() -> None:
    new = [user([{"type": "video"}, {"type": "text", "text": "Look"}])]
    with pytest.raises(TemplateError, match="drops the 'video' part"):
        renderer(PARTS).delta([user("Q"), text("A")], new)


def test_template_that_takes_parts_only() -> None:
    source = (
        "{% for m in messages %}<{{ m.role }}>{% for part in m.content %}{{ part.text }}{% endfor %}</s>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    only_parts = renderer(source, tools=None, stop_tokens=["</s>"])
    assert only_parts.initial([user("Q")]) == "<user>Q</s><assistant>"
    assert only_parts.delta([user("Q"), text("A")], [user("More")]).text == "<user>More</s><assistant>"


# ---- refusals -------------------------------------------------------------------------------------------------------


def test_lost_tool_role_is_refused() -> None:
    source = "{% for m in messages if m.role != 'tool' %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}<assistant>"
    with pytest.raises(TemplateError, match="drops the new message\\(s\\) with role 'tool'"):
        renderer(source, stop_tokens=["</s>"]).delta([user("Q"), call("c1")], [result("c1")])


def test_template_that_raises_is_refused_with_its_reason() -> None:
    with pytest.raises(TemplateError, match="only single tool-calls"):
        renderer(LLAMA).delta([user("Q"), call("c1", "c2")], [result("c1"), result("c2")])


def test_message_moved_to_the_front_is_refused() -> None:
    source = "{% for m in messages if m.role == 'system' %}{{ m.content }}</s>{% endfor %}" + CHATML.replace(
        "{%- for message in messages %}", "{%- for message in messages if message.role != 'system' %}"
    )
    with pytest.raises(TemplateError, match="before the assistant turn"):
        renderer(source).delta([user("Q"), text("A")], [system("New rule"), user("More")])


@pytest.mark.parametrize("change", ["upper", "lower", "title", "reverse", "length"])
def test_template_that_alters_content_is_refused(change: str) -> None:
    source = CHATML.replace("{{ message.content", "{{ (message.content or '') | " + change)
    with pytest.raises(TemplateError):
        renderer(source).delta([user("Q"), text("A")], [user("MORE is Better")])


@pytest.mark.parametrize(
    "lost", ["Error: nothing", "a long text of which only the first words would be printed at all"]
)
def test_content_lost_by_its_wording_is_refused(lost: str) -> None:
    source = CHATML.replace(
        "{{ message.content or '' }}",
        "{% if 'Error' not in (message.content or '') %}{{ (message.content or '')[:30] }}{% endif %}",
    )
    assert renderer(source).delta([user("Q"), text("A")], [user("fine")]).text
    with pytest.raises(TemplateError, match="drops the content"):
        renderer(source).delta([user("Q"), text("A")], [user(lost)])


def test_trimming_is_no_loss() -> None:
    assert "More<|eot_id|>" in renderer(LLAMA).delta([user("Q"), text("A")], [user("  More \n")]).text


@pytest.mark.parametrize(
    ("history", "new"),
    [
        ([user("Q")], [user("More")]),
        ([], [user("More")]),
        ([user("Q"), text("A")], []),
        ([user("Q"), text("A")], [text("B")]),
    ],
)
def test_what_is_no_step_is_refused(history: list[Any], new: list[Any]) -> None:
    with pytest.raises(TemplateError):
        renderer().delta(history, new)


def test_endless_recursion_is_refused() -> None:
    source = "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}"
    endless, limit = renderer(source), sys.getrecursionlimit()
    sys.setrecursionlimit(300)  # jinja takes its time over deep tracebacks
    try:
        with pytest.raises(TemplateError):
            endless.delta([user("Q"), text("A")], [user("More")])
    finally:
        sys.setrecursionlimit(limit)


# ---- first prompts --------------------------------------------------------------------------------------------------


def test_first_prompt_ends_with_the_generation_prompt() -> None:
    assert renderer(ChatTemplate(LLAMA, special_values={"bos_token": "<s>"})).initial([user("Hi")]) == (
        "<s><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_first_prompt_that_loses_a_message_is_refused() -> None:
    source = CHATML.replace("messages %}", "messages if message.role != 'system' %}", 1)
    with pytest.raises(TemplateError, match=r"drops the content 'Be brief\.'"):
        renderer(source).initial([system("Be brief."), user("Hi")])


def test_first_prompt_that_raises_is_refused() -> None:
    with pytest.raises(TemplateError, match="only single tool-calls"):
        renderer(LLAMA).initial([user("Q"), call("a", "b"), user("R")])


def test_history_calls_take_the_form_of_the_template() -> None:
    source = CHATML.replace("call.function.arguments | tojson", "call.function.arguments + ''")
    as_object = call("c1", a=1)
    assert '"arguments": {"a": 1}}' in renderer(source).initial([user("Q"), as_object, result("c1")])


def test_template_variables_are_passed() -> None:
    source = CHATML + "{% if add_generation_prompt and not enable_thinking %}<think></think>{% endif %}"
    on = renderer(source, template_kwargs={"enable_thinking": True})
    off = renderer(source, template_kwargs={"enable_thinking": False})
    step = ([user("Q"), text("A")], [user("More")])
    assert off.delta(*step).text == on.delta(*step).text + "<think></think>"


# ---- sharing --------------------------------------------------------------------------------------------------------


def test_self_check_runs_once_for_all_renderers(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    real = renderer_module.self_check
    monkeypatch.setattr(renderer_module, "self_check", lambda step: runs.append(1) or real(step))
    template = ChatTemplate(CHATML + "{# once #}")
    many = [renderer(template, tools=[{**TOOLS[0], "n": i}]) for i in range(8)]  # type: ignore[arg-type]
    threads = [threading.Thread(target=lambda r=r: r.report) for r in many]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runs) == 1
    assert all(r.report is many[0].report for r in many)


def test_variables_are_checked_separately() -> None:
    assert renderer(template_kwargs={"x": 1}).report is not renderer(template_kwargs={"x": 2}).report


def test_delta_depends_on_the_tools_of_this_renderer() -> None:
    """The report is shared, the tools are not: a template that repeats the tools repeats the right ones."""
    source = CHATML.replace(
        "<|im_start|>{{ message.role }}\n",
        "<|im_start|>{{ message.role }}\n{% if loop.last and tools %}{{ tools | tojson }}{% endif %}",
    )
    step = ([user("Q"), text("A")], [user("More")])
    for name in ("first", "second"):
        tools = [{"type": "function", "function": {"name": name, "parameters": {}}}]
        assert f'"{name}"' in renderer(source, tools=tools).delta(*step).text


# ---- printed calls --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "printed"),
    [
        (CHATML, '\n<tool_call>\n{"name": "add", "arguments": {"a": "ü"}}\n</tool_call>'),
        (GLM, "<tool_call>add<arg_key>a</arg_key>\n<arg_value>ü</arg_value></tool_call>"),
        (LLAMA, '{"name": "add", "parameters": {"a": "ü"}}'),
    ],
)
def test_printed_call_is_what_a_model_samples(source: str, printed: str) -> None:
    shown = renderer(source).printed_call("add", {"a": "ü"})
    assert shown.strip("\n") == printed.strip("\n")


def test_no_printed_call_where_calls_are_not_printed() -> None:
    source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}<assistant>"
    assert renderer(source, stop_tokens=["</s>"]).printed_call("add", {"a": 1}) is None


# ---- reasoning ------------------------------------------------------------------------------------------------------


def test_open_reasoning_block_is_seen_at_the_end_of_a_prompt() -> None:
    thinks = renderer(CHATML + "{% if add_generation_prompt %}<think>\n{% endif %}")
    assert generation_opens_reasoning(thinks.initial([user("Hi")]))
    assert generation_opens_reasoning(thinks.delta([user("Q"), text("A")], [user("More")]).text)
    assert not generation_opens_reasoning(renderer().initial([user("What does <think> mean?")]))


def test_printed_call_starts_at_its_own_tag() -> None:
    """The tags of text and of calls start alike."""
    source = (
        "{% for m in messages %}<{{ m.role }}>"
        "{% for c in m.tool_calls or [] %}<|START_ACTION|>{{ c.function.arguments | tojson }}"
        "{% else %}{% if m.role == 'assistant' %}<|START_TEXT|>{% endif %}{{ m.content }}{% endfor %}</s>{% endfor %}"
    )
    assert renderer(source, stop_tokens=["</s>"]).printed_call("add", {"a": 1}) == '<|START_ACTION|>{"a": 1}'


def test_printed_call_has_no_trace_of_missing_content() -> None:
    source = CHATML.replace("{{ message.content or '' }}", "{{ message.content }}")
    shown = renderer(source).printed_call("add", {"a": 1})
    assert shown is not None and "None" not in shown
