"""The provider and chat templates: policies, openers, ids of the model's own, refusals."""

from __future__ import annotations

from typing import Any

import pytest
from provider_support import Replay, add, assert_prefix_law, call, completion, make, make_agent, tokenizer, user
from strands import tool
from strands.types.exceptions import EventLoopException

from strands_sglang import MessageConversionError, SGLangModel, TemplateError, ToolParserError, get_tool_parser
from strands_sglang.backends import Capabilities
from strands_sglang.backends.engine.templates import HERMES_TEMPLATE
from strands_sglang.backends.wrapper import BackendWrapper
from strands_sglang.conversation.tool_calls import PrintedCalls, choose_tool_parser
from strands_sglang.testing import Reply
from strands_sglang.tool_parsers import TOOL_PARSER_REGISTRY, HermesToolParser
from tests.unit.family_templates import ended

ARGUMENTS = '{"city": "Zürich", "note": "two words"}'

DROPS_REASONING = """\
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
<|im_start|>{{ m.role }}
{% if m.role == 'assistant' and m.reasoning_content and (KEEP loop.index0 > ns.last) -%}
<think>{{ m.reasoning_content }}</think>
{%- endif %}
{{- m.content or '' }}
{%- for c in m.tool_calls or [] -%}
<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

NO_TOOL_ROLE = """\
{%- for m in messages %}{% if m.role != 'tool' %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

KIMI = """\
{%- for m in messages %}<|im_start|>{{ m.role }}{% if m.role == 'tool' %} {{ m.tool_call_id }}{% endif %}

{{ m.content or '' }}
{%- if m.tool_calls %}<|tool_calls_section_begin|>
{%- for c in m.tool_calls -%}
<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>{{ c.function.arguments | tojson }}<|tool_call_end|>
{%- endfor %}
{{- '<|tool_calls_section_end|>' }}{% endif %}
{{- '<|im_end|>' }}{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant

{% endif %}"""


JSON_CALL = '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
TAGS = (
    "<function={{ c.function.name }}>{% for k, v in c.function.arguments.items() %}"
    "<parameter={{ k }}>{{ v }}</parameter>{% endfor %}</function>"
)


def calls_as(text: str) -> str:
    """A template that prints a call with this text."""
    template = DROPS_REASONING.replace("KEEP", "")
    assert JSON_CALL in template
    return template.replace(JSON_CALL, text)


async def two_user_turns(template: str, **options: Any) -> tuple[SGLangModel, Replay]:
    model, client = make(["<think>first thought</think>one", "two"], chat_template=template, **options)
    agent = make_agent(model, tools=[])
    await agent.invoke_async("a")
    await agent.invoke_async("b")
    return model, client


async def test_policy_append_keeps_earlier_reasoning_in_one_sequence() -> None:
    model, client = await two_user_turns(DROPS_REASONING.replace("KEEP", ""))
    assert_prefix_law(client, model)
    assert "first thought" in tokenizer().decode(client.prompts[1])
    assert len(model.trajectories) == 1


async def test_policy_append_sets_the_switch_of_the_template_that_keeps_reasoning() -> None:
    template = DROPS_REASONING.replace("KEEP", "preserve_thinking or")
    model, client = make(["<think>first thought</think>one", "two"], chat_template=template)
    agent = make_agent(model, tools=[])
    await agent.invoke_async("a")
    agent.system_prompt = "another root, whose history is rendered by the template"
    await agent.invoke_async("b")
    assert "first thought" in tokenizer().decode(client.prompts[1])


async def test_policy_branch_renders_the_history_as_the_template_shows_it() -> None:
    model, client = await two_user_turns(DROPS_REASONING.replace("KEEP", ""), reasoning_policy="branch")
    prompt = tokenizer().decode(client.prompts[1])
    assert "first thought" not in prompt
    assert "one" in prompt
    assert len(model.trajectories) == 2
    assert sum(sum(t.loss_mask) for t in model.trajectories) == model.forest.sampled_tokens


async def test_policy_branch_does_not_branch_inside_a_tool_loop() -> None:
    template = DROPS_REASONING.replace("KEEP", "")
    model, client = make(["<think>t</think>" + call(1, 2), "3"], chat_template=template, reasoning_policy="branch")
    await make_agent(model).invoke_async("a")
    assert_prefix_law(client, model)
    assert len(model.trajectories) == 1


async def test_a_template_that_loses_tool_results_is_refused_before_anything_is_sent() -> None:
    model, client = make([call(1, 2)], chat_template=NO_TOOL_ROLE, tool_parser=get_tool_parser("hermes"))
    with pytest.raises(TemplateError, match="cannot be used with tools"):
        await make_agent(model).invoke_async("a")
    assert client.prompts == []
    model, client = make(["one", "two"], chat_template=NO_TOOL_ROLE)
    agent = make_agent(model, tools=[])
    for text in ("a", "b"):  # it is fit for agents without tools
        await agent.invoke_async(text)
    assert_prefix_law(client, model)


async def test_the_parser_is_chosen_by_what_the_template_prints() -> None:
    markup = "<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>"
    markup += '{"a": 1, "b": 2}<|tool_call_end|><|tool_calls_section_end|>'
    model, client = make([markup, "3"], chat_template=KIMI)
    agent = make_agent(model)
    await agent.invoke_async("a")
    use = agent.messages[1]["content"][0]["toolUse"]
    assert (use["name"], use["input"]) == ("add", {"a": 1, "b": 2})
    prompt = tokenizer().decode(client.prompts[1])
    assert "<|im_start|>tool functions.add:0" in prompt  # the id the model itself wrote, not the SDK's
    assert use["toolUseId"] not in prompt
    assert_prefix_law(client, model)


async def test_tools_without_a_fitting_parser_are_refused_with_what_to_do() -> None:
    odd = DROPS_REASONING.replace("KEEP", "").replace("<tool_call>", "<<").replace("</tool_call>", ">>")
    model, client = make(["x"], chat_template=odd)
    with pytest.raises(ToolParserError, match="pass tool_parser="):
        await make_agent(model).invoke_async("a")
    assert client.prompts == []


async def test_a_tool_that_the_format_cannot_express_is_refused_before_anything_is_sent() -> None:
    template = calls_as(TAGS)
    sampled = "<tool_call><function=f><parameter=Due Date (UTC)>today</parameter></function></tool_call>"
    for key, name, reason in (
        ("Due Date (UTC)", "f", None),
        ("a > b", "f", "'f' has a parameter named 'a > b'.*rename it"),
        ("a", "find it", "'find it' has a name, which this model's format of calls cannot express.*rename it"),
    ):
        schema = {"type": "object", "properties": {key: {"type": "string"}}}
        model, client = make([sampled], chat_template=template)
        specs: Any = [{"name": name, "description": "F.", "inputSchema": {"json": schema}}]
        stream = model.stream([{"role": "user", "content": [{"text": "go"}]}], specs)
        if reason is None:
            deltas = [event["contentBlockDelta"]["delta"] async for event in stream if "contentBlockDelta" in event]
            assert deltas == [{"toolUse": {"input": '{"Due Date (UTC)": "today"}'}}]
        else:
            with pytest.raises(ToolParserError, match=reason):
                _ = [event async for event in stream]
            assert client.prompts == []


ADD: Any = {"tool": {"name": "add"}}
DSML = '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="NAME">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'
NO_ARGUMENTS = '<tool_call>{"name": "NAME", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(
    ("template", "choice", "good", "bad"),
    [
        (HERMES_TEMPLATE, {"any": {}}, call(1, 2), "Three."),
        (HERMES_TEMPLATE, {"any": {}}, NO_ARGUMENTS.replace("NAME", "sub"), NO_ARGUMENTS.replace("NAME", "no")),
        (HERMES_TEMPLATE, ADD, NO_ARGUMENTS.replace("NAME", "add"), NO_ARGUMENTS.replace("NAME", "sub")),
        (calls_as(TAGS), ADD, "<tool_call><function=add><parameter=a>1</parameter>", "<tool_call><function=sub>"),
        (ended("functionary"), {"any": {}}, ' sub\n{"a": 1}', "all\nThree."),
        (ended("deepseek_v4"), ADD, DSML.replace("NAME", "add"), DSML.replace("NAME", "sub")),
    ],
)
async def test_a_forced_tool_choice_becomes_a_grammar(template: str, choice: Any, good: str, bad: str) -> None:
    xgrammar = pytest.importorskip("xgrammar")
    specs: Any = [{**add.tool_spec, "name": name} for name in ("add", "sub")]
    model, client = make([good, good], chat_template=template)
    for each in (choice, {"auto": {}}):
        _ = [event async for event in model.stream([user("go")], specs, tool_choice=each)]
    grammar = client.requests[0].fields["sampling_params"]["ebnf"]
    assert "ebnf" not in client.requests[1].fields["sampling_params"]
    assert [turn.is_constrained for turn in model.forest.turns] == [True, False]
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer(), vocab_size=len(tokenizer()))
    compiled = xgrammar.GrammarCompiler(info, max_threads=1).compile_grammar(grammar)
    accepted = [xgrammar.GrammarMatcher(compiled).accept_string(text) for text in (good, bad)]
    assert accepted == [True, False]


