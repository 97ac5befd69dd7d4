"""Exact encoding and decoding, in one piece; and a conversation's view of a tokenizer.

The Rust tokenizer behind a Hugging Face tokenizer is called directly where that is proved to give the same. It also
encodes texts that the class around it cannot: those in which some control tokens are meant and others only spelled.
"""

from __future__ import annotations

import copy
import json
import logging
import secrets
import threading
import weakref
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from ..exceptions import ControlTokenError
from ..fast_paths import FastPath
from ..template import Span, pattern_of
from ..trajectory import pack_ids
from ..trajectory.packed import TOKEN_TYPECODE

if TYPE_CHECKING:
    from .pieces import PieceDecoder, PieceEncoder

logger = logging.getLogger(__name__)

# Texts on which the ways to encode and decode have differed for some tokenizer.
_ODD_TEXTS: Final = (
    " leading and trailing ",
    "a\n\nb\r\n\tc  d\n \n",
    "It's 12345.678 -- naïve café, Ａｂｃ ﬁ ½, e\u0301 ñ",
    "日本語のテキスト 한국어 العربية हिन्दी 👩‍👩‍👧 🇨🇭 \u200b\ufeff\u00a0x",
    '{"a": [1, 2.5e-3, null], "b": "\\u00e9\\n"}',
    "def f(x):\n    return x ** 2  # <b>bold</b> &amp; <|not a token|> [NOT] </end>\n",
    "\x00\x07\x1b[0m \ufffd",
    "A" * 300,
)

LONG_TEXT: Final = 20_000
"""Characters from which on a text is encoded by the Rust tokenizer, on a thread: the event loop runs meanwhile."""


