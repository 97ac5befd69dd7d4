"""Conversion of the default model's GGUF file to a Hugging Face folder.

transformers reads its configuration and tokenizer. Weights are read here: transformers takes several times as long
for the same bits, and the package `accelerate`. No other file is read: this one is known by its hash.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OTHER_NAMES = {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}


def convert(file: Path, folder: Path, *, chat_template: str) -> None:
    """Write a GGUF file of a Llama model as a Hugging Face folder with float32 weights and this chat template."""
    from gguf import GGUFReader
    from safetensors.numpy import save_file
    from transformers import AutoConfig, AutoTokenizer

    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name, architectures=["LlamaForCausalLM"])
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer.chat_template = chat_template
    folder.mkdir()
    weights = _read_weights(GGUFReader(file).tensors, config)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _read_weights(tensors: Iterable[Any], config: Any) -> dict[str, NDArray[np.float32]]:
    """All weights under their names in transformers."""
    from gguf import dequantize

    heads_of = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    weights = {}
    for tensor in tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        *layer, part, _ = tensor.name.split(".")
        if part in heads_of:  # GGUF keeps the two coordinates of a rotation together, transformers half a head apart
            heads = values.reshape(heads_of[part], -1, 2, values.shape[1])
            values = np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(values.shape)
        name = f"model.layers.{layer[1]}.{_LAYER_NAMES[part]}.weight" if layer else _OTHER_NAMES[part]
        weights[name] = values
    return weights
