"""A tiny random model, made on the spot: real architecture, real tokenizer, nonsense answers, no download.

Two layers of Qwen3 with 64 hidden units, and a byte-level BPE tokenizer trained on generated text, with ChatML control
tokens, tool and thinking marks. Made in about a second; the same seed gives the same model. Saved as a folder it loads
in transformers and in a genuine SGLang server.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .templates import HERMES_TEMPLATE, VISION_TEMPLATE

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Flagged special: removed from decoded text by `skip_special_tokens`."""
VISION_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
"""Flagged special, as in the Qwen-VL family."""
VISION_FAMILIES = ("qwen2_5_vl", "qwen3_vl")
MARK_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
"""Single tokens, but ordinary text, as in the Qwen3 family."""
SPECIAL_TOKENS = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyModel:
    """A model, its tokenizer and the folder that holds them, if one was asked for."""

    model: Any
    tokenizer: Any
    path: Path | None
    image_processor: Any = None


def make_tiny_model(
    out_dir: str | Path | None = None,
    *,
    vocab_size: int = 1024,
    hidden_size: int = 64,
    layers: int = 2,
    head_dim: int = 16,
    context_length: int = 4096,
    seed: int = 0,
) -> TinyModel:
    """Make a tiny random Qwen3 model with its own tokenizer.

    Args:
        out_dir: Folder to save both into (`save_pretrained`); nothing is written without it.
        vocab_size: Tokens in all, at least 300: 256 bytes, control and mark tokens, the rest learned merges.
        hidden_size: Width of the model, a multiple of 16.
        head_dim: Width of an attention head; the CPU kernels of vLLM take 32 and its multiples.
        context_length: Positions the model was (not) trained for.
        seed: Seed of the weights; the tokenizer does not depend on it.
    """
    if vocab_size < 300 or hidden_size % 16:
        raise ValueError(
            f"vocab_size={vocab_size!r}, hidden_size={hidden_size!r}: expected at least 300, and a multiple of 16"
        )
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = make_tiny_tokenizer(vocab_size, context_length)
    shape = _text_config(tokenizer, hidden_size=hidden_size, layers=layers, context_length=context_length)
    config = Qwen3Config(**shape, head_dim=head_dim, dtype=torch.float32)
    return _make(lambda: Qwen3ForCausalLM(config), seed, out_dir, tokenizer)


def _text_config(tokenizer: Any, *, hidden_size: int = 64, layers: int = 2, context_length: int = 4096) -> Any:
    """The shape of a language model, for the configurations of transformers."""
    heads = hidden_size // 16
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": hidden_size,
        "intermediate_size": 2 * hidden_size,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2 if heads % 2 == 0 else heads,
        "max_position_embeddings": context_length,
        "tie_word_embeddings": False,
        "initializer_range": 0.5,  # much wider than usual: answers vary, and greedy decoding has clear winners
        "bos_token_id": tokenizer.convert_tokens_to_ids("<|endoftext|>"),
        "eos_token_id": tokenizer.eos_token_id,
    }


