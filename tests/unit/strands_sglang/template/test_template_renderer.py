"""First prompts and deltas."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

from strands_sglang.exceptions import TemplateError
from strands_sglang.template import ChatTemplate, DeltaRenderer
from strands_sglang.template import renderer as renderer_module
from strands_sglang.template.chat_messages import HistoryPart
from tests.unit.template_texts import CHATML, GLM, LLAMA, TOOLS, call, result, system, text, user

ENDS = {
    CHATML: ["<|im_end|>", "<|endoftext|>"],
    GLM: ["<|user|>", "<|observation|>"],
    LLAMA: ["<|eot_id|>", "<|eom_id|>"],
}


def renderer(source: Any = CHATML, **options: Any) -> DeltaRenderer:
    options = {"tools": TOOLS, "stop_tokens": ENDS.get(source, ["<|im_end|>"]), **options}
    return DeltaRenderer(source, **options)


STEP = [user("Q"), text("A")], [user("More")]
CALLED = [user("Q"), call("c1")], [result("c1", "42")]
ANSWERED = "<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
MORE = "<|im_start|>user\nMore<|im_end|>\n<|im_start|>assistant\n"
HEAD = "<|start_header_id|>{}<|end_header_id|>\n\n"
IMAGE = [user([{"type": "image"}, {"type": "text", "text": "Look"}])]
PARTS = CHATML.replace(
    "{{ message.content or '' }}",
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content or [] %}"
    "{% if part.type == 'text' %}{{ part.text }}{% elif part.type == 'image' %}<|image|>{% endif %}"
    "{% endfor %}{% endif %}",
)
ONLY_PARTS = (
    "{% for m in messages %}<{{ m.role }}>{% for part in m.content %}{{ part.text }}{% endfor %}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
NO_END = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant]"
ALIKE = "{% for m in messages %} Speaker {{ m.role }}: {{ m.content }}{% endfor %} Speech:"
TWO_ENDS = CHATML.replace("{%- endfor %}<|im_end|>\n", "{%- endfor %}<|im_end|><|stop|>\n")
ENDS |= {NO_END: ["</s>"], ALIKE: ["</s>"], ONLY_PARTS: ["</s>"], TWO_ENDS: ["<|im_end|>", "<|stop|>"]}


@pytest.mark.parametrize(
    ("source", "step", "emitted", "expected"),
    [
        (CHATML, STEP, "<|im_end|>", "\n" + MORE),
        (LLAMA, CALLED, "<|eot_id|>", HEAD.format("ipython") + "42<|eot_id|>" + HEAD.format("assistant")),
        (GLM, CALLED, "<|observation|>", "<tool_response>\n42\n</tool_response><|assistant|>"),
        (GLM, STEP, "<|observation|>", "<|user|>\nMore<|assistant|>"),  # the announced role does not come
        (LLAMA, STEP, "<|eom_id|>", HEAD.format("user") + "More<|eot_id|>" + HEAD.format("assistant")),  # a stand-in
        (NO_END, STEP, "</s>", "\n[user] More\n[assistant]"),
        (ALIKE, STEP, None, " Speaker user: More Speech:"),  # "Spe" is not a separator
        (TWO_ENDS, STEP, "<|im_end|>", "<|stop|>\n" + MORE.replace("<|im_end|>", "<|im_end|><|stop|>")),
        (TWO_ENDS, STEP, "<|stop|>", "\n" + MORE.replace("<|im_end|>", "<|im_end|><|stop|>")),
        (CHATML, CALLED, "</tool_call>", "<|im_end|>\n" + ANSWERED),  # an engine told to stop there: the rest follows
        (PARTS, (STEP[0], IMAGE), None, "\n" + MORE.replace("More", "<|image|>Look")),
        (ONLY_PARTS, STEP, None, "<user>More</s><assistant>"),
        (
            CHATML,
            (STEP[0], [user([{"type": "text", "text": part} for part in ("Mo", "re")])]),
            None,
            "\n" + MORE.replace("Mo", "Mo\n"),
        ),
        (
            LLAMA,
            (STEP[0], [user("  More \n")]),
            None,
            HEAD.format("user") + "More<|eot_id|>" + HEAD.format("assistant"),
        ),
    ],
)
def test_a_delta_is_what_follows_the_sampled_turn(source: str, step: Any, emitted: str | None, expected: str) -> None:
    delta = renderer(source, tools=TOOLS if source in (CHATML, GLM, LLAMA) else None).delta(*step, emitted=emitted)
    assert delta.text == expected
    assert (delta.history, delta.closer == "") == (HistoryPart.SHORT, source in (NO_END, ALIKE))


def test_stop_token_nobody_announced_is_found_where_it_is_printed() -> None:
    delta = renderer(stop_tokens=["</s>"]).delta(*CALLED, emitted="<|im_end|>")
    assert delta.text == "\n" + ANSWERED


def test_sampled_text_is_never_echoed() -> None:
    """A template that prints the content of a turn again after the tool results."""
    source = CHATML.replace(
        "</tool_response><|im_end|>",
        "</tool_response><|im_end|>{% set turn = messages[loop.index0 - 1] %}"
        "{% if turn.content %}AGAIN {{ turn.content }}{% endif %}",
    )
    turn = {**call("c1"), "content": "Let me see."}
    assert "AGAIN" not in renderer(source).delta([user("Q"), turn], [result("c1")]).text


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


def test_callers_messages_are_not_changed() -> None:
    history, new = [user("Q"), call("c1", a=1)], [result("c1", "x", None)]
    renderer().delta(history, new)
    assert (history, new) == ([user("Q"), call("c1", a=1)], [result("c1", "x", None)])


# ---- refusals -------------------------------------------------------------------------------------------------------

LOSES_TOOLS = "{% for m in messages if m.role != 'tool' %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}<assistant>"
SYSTEM_FIRST = "{% for m in messages if m.role == 'system' %}{{ m.content }}</s>{% endfor %}" + CHATML.replace(
    "{%- for message in messages %}", "{%- for message in messages if message.role != 'system' %}"
)
LOSES_SYSTEM = CHATML.replace("messages %}", "messages if message.role != 'system' %}", 1)


@pytest.mark.parametrize(
    ("source", "history", "new", "problem"),
    [
        (LOSES_TOOLS, *CALLED, r"drops the new message\(s\) with role 'tool'"),
        (LLAMA, [user("Q"), call("c1", "c2")], [result("c1"), result("c2")], "only single tool-calls"),
        (SYSTEM_FIRST, STEP[0], [system("New rule"), user("More")], "before the assistant turn"),
        (LLAMA, STEP[0], IMAGE, "takes only text"),
        (PARTS, STEP[0], [user([{"type": "video"}, {"type": "text", "text": "Look"}])], "drops the 'video' part"),
        (CHATML, [user("Q")], [user("More")], "must end with the assistant turn"),
        (CHATML, [], [user("More")], "must end with the assistant turn"),
        (CHATML, STEP[0], [], "at least one new message"),
        (CHATML, STEP[0], [text("B")], "none from the assistant"),
        *(
            (
                CHATML.replace("{{ message.content", "{{ (message.content or '') | " + change),
                STEP[0],
                [user("MORE is")],
                None,
            )
            for change in ("upper", "lower", "title", "reverse", "length")
        ),
        (LLAMA, None, IMAGE, "takes only text"),
        (LLAMA, None, [user("Q"), call("a", "b"), user("R")], "only single tool-calls"),
        (LOSES_SYSTEM, None, [system("Be brief."), user("Hi")], r"drops the content 'Be brief\.'"),
    ],
)
def test_what_the_template_cannot_express_is_refused(source: str, history: Any, new: Any, problem: Any) -> None:
    with pytest.raises(TemplateError, match=problem):
        renderer(source).initial(new) if history is None else renderer(source).delta(history, new)


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


def test_first_prompts() -> None:
    llama = renderer(ChatTemplate(LLAMA, special_values={"bos_token": "<s>"}))
    assert llama.initial([user("Hi")]) == f"<s>{HEAD.format('user')}Hi<|eot_id|>{HEAD.format('assistant')}"
    assert renderer(ONLY_PARTS, tools=None).initial([user("Q")]) == "<user>Q</s><assistant>"
    as_text = renderer(CHATML.replace("call.function.arguments | tojson", "call.function.arguments + ''"))
    assert '"arguments": {"a": 1}}' in as_text.initial([user("Q"), call("c1", a=1), result("c1")])


def test_template_variables_are_passed() -> None:
    source = CHATML + "{% if add_generation_prompt and not enable_thinking %}<think></think>{% endif %}"
    on = renderer(source, template_kwargs={"enable_thinking": True})
    off = renderer(source, template_kwargs={"enable_thinking": False})
    assert off.delta(*STEP).text == on.delta(*STEP).text + "<think></think>"


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
    assert renderer(template, template_kwargs={"x": 1}).report is not many[0].report


def test_delta_depends_on_the_tools_of_this_renderer() -> None:
    """The report is shared, the tools are not: a template that repeats the tools repeats the right ones."""
    source = CHATML.replace(
        "<|im_start|>{{ message.role }}\n",
        "<|im_start|>{{ message.role }}\n{% if loop.last and tools %}{{ tools | tojson }}{% endif %}",
    )
    for name in ("first", "second"):
        tools = [{"type": "function", "function": {"name": name, "parameters": {}}}]
        assert f'"{name}"' in renderer(source, tools=tools).delta(*STEP).text


# ---- printed calls --------------------------------------------------------------------------------------------------

# The tags of text and of calls start alike.
TAGS_ALIKE = (
    "{% for m in messages %}<{{ m.role }}>"
    "{% for c in m.tool_calls or [] %}<|START_ACTION|>{{ c.function.arguments | tojson }}"
    "{% else %}{% if m.role == 'assistant' %}<|START_TEXT|>{% endif %}{{ m.content }}{% endfor %}</s>{% endfor %}"
)
ENDS[TAGS_ALIKE] = ["</s>"]


@pytest.mark.parametrize(
    ("source", "printed"),
    [
        (LOSES_TOOLS, None),
        (
            CHATML.replace("message.content or ''", "message.content"),
            '<tool_call>\n{"name": "add", "arguments": {"a": "ü"}}\n</tool_call>',
        ),
        (CHATML, '\n<tool_call>\n{"name": "add", "arguments": {"a": "ü"}}\n</tool_call>'),
        (  # what the prompt ends with is not in the history
            CHATML.replace("<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n<think>\n</think>{% endif %}"),
            '\n<tool_call>\n{"name": "add", "arguments": {"a": "ü"}}\n</tool_call>',
        ),
        (GLM, "<tool_call>add<arg_key>a</arg_key>\n<arg_value>ü</arg_value></tool_call>"),
        (LLAMA, '{"name": "add", "parameters": {"a": "ü"}}'),
        (TAGS_ALIKE, '<|START_ACTION|>{"a": "ü"}'),
    ],
)
def test_printed_call_is_what_a_model_samples(source: str, printed: str | None) -> None:
    shown = renderer(source).printed_call("add", {"a": "ü"})
    assert shown == printed or shown.strip("\n") == printed.strip("\n")


def test_a_long_word_before_a_printed_call_is_read_once() -> None:
    """Searched from each of its places, a word of this length would not be read in a day."""
    described = {"name": "add", "description": "x" * 1_000_000, "parameters": {}}
    source = "{{ tools | tojson }}\n" + CHATML
    printed = renderer(source, tools=[{"type": "function", "function": described}]).printed_call("add", {"a": 1})
    assert printed is not None and printed.strip("\n").startswith("<tool_call>")