async def test_a_forced_choice_that_cannot_be_constrained_is_ignored_with_one_warning(caplog: Any) -> None:
    class Plain(BackendWrapper):
        capabilities = Capabilities(hints={"constraints": "start the server with one"})

    grammar = {"sampling_params": {"regex": ".*"}}
    control = {"chat_template": calls_as("<|im_start|>" + JSON_CALL), "tool_parser": "hermes"}
    for wrap, options, reason in (
        (Plain, {}, "the backend has no grammars: start the server with one"),
        (None, grammar, "sampling_params has regex, and a call takes one grammar"),
        (
            None,
            control,
            "a grammar cannot spell the model's format of calls",
        ),
    ):
        caplog.clear()
        for _ in range(2):
            model, client = make(["Three."], **options)
            model.client = model.client if wrap is None else wrap(client)
            _ = [e async for e in model.stream([user("go")], [add.tool_spec], tool_choice={"any": {}})]
            assert "ebnf" not in client.requests[0].fields["sampling_params"]
        said = [record.getMessage() for record in caplog.records if "forced" in record.getMessage()]
        assert said == [f"tools=<add> | a forced tool choice is ignored: {reason}"]


async def test_another_stop_token_than_the_template_prints_stays_in_the_tokens() -> None:
    other = tokenizer().convert_tokens_to_ids("<|endoftext|>")
    ids = [*(completion("one", stop=False).ids or ()), other]
    model, client = make([Reply(ids=ids, matched=other), "two"], chat_template=DROPS_REASONING.replace("KEEP", ""))
    agent = make_agent(model, tools=[])
    await agent.invoke_async("a")
    assert agent.messages[1]["content"][0]["text"] == "one"
    await agent.invoke_async("b")
    assert "one<|endoftext|>\n<|im_start|>user" in tokenizer().decode(client.prompts[1])
    assert_prefix_law(client, model)


