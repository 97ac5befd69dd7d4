"""Constrained decoding: JSON schemas, regular expressions and EBNF grammars become token masks (xgrammar)."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

import torch

from ...exceptions import BackendRequestError


class GrammarCompiler:
    """Compiles grammars for one tokenizer; safe to call from any thread.

    Args:
        vocab_size: Rows of the model's output.
        stop_token_ids: Tokens that end a completed grammar.
    """

    def __init__(self, tokenizer: Any, *, vocab_size: int, stop_token_ids: Sequence[int]) -> None:
        import xgrammar

        self._vocab_size = vocab_size
        info = xgrammar.TokenizerInfo.from_huggingface(
            tokenizer, vocab_size=vocab_size, stop_token_ids=list(stop_token_ids) or None
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1)
        self._compile = functools.lru_cache(maxsize=64)(self._compile_uncached)

    def matcher(self, kind: str, text: str) -> Matcher:
        """Start an answer under a `json_schema`, `regex` or `ebnf`; `BackendRequestError` if it cannot be compiled."""
        import xgrammar

        try:
            compiled = self._compile(kind, text)
        except Exception as error:
            raise BackendRequestError(f"sampling_params[{kind!r}] cannot be compiled: {error}") from error
        return Matcher(xgrammar.GrammarMatcher(compiled), self._vocab_size)

    def _compile_uncached(self, kind: str, text: str) -> Any:
        if kind == "json_schema":
            if text == "$$ANY$$":
                return self._compiler.compile_builtin_json_grammar()
            json.loads(text)
            return self._compiler.compile_json_schema(text)
        return self._compiler.compile_regex(text) if kind == "regex" else self._compiler.compile_grammar(text)


class Matcher:
    """State of one answer in its grammar."""

    def __init__(self, matcher: Any, vocab_size: int) -> None:
        import xgrammar

        self._matcher = matcher
        self._apply = xgrammar.apply_token_bitmask_inplace
        self._bitmask = xgrammar.allocate_token_bitmask(1, vocab_size)

    @property
    def is_finished(self) -> bool:
        """Nothing more may follow."""
        return bool(self._matcher.is_terminated())

    def mask(self, logits: torch.Tensor) -> None:
        """Set the logits `[vocabulary]` of forbidden tokens to minus infinity."""
        if self._matcher.fill_next_token_bitmask(self._bitmask):
            self._apply(logits[None], self._bitmask)

    def accept(self, token: int) -> bool:
        """Advance by a sampled token; False if the grammar forbids it."""
        return bool(self._matcher.accept_token(token))