def make_tiny_vision_model(
    out_dir: str | Path | None = None,
    *,
    family: str = "qwen2_5_vl",
    seed: int = 0,
) -> TinyModel:
    """Make a tiny random vision-language model with the family's real image processor.

    A 64x48 image becomes 20 tokens. Saved as a folder it loads in transformers and in a genuine SGLang server.

    Args:
        out_dir: Folder to save everything into; nothing is written without it.
        family: `"qwen2_5_vl"` or `"qwen3_vl"`.
    """
    if family not in VISION_FAMILIES:
        raise ValueError(f"family={family!r}: expected one of {', '.join(VISION_FAMILIES)}")
    import transformers
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    tokenizer = make_tiny_tokenizer(more_control=VISION_TOKENS)
    tokenizer.chat_template = VISION_TEMPLATE
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in VISION_TOKENS}
    is_third = family == "qwen3_vl"
    # They add up to half a head's width; Qwen3-VL also interleaves them.
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2] if is_third else [2, 3, 3]}
    text = {
        **_text_config(tokenizer),
        "rope_parameters": {**rope, "mrope_interleaved": True} if is_third else rope,
        **({"head_dim": 16} if is_third else {}),
    }
    patch = 16 if is_third else 14
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 64,
        "patch_size": patch,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        **(
            {"num_position_embeddings": 256, "deepstack_visual_indexes": [0]}
            if is_third
            else {"window_size": 56, "fullatt_block_indexes": [1]}
        ),
    }
    name = "Qwen3VL" if is_third else "Qwen2_5_VL"
    config = getattr(transformers, f"{name}Config")(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    make_model = getattr(transformers, f"{name}ForConditionalGeneration")
    images = Qwen2VLImageProcessorPil(
        # Named edges, counted in pixels.
        patch_size=patch,
        merge_size=2,
        size={"shortest_edge": 16 * 28 * 28, "longest_edge": 256 * 28 * 28},
    )
    tiny = _make(lambda: make_model(config), seed, out_dir, tokenizer, images)
    if tiny.path is not None:
        _name_processors(tiny.path, name)
    return tiny


def _make(
    make_model: Callable[[], Any], seed: int, out_dir: str | Path | None, tokenizer: Any, images: Any = None
) -> TinyModel:
    import torch
    from transformers.utils import logging as hf_logging

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make_model().to(torch.float32).eval()
    path = None if out_dir is None else Path(out_dir)
    if path is not None:
        with without_progress_bars(hf_logging):
            model.save_pretrained(path)
        for part in (tokenizer, images):
            if part is not None:
                part.save_pretrained(path)
    return TinyModel(model=model, tokenizer=tokenizer, path=path, image_processor=images)


def _name_processors(folder: Path, name: str) -> None:
    """Write the classes into the folder that `AutoProcessor` looks for; the video processor has its defaults."""
    file = folder / "preprocessor_config.json"
    settings = json.loads(file.read_text(encoding="utf-8"))
    settings["processor_class"] = f"{name}Processor"
    settings["image_processor_type"] = "Qwen2VLImageProcessor"
    file.write_text(json.dumps(settings, indent=1), encoding="utf-8")
    video = {
        "processor_class": f"{name}Processor",
        "video_processor_type": "Qwen3VLVideoProcessor" if name == "Qwen3VL" else "Qwen2VLVideoProcessor",
    }
    (folder / "video_preprocessor_config.json").write_text(json.dumps(video, indent=1), encoding="utf-8")


def make_tiny_tokenizer(vocab_size: int = 1024, context_length: int = 4096, more_control: tuple[str, ...] = ()) -> Any:
    """The tokenizer of `make_tiny_model`, the same for equal arguments; `context_length` is its `model_max_length`."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=train_tiny_bpe(vocab_size, more_control),
        **SPECIAL_TOKENS,
        model_max_length=context_length,
        clean_up_tokenization_spaces=False,  # it changes the text of exact ids
        chat_template=HERMES_TEMPLATE,
    )


def train_tiny_bpe(vocab_size: int = 1024, more_control: tuple[str, ...] = ()) -> Any:
    """The Rust tokenizer of `make_tiny_tokenizer`."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(CONTROL_TOKENS) - len(MARK_TOKENS) - len(more_control),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(_corpus(random.Random(0)), trainer)
    bpe.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL_TOKENS + more_control])
    bpe.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARK_TOKENS])
    return bpe


def _corpus(rng: random.Random) -> Iterator[str]:
    """Generated words, numbers, JSON and code: enough for merges that look like those of a real vocabulary."""
    parts = [first + vowel + last for first in "bdfgklmnprstvw" for vowel in "aeiou" for last in ("", "n", "r", "st")]
    words = ["".join(rng.choices(parts, k=rng.randint(1, 3))) for _ in range(600)]
    words += ["the", "a", "is", "of", "to", "name", "arguments", "user", "assistant", "system", "tool", "expression"]
    for _ in range(600):
        one, two, three = rng.choices(words, k=3)
        number = rng.randint(0, 9999)
        yield f"What is {one} {two}? The {three} is {number}.\n"
        yield f'{{"name": "{one}", "arguments": {{"expression": "{number} + {rng.randint(0, 99)}"}}}}\n'
        yield f"def {one}({two}, {three}={number}):\n    return {two} * {three}\n"


@contextlib.contextmanager
def without_progress_bars(hf_logging: Any) -> Iterator[None]:
    """Keep transformers from drawing progress bars over the caller's output."""
    enabled = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            hf_logging.enable_progress_bar()
