"""The tokenizers of own models without transformers, beside those of transformers."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from strands_sglang.backends.engine import few_shot_messages
from strands_sglang.backends.engine.loader import default_model_cached, default_model_path, load_tokenizer
from strands_sglang.backends.engine.own_tokenizer import OwnTokenizer, own_tokenizer
from strands_sglang.backends.engine.tiny import make_tiny_tokenizer
from strands_sglang.conversation.messages import format_messages
from strands_sglang.template import ChatTemplate
from strands_sglang.template.chat_template import SPECIAL_NAMES
from strands_sglang.tokenizer import TokenizerAdapter

ATTRIBUTES = ("chat_template", "name_or_path", "eos_token_id", "special_tokens_map", *SPECIAL_NAMES)
ATTRIBUTES += ("all_special_ids", "all_special_tokens")
OF_A_CONVERSATION = ("stop_tokens", "stop_ids", "special_tokens", "control_texts")
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {}}}]


@pytest.fixture(params=["tiny", "a folder in the cache", "smollm2"])
def both(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[OwnTokenizer, Any]:
    """An own tokenizer, and the one of transformers."""
    name = "tiny" if request.param == "tiny" else "smollm2"
    if request.param == "a folder in the cache":
        monkeypatch.setenv("STRANDS_ROLLOUT_CACHE", str(tmp_path))
        made = make_tiny_tokenizer(more_control=("<|begin|>",))
        made.add_special_tokens({"bos_token": "<|begin|>", "unk_token": "<|endoftext|>"})
        made.save_pretrained(default_model_path())
        (default_model_path() / "config.json").write_text('{"eos_token_id": 3}')
    elif name == "smollm2" and not default_model_cached():
        pytest.skip("default model not cached")
    light = own_tokenizer(name)
    assert light is not None
    return light, load_tokenizer(name)


def test_an_own_tokenizer_has_what_is_read_of_one(both: tuple[OwnTokenizer, Any]) -> None:
    light, full = both
    rust, expected = (json.loads(each.backend_tokenizer.to_str()) for each in both)
    del rust["post_processor"], expected["post_processor"]  # the class may give it one that adds nothing
    assert rust == expected
    assert {name: getattr(light, name) for name in ATTRIBUTES} == {name: getattr(full, name) for name in ATTRIBUTES}
    assert (len(light), light.get_added_vocab()) == (len(full), full.get_added_vocab())
    added = [{n: str(token) for n, token in each.added_tokens_decoder.items()} for each in both]
    assert added[0] == added[1]
    one, two = (TokenizerAdapter(each) for each in both)
    for name in OF_A_CONVERSATION:
        assert getattr(one, name) == getattr(two, name), name


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "Wie groß ist 2 + 3? <|im_end|> 日本 \ufffd"}],
        format_messages(few_shot_messages(), "Be brief."),
    ],
    ids=["one", "calls"],
)
def test_its_prompts_are_those_of_transformers(both: tuple[OwnTokenizer, Any], messages: list[dict[str, Any]]) -> None:
    light, full = both
    text = ChatTemplate.from_tokenizer(light).render(messages, tools=TOOLS, add_generation_prompt=True)
    assert text == full.apply_chat_template(messages, tools=TOOLS, add_generation_prompt=True, tokenize=False)
    ids = light.encode(text, add_special_tokens=False)
    assert ids == full.encode(text, add_special_tokens=False)
    assert light.encode(text) == full.encode(text)
    for skip in (True, False):
        assert light.decode(ids, skip_special_tokens=skip) == full.decode(ids, skip_special_tokens=skip)


def test_anything_else_is_asked_of_transformers_class() -> None:
    light, full = own_tokenizer("tiny"), load_tokenizer("tiny")
    assert light is not None
    messages = [{"role": "user", "content": "Hello"}]
    assert light.apply_chat_template(messages, tokenize=False) == full.apply_chat_template(messages, tokenize=False)
    ids = full.encode("Hello")
    assert light("Hello")["input_ids"] == light.encode("Hello", truncation=True) == ids
    assert light.decode(ids[0]) == full.decode(ids[0])
    assert light.model_max_length == full.model_max_length
    assert copy.copy(light).eos_token == full.eos_token


def test_other_names_and_folders_are_no_own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_tokenizer("some/model") is None
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    assert own_tokenizer("tiny") is None