class Codec:
    """Encodes and decodes for one tokenizer; use `codec_of`, which makes one a tokenizer."""

    _encoder: PieceEncoder | None = None
    _decoder: PieceDecoder | None = None

    def __init__(self, tokenizer: Any) -> None:
        try:  # held weakly: the table of codecs must not keep a tokenizer alive
            self._tokenizer: Callable[[], Any] = weakref.ref(tokenizer)
        except TypeError:  # and such a one is in no table
            self._tokenizer = lambda: tokenizer
        rust = getattr(tokenizer, "backend_tokenizer", None)
        self._rust: Any = rust if type(rust).__module__.partition(".")[0] == "tokenizers" else None
        self._encodes_alike = self._decodes_alike = False
        if self._rust is not None:
            self._added = self._rust.get_added_tokens_decoder()
            self._prove(tokenizer)
        self._literal: _LiteralEncoder | None = None
        self._lock = threading.Lock()

    @cached_property
    def plain(self) -> Codec:
        """The same without the fast path in Python."""
        twin = copy.copy(self)
        twin._encoder = twin._decoder = None
        return twin

    @property
    def is_outdated(self) -> bool:
        """True if tokens were added since, even such as the vocabulary had before."""
        return self._rust is not None and self._rust.get_added_tokens_decoder() != self._added

    @property
    def vocabulary_size(self) -> int | None:
        """Number of tokens, added ones included; None where it is not known cheaply."""
        return None if self._rust is None else int(self._rust.get_vocab_size())

    def _prove(self, tokenizer: Any) -> None:
        tokens = [str(token.content) for token in self._rust.get_added_tokens_decoder().values()]
        texts = [*_ODD_TEXTS, "".join(f"x{token} y\n{token}" for token in tokens), "".join(tokens)]
        encoded = [self._rust_encode(text) for text in texts]
        by_class = [_class_encode(tokenizer, text) for text in texts]
        self._encodes_alike = encoded == by_class and self._is_untouched
        decoded = [self._rust.decode(ids, skip_special_tokens=False) for ids in encoded]
        self._decodes_alike = decoded == [_class_decode(tokenizer, ids) for ids in encoded]
        if not (self._encodes_alike and self._decodes_alike):
            logger.debug("tokenizer=<%s> | encodes or decodes in its own way", type(tokenizer).__name__)
        self._prove_pieces(texts, tokens)

    def _prove_pieces(self, texts: list[str], tokens: list[str]) -> None:
        from .pieces import PieceDecoder, PieceEncoder, odd_texts

        encoder = PieceEncoder.of(self._rust) if self._encodes_alike else None
        decoder = PieceDecoder.of(self._rust) if self._decodes_alike else None
        if encoder is None and decoder is None:
            return
        odd = list(odd_texts(tokens))
        for text in (*texts, *(f"x{token} {token}{token}y" for token in tokens), *odd):
            ids = self._rust_encode(text)
            printed = self._rust.decode(ids, skip_special_tokens=False)
            left = () if text in odd else (None,)  # only texts of the tokenizer's own may be left to Rust
            if encoder is not None and encoder.encode(text) not in (ids, *left):
                logger.warning("text=<%.100r> | its pieces give other ids, so Rust encodes", text)
                encoder = None
            if decoder is not None and decoder.decode(ids) not in (printed, *((None,) if "\ufffd" in printed else ())):
                logger.warning("ids=<%.100r> | their pieces give another text, so Rust decodes", ids)
                decoder = None
        self._encoder, self._decoder = encoder, decoder

    @property
    def _is_untouched(self) -> bool:
        """True if nothing has set the Rust tokenizer to cut, fill up or split (another user of it may)."""
        rust = self._rust
        return rust.truncation is None and rust.padding is None and not rust.encode_special_tokens

    @property
    def is_parallel(self) -> bool:
        """True if threads can encode at the same time, as the Rust tokenizer lets them."""
        return self._encodes_alike and self._is_untouched

    def encode(self, text: str) -> list[int]:
        """Ids of a text; nothing is added at the ends."""
        if self.is_parallel:
            ids = None
            if self._encoder is not None and len(text) < LONG_TEXT:
                ids = self._encoder.encode(text)
            return self._rust_encode(text) if ids is None else ids
        return _class_encode(self._tokenizer(), text)

    def _rust_encode(self, text: str) -> list[int]:
        # One text as a batch: for a single text the tokenizer keeps the interpreter's lock. `fast` leaves out the
        # character offsets, a fifth of the time of a long text.
        encode = getattr(self._rust, "encode_batch_fast", self._rust.encode_batch)
        return encode([text], add_special_tokens=False)[0].ids  # type: ignore[no-any-return]

    def decode(self, ids: list[int]) -> str:
        """Text of ids, special tokens kept."""
        if self._decoder is not None and (text := self._decoder.decode(ids)) is not None:
            return text
        if self._decodes_alike:
            return self._rust.decode(ids, skip_special_tokens=False)  # type: ignore[no-any-return]
        return _class_decode(self._tokenizer(), ids)

    def encode_literal(self, text: str, literal: Sequence[Span]) -> list[int]:
        """Ids of a text whose `literal` spans are ordinary text, control tokens too; otherwise `ControlTokenError`."""
        if not self._encodes_alike:
            start, end = literal[0]
            raise ControlTokenError(
                f"a message spells {text[start:end]!r}, and {type(self._tokenizer()).__name__} cannot encode it as "
                "ordinary text; remove it from the message, or set control_tokens='allow'"
            )
        with self._lock:
            if self._literal is None or self._literal.size != self._rust.get_vocab_size():
                self._literal = _LiteralEncoder(self._rust)
        return self._literal.encode(text, literal, expected=self.encode(text))


