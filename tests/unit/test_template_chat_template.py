"""Where a chat template comes from and what it renders."""

from __future__ import annotations

from typing import Any

import pytest

from strands_sglang.exceptions import TemplateError
from strands_sglang.template import ChatTemplate
from tests.unit.template_texts import CHATML, GLM, LLAMA, TOOLS, call, result, system, text, user


class Tokenizer:
    def __init__(self, chat_template: Any = None, **special: str) -> None:
        self.chat_template = chat_template
        self.special_tokens_map = special


def test_special_tokens_are_variables() -> None:
    template = ChatTemplate.from_tokenizer(Tokenizer("{{ bos_token }}|{{ eos_token }}", bos_token="<s>"))
    assert template.render([]) == "<s>|"


def test_kwargs_win_over_special_tokens() -> None:
    assert ChatTemplate("{{ bos_token }}", special_values={"bos_token": "<s>"}).render([], bos_token="x") == "x"


def test_named_templates_are_chosen_by_tools() -> None:
    tokenizer = Tokenizer([{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}])
    template = ChatTemplate.from_tokenizer(tokenizer)
    assert (template.render([]), template.render([], tools=TOOLS)) == ("plain", "tools")


def test_a_mapping_of_templates_works_too() -> None:
    assert ChatTemplate.from_tokenizer(Tokenizer({"default": "a", "rag": "b"})).render([], tools=TOOLS) == "a"


def test_one_of_several_templates_can_be_named() -> None:
    assert ChatTemplate.from_tokenizer(Tokenizer({"default": "a", "rag": "b"}), "rag").render([]) == "b"


def test_several_templates_without_a_default_are_refused() -> None:
    with pytest.raises(TemplateError, match="'rag', 'short'"):
        ChatTemplate.from_tokenizer(Tokenizer({"rag": "a", "short": "b"}))


def test_given_template_wins() -> None:
    assert ChatTemplate.from_tokenizer(Tokenizer("own"), "given").render([]) == "given"


def test_no_template_says_what_to_pass() -> None:
    class Rendering:
        """Renders by code of its own, as mistral-common's does."""

        def apply_chat_template(self, messages: Any, **kwargs: Any) -> str:
            return "text"

    for tokenizer in (object(), Rendering()):
        with pytest.raises(TemplateError, match="pass chat_template="):
            ChatTemplate.from_tokenizer(tokenizer)


def test_reasoning_reaches_templates_under_its_names() -> None:
    template = ChatTemplate("{{ messages[0].reasoning_content }}|{{ messages[0].thinking }}")
    assert template.render([{"role": "assistant", "content": "", "thinking": "hm"}]) == "hm|hm"
    assert template.render([{"role": "assistant", "content": "", "reasoning": "hm"}]) == "hm|hm"


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