def test_the_choice_of_a_parser_is_kept_and_notices_one_that_is_registered_later(monkeypatch: Any) -> None:
    class FirstOfAll(HermesToolParser):
        pass

    printed = PrintedCalls(texts=('<tool_call>\n{"name": "probe_tool", "arguments": ' + ARGUMENTS + "}\n</tool_call>",))
    before = [choose_tool_parser(printed) for _ in range(2)]
    assert [type(parser) for parser in before] == [HermesToolParser] * 2
    assert before[0] is not before[1]
    monkeypatch.setitem(TOOL_PARSER_REGISTRY, "a_first", FirstOfAll)
    assert type(choose_tool_parser(printed)) is FirstOfAll


# ---- call ids and names -----------------------------------------------------------


def restored(*names: str) -> list[Any]:
    """A history with calls of the tools, every one with the same id."""
    history: list[Any] = [{"role": "user", "content": [{"text": "q"}]}]
    for name in names:
        use = {"toolUseId": "call_1234567890", "name": name, "input": {"a": 1}}
        result = {"toolUseId": "call_1234567890", "status": "success", "content": [{"text": f"result of {name}"}]}
        history.append({"role": "assistant", "content": [{"toolUse": use}]})
        history.append({"role": "user", "content": [{"toolResult": result}]})
    return [*history, {"role": "assistant", "content": [{"text": "1"}]}]


async def test_restored_sessions_on_one_model_do_not_share_function_ids() -> None:
    model, client = make(["3", "4", "5"], chat_template=KIMI)
    for names in (("add",), ("other", "add")):
        agent = make_agent(model)
        agent.messages.extend(restored(*names))
        await agent.invoke_async("again")
    first, second = (tokenizer().decode(prompt) for prompt in client.prompts)
    assert "functions.add:0" in first
    assert second.count("functions.other:0") == 2
    assert second.count("functions.add:1") == 2
    assert "functions.add:0" not in second


NINE = (
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{%- if m.tool_calls %}{%- for c in m.tool_calls %}{%- if c.id|length != 9 %}{{ raise_exception('nine!') }}"
    "{%- endif %}{{ '<tool_call>' + {'name': c.function.name, 'arguments': c.function.arguments}|tojson"
    " + '</tool_call>' }}"
    "{%- endfor %}{%- else %}{%- if m.role == 'tool' %}{{ '[' + m.tool_call_id + ']' }}{%- endif %}{{ m.content }}"
    "{%- endif %}{{ '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
)


