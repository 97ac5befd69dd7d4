"""Tokenizers of the package's own models for programs that load no model: transformers takes most of a second."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from ...template.chat_template import SPECIAL_NAMES
from .loader import load_default_model, load_tokenizer
from .own_models import is_own_model
from .smollm2 import CHAT_TEMPLATE
from .templates import HERMES_TEMPLATE
from .tiny import SPECIAL_TOKENS, train_tiny_bpe


class OwnTokenizer:
    """The Rust tokenizer of an own model, with what this package reads of transformers' class.

    Anything else is asked of that class, which is then loaded: code of the user may call it.
    """

    def __init__(
        self, name: str, rust: Any, special_tokens: Mapping[str, Any], *, chat_template: str, path: str = ""
    ) -> None:
        self._name = name
        self.backend_tokenizer = rust
        self.chat_template = chat_template
        self.name_or_path = path
        self.added_tokens_decoder: dict[int, Any] = rust.get_added_tokens_decoder()
        for token in SPECIAL_NAMES:
            setattr(self, token, special_tokens.get(token))
        self.special_tokens_map = {token: text for token in SPECIAL_NAMES if (text := getattr(self, token)) is not None}
        self.all_special_tokens = list(dict.fromkeys(self.special_tokens_map.values()))
        self.all_special_ids = [rust.token_to_id(text) for text in self.all_special_tokens]
        self.eos_token_id = rust.token_to_id(special_tokens["eos_token"])

    def encode(self, text: Any, *args: Any, **options: Any) -> Any:
        """Ids of a text."""
        if args or not isinstance(text, str) or options.keys() - {"add_special_tokens"}:
            return self._full.encode(text, *args, **options)
        return self.backend_tokenizer.encode(text, **options).ids

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **options: Any) -> Any:
        """Text of ids."""
        if not isinstance(token_ids, list) or any(options.values()):
            return self._full.decode(token_ids, skip_special_tokens=skip_special_tokens, **options)
        return self.backend_tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def get_added_vocab(self) -> dict[str, int]:
        """Added tokens and their ids."""
        return {token.content: number for number, token in self.added_tokens_decoder.items()}

    def __len__(self) -> int:
        return int(self.backend_tokenizer.get_vocab_size())

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call transformers' tokenizer."""
        return self._full(*args, **options)

    @cached_property
    def _full(self) -> Any:
        return load_tokenizer(self._name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # a copy asks before there is anything
            raise AttributeError(name)
        return getattr(self._full, name)


def own_tokenizer(name: str) -> OwnTokenizer | None:
    """The tokenizer of `"smollm2"` or `"tiny"`; None for another, for a folder of that name, or without `tokenizers`.

    Raises:
        ModelLoadError: The default model cannot be fetched.
    """
    if name not in ("smollm2", "tiny") or not is_own_model(name):
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:  # transformers brings it, and `load_tokenizer` says how to install that
        return None
    if name == "tiny":
        return OwnTokenizer(name, train_tiny_bpe(), SPECIAL_TOKENS, chat_template=HERMES_TEMPLATE)
    folder = load_default_model()
    special_tokens = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    rust = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return OwnTokenizer(name, rust, special_tokens, chat_template=CHAT_TEMPLATE, path=str(folder))