class _LiteralEncoder:
    """The same tokenizer, with every added token under a random name that no text contains.

    Tokens that are meant are renamed in the text as well; the others are ordinary text for it. So the text is still
    encoded in one piece. Model, normalizer and pre-tokenizer are shared, not copied.
    """

    def __init__(self, rust: Any) -> None:
        self.size = rust.get_vocab_size()
        salt = secrets.token_hex(6)
        self._rust = type(rust)(rust.model)
        if rust.normalizer is not None:
            self._rust.normalizer = rust.normalizer
        if rust.pre_tokenizer is not None:
            self._rust.pre_tokenizer = rust.pre_tokenizer
        self._names: dict[str, str] = {}
        self._own_ids: dict[int, int] = {}  # the id here, to the id there
        for number, token in sorted(rust.get_added_tokens_decoder().items()):
            name = str(token.content)
            if len(name.strip()) > 1:
                self._names[name] = f"Qr{salt}n{number}Rq"
                name = self._names[name]
            flags = {flag: getattr(token, flag) for flag in ("single_word", "lstrip", "rstrip", "normalized")}
            renamed = type(token)(name, special=token.special, **flags)
            self._rust.add_special_tokens([renamed]) if token.special else self._rust.add_tokens([renamed])
            self._own_ids[self._rust.token_to_id(name)] = number
        self._pattern = pattern_of(tuple(sorted(self._names)))

    def encode(self, text: str, literal: Sequence[Span], *, expected: list[int]) -> list[int]:
        """Ids of a text with literal spans.

        Args:
            expected: Ids of the text without literal spans, which have to come out here, too.

        Raises:
            ControlTokenError: They do not, or a spelled token is one even without being an added token.
        """
        named = set(self._own_ids.values())
        ids = self._encode(self._rename(text, literal))
        meant = sum(token in named for token in expected) - sum(token in named for token in ids)
        spelled = sum(len(self._pattern.findall(text[start:end])) for start, end in literal)
        if self._encode(self._rename(text, ())) != expected or meant != spelled:
            start, end = literal[0]
            raise ControlTokenError(
                f"a message spells {text[start:end]!r}, and this tokenizer cannot encode it as ordinary text; "
                "remove it from the message, or set control_tokens='allow'"
            )
        return ids

    def _encode(self, text: str) -> list[int]:
        ids = self._rust.encode_batch([text], add_special_tokens=False)[0].ids
        return [self._own_ids.get(token, token) for token in ids]

    def _rename(self, text: str, literal: Sequence[Span]) -> str:
        """The text with every token that is not in a literal span under its random name."""
        pieces, done = [], 0
        for start, end in (*literal, (len(text), len(text))):
            pieces.append(self._pattern.sub(lambda found: self._names[found.group()], text[done:start]))
            pieces.append(text[start:end])
            done = end
        return "".join(pieces)


_codecs: weakref.WeakKeyDictionary[Any, Codec] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def codec_of(tokenizer: Any) -> Codec:
    """The codec of a tokenizer; thousands of models share one tokenizer and one proof."""
    with _lock:
        try:
            codec = _codecs.get(tokenizer)
            if codec is None or codec.is_outdated:
                codec = _codecs[tokenizer] = Codec(tokenizer)
        except TypeError:  # no weak references, or not hashable
            return Codec(tokenizer)
        return codec


def _class_encode(tokenizer: Any, text: str) -> list[int]:
    return pack_ids(tokenizer.encode(text, add_special_tokens=False)).tolist()


def _class_decode(tokenizer: Any, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


# ---- the view of a conversation ------------------------------------------------


class Tokenizer(Protocol):
    """A Hugging Face tokenizer, or an object that encodes and decodes like one; other attributes are optional."""

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
            return array(TOKEN_TYPECODE)
        return array(TOKEN_TYPECODE, self.codec.encode_literal(text, literal) if literal else self.codec.encode(text))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids with every special token kept and no clean-up."""
        return self.codec.decode(list(ids)) if ids else ""

    @cached_property
    def codec(self) -> Codec:
        """The encoder and decoder, which all models of this tokenizer share."""
        codec = codec_of(self.tokenizer)
        return codec if FastPath.PIECES.is_on else codec.plain

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

    def _config_eos_ids(self, name: str) -> tuple[int, ...]:
        source = getattr(self.tokenizer, "name_or_path", None)
        return _eos_ids_of(source, name) if isinstance(source, str) and source else ()


@lru_cache(maxsize=256)
def _eos_ids_of(source: str, name: str) -> tuple[int, ...]:
    """Ids that a configuration of a model names as ends, read once a process: thousands of models share a folder."""
    file = Path(source) / name
    if not file.is_file():
        cached = None if file.parent.is_dir() else _from_hub_cache(source, name)  # a folder is no hub id
        if cached is None:
            return ()
        file = cached
    try:
        return tuple(_ids(json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")))
    except (OSError, ValueError, AttributeError) as error:
        logger.warning("file=<%s>, error=<%s> | model configuration is not readable", file.name, error)
        return ()


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