async def test_long_call_ids_of_a_supplied_history_are_shortened_where_the_template_takes_nine_characters() -> None:
    model, client = make([call(1, 2), "4"], chat_template=NINE, tool_parser=get_tool_parser("hermes"))
    agent = make_agent(model)
    agent.messages.extend(restored("add", "add"))
    await agent.invoke_async("again")
    text = tokenizer().decode(client.prompts[0])
    assert "[hist00000]result of add" in text
    assert "[hist00001]result of add" in text
    assert_prefix_law(client, model)


async def test_a_name_that_the_sdk_replaced_is_printed_as_it_was_sampled() -> None:
    model, client = make([call(1, 2, name="bad name"), "done", "more"], chat_template=HERMES_TEMPLATE)
    agent = make_agent(model)
    await agent.invoke_async("a")
    agent.system_prompt = "Changed."  # a new root
    await agent.invoke_async("b")
    text = tokenizer().decode(client.prompts[-1])
    assert '{"name": "bad name"' in text
    assert "INVALID_TOOL_NAME" not in text


# ---- a tool result that cannot be shown -----------------------------------------------


@tool
async def report() -> dict[str, Any]:
    """Makes a report."""
    document = {"format": "pdf", "name": "report", "source": {"bytes": b"%PDF"}}
    return {"status": "success", "content": [{"document": document}]}


REPORT = '<tool_call>{"name": "report", "arguments": {}}</tool_call>'


async def test_a_refused_tool_result_can_be_replaced_and_the_agent_goes_on() -> None:
    model, client = make([REPORT, "Sorry."], chat_template=HERMES_TEMPLATE, refused_results="raise")
    agent = make_agent(model, tools=[report])
    with pytest.raises(EventLoopException) as caught:
        await agent.invoke_async("a")
    error = caught.value.original_exception
    assert isinstance(error, MessageConversionError) and error.index == 2
    agent.messages[error.index]["content"][0]["toolResult"]["content"] = [{"text": "no PDF here"}]
    assert str(await agent.invoke_async([])).strip() == "Sorry."
    assert_prefix_law(client, model)
    assert len(model.trajectories) == 1


DOCUMENT = {"document": {"format": "pdf", "name": "report", "source": {"bytes": b"%PDF"}}}
PICTURE = {"image": {"format": "png", "source": {"bytes": b"\x89PNG"}}}


@pytest.mark.parametrize(
    ("blocks", "words", "status", "options"),
    [
        ([DOCUMENT], "Error: document cannot be shown: a 'document' block has no place", "error", {}),
        ([PICTURE], "Error: image cannot be shown: this model takes text only", "error", {}),
        ([{"text": "In [1]:"}, PICTURE], "In [1]:\nimage cannot be shown: this model takes text only", "success", {}),
        ([PICTURE, DOCUMENT], "this model takes text only\ndocument cannot be shown", "error", {}),
        ([{"json": {"x": float("nan")}}], "Error: json cannot be shown: the json block is not JSON", "error", {}),
        ([{"text": "cut \ud83d"}], "Error: text cannot be shown: the text has lone surrogates", "error", {}),
        ([{"text": "<|im_end|>"}], "Error: text cannot be shown: ", "error", {"control_tokens": "error"}),
        ([{"video": {}}, {"text": "frames"}], "video cannot be shown", "success", {}),
    ],
)
async def test_a_refused_tool_result_is_reported_to_the_model(
    blocks: list[Any], words: str, status: str, options: dict[str, Any]
) -> None:
    @tool(name="report")
    async def reports() -> dict[str, Any]:
        """Makes a report."""
        return {"status": "success", "content": blocks}

    model, client = make([REPORT, "Sorry."], chat_template=HERMES_TEMPLATE, **options)
    agent = make_agent(model, tools=[reports])
    assert str(await agent.invoke_async("a")).strip() == "Sorry."
    assert words in tokenizer().decode(client.prompts[1])
    assert agent.messages[2]["content"][0]["toolResult"]["status"] == status
    assert_prefix_law(client, model)


async def test_a_template_that_refuses_a_step_says_from_which_message_on() -> None:
    refuses = "{%- for m in messages if 'poison' in m.content %}{{ raise_exception('no') }}{%- endfor %}"
    model, _ = make(["1", "2"], chat_template=refuses + HERMES_TEMPLATE)
    agent = make_agent(model, tools=[])
    await agent.invoke_async("a")
    with pytest.raises(TemplateError) as caught:
        await agent.invoke_async("poison")
    assert caught.value.index == 2
    del agent.messages[caught.value.index :]
    await agent.invoke_async("b")
    assert len(model.trajectories) == 1
