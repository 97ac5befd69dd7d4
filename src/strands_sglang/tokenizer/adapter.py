"""A conversation's view of a tokenizer: ids of texts, texts of ids, stop and special tokens."""

from __future__ import annotations

import json
import logging
from array import array
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from ..template import Span
from ..trajectory import pack_ids
from .codec import Codec, codec_of

logger = logging.getLogger(__name__)


class Tokenizer(Protocol):
    """A Hugging Face tokenizer, or what encodes and decodes like one; other attributes are read where it has them."""

    def encode(self, text: Any, /, *args: Any, **options: Any) -> Any:
        """Ids of a text."""
        ...

    def decode(self, token_ids: Any, /, *args: Any, **options: Any) -> Any:
        """Text of ids."""
        ...


class TokenizerAdapter:
    """A thin layer over any Hugging Face style tokenizer.

    Args:
        tokenizer: Object with `encode(text, add_special_tokens=False)` and `decode(ids, skip_special_tokens=False)`.
        stop_tokens: Stop tokens the engine knows beyond the tokenizer's own eos token.
    """

    def __init__(self, tokenizer: Tokenizer, stop_tokens: Iterable[str] = ()) -> None:
        self.tokenizer = tokenizer
        self._extra_stops = tuple(stop_tokens)
        self._texts: dict[int, str] = {}

    def encode(self, text: str, literal: Sequence[Span] = ()) -> array[int]:
        """Ids of a text, in one call: a piece-wise encoding gives other ids. Nothing is added at the ends.

        Args:
            literal: Spans that spell control tokens and are to be encoded as ordinary text (`Rendered.literal`).

        Raises:
            ControlTokenError: There are such spans and the tokenizer cannot encode them as text.
        """
        if not text:
            return pack_ids(())
        if literal:
            return pack_ids(self.codec.encode_literal(text, literal))
        return pack_ids(self.codec.encode(text))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids with every special token kept and no clean-up."""
        return self.codec.decode(list(ids)) if ids else ""

    @cached_property
    def codec(self) -> Codec:
        """The encoder and decoder, which all models of this tokenizer share."""
        return codec_of(self.tokenizer)

    def token_text(self, token_id: int) -> str:
        """Text of one token."""
        text = self._texts.get(token_id)
        if text is None:
            text = self._texts[token_id] = self.decode([token_id])
        return text

    def is_control(self, token_id: int) -> bool:
        """True if a token only structures the text: a stop token of the model, or one flagged special."""
        return token_id in self._special or self.token_text(token_id) in self.stop_tokens

    @cached_property
    def _special(self) -> dict[int, str]:
        """Texts of the tokens flagged special, by id."""
        added, listed = (getattr(self.tokenizer, name, ()) for name in ("added_tokens_decoder", "all_special_ids"))
        tokens = added.items() if isinstance(added, dict) else ()
        special = {number: str(token) for number, token in tokens if getattr(token, "special", False)}
        numbers = listed if isinstance(listed, list | tuple | set) else ()
        return special | {number: self.token_text(number) for number in numbers if number not in special}

    def without_control_tokens(self, text: str) -> str:
        """A text for the model with its control tokens defused: `<|call|>` becomes `call`."""
        for token in self.control_texts:
            text = text.replace(token, token.strip("<|[｜]>"))
        return text

    @cached_property
    def control_texts(self) -> tuple[str, ...]:
        """Texts of the tokens flagged special, and of the stop tokens."""
        return tuple(dict.fromkeys(text for text in (*self._special.values(), *self.stop_tokens) if text))

    @cached_property
    def special_tokens(self) -> tuple[str, ...]:
        """Every added or special token of the tokenizer."""
        tokens: list[str] = []
        for source in ("get_added_vocab", "all_special_tokens"):
            value = getattr(self.tokenizer, source, ())
            value = value() if callable(value) else value
            if isinstance(value, dict | list | tuple):
                tokens.extend(str(token) for token in value)
        return tuple(dict.fromkeys(tokens))

    @cached_property
    def stop_tokens(self) -> tuple[str, ...]:
        """Stop tokens: the tokenizer's eos, those of `generation_config.json` beside it, and the configured ones."""
        eos = getattr(self.tokenizer, "eos_token", None)
        stops = [eos] if isinstance(eos, str) and eos else []
        stops += [self.token_text(token_id) for token_id in self._config_eos_ids("generation_config.json")]
        return tuple(dict.fromkeys([*stops, *self._extra_stops]))

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end a turn: eos of the tokenizer and of both model configurations, and the configured tokens."""
        ids = {*_ids(getattr(self.tokenizer, "eos_token_id", None))}
        for name in ("generation_config.json", "config.json"):
            ids.update(self._config_eos_ids(name))
        for encoded in map(self.encode, self._extra_stops):
            if len(encoded) == 1:
                ids.add(encoded[0])
        return frozenset(ids)

    def _config_eos_ids(self, name: str) -> list[int]:
        source = getattr(self.tokenizer, "name_or_path", None)
        if not isinstance(source, str) or not source:
            return []
        file = Path(source) / name
        if not file.is_file():
            cached = _from_hub_cache(source, name)
            if cached is None:
                return []
            file = cached
        try:
            return _ids(json.loads(file.read_text(encoding="utf-8")).get("eos_token_id"))
        except (OSError, ValueError, AttributeError) as error:
            logger.warning("file=<%s>, error=<%s> | model configuration is not readable", file.name, error)
            return []


def _ids(value: Any) -> list[int]:
    ids = value if isinstance(value, list) else [value]
    return [token_id for token_id in ids if isinstance(token_id, int) and not isinstance(token_id, bool)]


def _from_hub_cache(repo_id: str, name: str) -> Path | None:
    """The file a hub model brought along when its tokenizer was loaded; nothing is fetched."""
    try:
        from huggingface_hub import try_to_load_from_cache

        path = try_to_load_from_cache(repo_id, name)
    except Exception:  # not installed, or not a repository id: there is simply no such file
        return None
    return Path(path) if isinstance(path, str) else None
