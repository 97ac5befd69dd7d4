"""Models of one tokenizer share formats and first prompts, and never one that differs in anything printed."""

from __future__ import annotations

from typing import Any

import pytest

from strands_sglang import SGLangModel
from strands_sglang.backends.engine.templates import HERMES_TEMPLATE
from strands_sglang.conversation import TurnRequest
from strands_sglang.template.chat_template import ChatTemplate
from tests.qwen_support import qwen3_tokenizer

TOOL: Any = {
    "name": "search",
    "description": "Search.",
    "inputSchema": {"json": {"type": "object", "properties": {"query": {"type": "string"}}}},
}
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def hermes_tokenizer() -> Any:
    """A tokenizer with a template that prints tools and calls."""
    tokenizer = qwen3_tokenizer()
    tokenizer.chat_template = HERMES_TEMPLATE
    return tokenizer


class Client:
    """Never asked here."""

    async def generate(self, input_ids: list[int], **fields: Any) -> dict[str, Any]:
        raise AssertionError


def prepared(tokenizer: Any, question: str = "Hi", tools: Any = (), **options: Any) -> Any:
    """The prepared first turn of a fresh model."""
    model = SGLangModel(client=Client(), tokenizer=tokenizer, **options)
    messages: Any = [{"role": "user", "content": [{"text": question}]}]
    return model.conversation.prepare(TurnRequest(messages=messages, tools=tools))


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each rendering."""
    found: list[int] = []
    render = ChatTemplate.render_as_given
    monkeypatch.setattr(ChatTemplate, "render_as_given", lambda *args, **rest: found.append(1) or render(*args, **rest))
    return found


def test_a_group_of_rollouts_renders_its_first_prompt_once(rendered: list[int]) -> None:
    tokenizer = hermes_tokenizer()
    first = prepared(tokenizer, tools=[TOOL])
    rendered.clear()
    second = prepared(tokenizer, tools=[TOOL])
    assert second.format is first.format
    assert second.prompt == first.prompt
    assert second.prompt.ids is not first.prompt.ids
    assert not rendered
    assert prepared(tokenizer, "Hello", tools=[TOOL]).prompt != first.prompt
    assert rendered


@pytest.mark.parametrize(
    "other",
    [
        {"tools": [{**TOOL, "description": "Find."}]},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"control_tokens": "allow"},
        {"dropped_content": "allow"},
        {"chat_template": TEMPLATE, "tools": ()},
        {"stop_tokens": ["<|endoftext|>"]},
    ],
    ids=lambda other: next(iter(other)),
)
def test_whatever_counts_makes_another_format(other: dict[str, Any]) -> None:
    tokenizer = hermes_tokenizer()
    first = prepared(tokenizer, tools=[TOOL])
    second = prepared(tokenizer, **{"tools": [TOOL], **other})
    assert second.format is not first.format


def test_a_tokenizer_that_changes_is_seen() -> None:
    tokenizer = qwen3_tokenizer()
    tokenizer.chat_template = TEMPLATE
    first = prepared(tokenizer)
    tokenizer.chat_template = TEMPLATE.replace("message.content", "message.content ~ '.'")
    assert prepared(tokenizer).prompt.ids != first.prompt.ids


def test_a_template_that_shows_the_date_is_rendered_each_time(rendered: list[int]) -> None:
    tokenizer = qwen3_tokenizer()
    tokenizer.chat_template = "{{ strftime_now('%Y') }}" + TEMPLATE
    first = prepared(tokenizer)
    rendered.clear()
    assert prepared(tokenizer).format is first.format
    assert rendered


def test_values_that_json_would_confuse_are_told_apart() -> None:
    tokenizer = qwen3_tokenizer()
    tokenizer.chat_template = "{{ flavour }}" + TEMPLATE
    prompts = [
        prepared(tokenizer, chat_template_kwargs={"flavour": value}).prompt.ids.tolist()
        for value in (1, 1.0, True, "1", None, [1], "None")
    ]
    assert len({tuple(prompt) for prompt in prompts}) == 5  # 1 and "1", None and "None" are printed alike
