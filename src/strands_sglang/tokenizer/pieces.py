r"""Byte-level BPE tokenizers, id for id and letter for letter what Rust makes of them, in a fraction of the time.

Such a tokenizer cuts a text into pieces (a word, a number, a run of punctuation) by a pattern, and encodes every piece
on its own. The Rust implementation spends its time on the cutting and on looking pieces up. Here Python's `re` cuts and
a dict remembers the ids of each piece; only a piece not seen before goes to the Rust model. Tool results repeat their
words.

The pattern is translated for `re` and an alphabet (`oniguruma.py`). Texts with other characters, and tokenizers
with anything that is not understood here, are left to the Rust implementation. Decoding joins the bytes that ids stand
for. `Codec` compares all of it with the Rust implementation before it is used.
"""

from __future__ import annotations

import json
import random
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Final

from ..template import pattern_of
from .oniguruma import ALPHABET, ASCII, NotUnderstoodError, is_in_alphabet, translate

_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The pattern of a `ByteLevel` pre-tokenizer with `use_regex`."""
_KEPT_PIECES: Final = 1 << 15
_LONGEST_KEPT: Final = 48

Ids = tuple[int, ...]
_Cut = Callable[[str], list[str]]


class PieceEncoder:
    """Encodes texts for one tokenizer; `of` makes it.

    Args:
        tokens: Patterns of added tokens, in the order in which they are taken out of a text.
        cuts: They cut what is left into pieces, one after the other.
    """

    def __init__(self, rust: Any, tokens: Iterable[re.Pattern[str]], cuts: Iterable[_Cut]) -> None:
        self._rust = rust
        self._state = self._state_now()
        self._tokens = tuple(tokens)
        self._token_ids = {str(token.content): (number,) for number, token in rust.get_added_tokens_decoder().items()}
        self._first, *self._others = cuts
        self._kept = _Kept(rust.model)

    @classmethod
    def of(cls, rust: Any) -> PieceEncoder | None:
        """The encoder of a tokenizer; None where something of it is not understood here."""
        try:
            return cls(rust, _token_patterns(rust), _cuts(rust))
        except (NotUnderstoodError, RecursionError):  # the pattern of a very long token
            return None

    def encode(self, text: str) -> list[int] | None:
        """Ids of a text, None where the Rust implementation has to encode it; nothing is added at the ends."""
        if not (text.isascii() or is_in_alphabet(text)) or self._state_now() != self._state:
            return None
        ids: list[int] = []
        for piece, is_token in self._split_tokens(text):
            if is_token:
                ids += self._token_ids[piece]
                continue
            parts = self._first(piece)
            for cut in self._others:
                parts = list(chain.from_iterable(map(cut, parts)))
            ids += chain.from_iterable(map(self._kept.__getitem__, parts))
        return ids

    def _state_now(self) -> tuple[Any, ...]:
        """Marks that tell, in a microsecond, whether the tokenizer was changed."""
        rust = self._rust
        states = _to_json(rust.normalizer), _to_json(rust.pre_tokenizer)
        return rust.get_vocab_size(), rust.model.dropout, *states

    def _split_tokens(self, text: str) -> list[tuple[str, bool]]:
        """The parts of a text, and whether each is an added token."""
        parts = [(text, False)]
        for pattern in self._tokens:
            parts = [
                (each, is_token or place % 2 == 1)
                for part, is_token in parts
                for place, each in enumerate((part,) if is_token else pattern.split(part))
            ]
        return parts


class _Kept(dict[str, Ids]):
    """Ids of pieces, as the Rust model gives them."""

    def __init__(self, model: Any) -> None:
        self._tokenize = model.tokenize

    def __missing__(self, piece: str) -> Ids:
        written = piece.encode().decode("latin-1").translate(_WRITTEN)
        ids = tuple(token.id for token in self._tokenize(written))
        if len(piece) <= _LONGEST_KEPT:
            if len(self) >= _KEPT_PIECES:
                self.clear()
            self[piece] = ids
        return ids


class PieceDecoder:
    """Decodes the ids of one tokenizer; `of` makes it."""

    def __init__(self, rust: Any) -> None:
        self._rust = rust
        self._state = _to_json(rust.decoder)
        self._kept = _Bytes(rust)

    @classmethod
    def of(cls, rust: Any) -> PieceDecoder | None:
        """The decoder of a tokenizer; None where it is not the one of byte-level BPE."""
        try:
            parts = _parts(rust.decoder, "decoders")
        except NotUnderstoodError:
            return None
        return cls(rust) if [part["type"] for part in parts] == ["ByteLevel"] else None

    def decode(self, ids: Iterable[int]) -> str | None:
        """Text of ids, special tokens kept; None where Rust has to print them, as when they end inside a character."""
        if _to_json(self._rust.decoder) != self._state:
            return None
        try:
            return b"".join(map(self._kept.__getitem__, ids)).decode()
        except UnicodeDecodeError:
            return None


class _Bytes(dict[int, bytes]):
    """The bytes that each id stands for."""

    def __init__(self, rust: Any) -> None:
        self._rust = rust

    def __missing__(self, number: int) -> bytes:
        token = self._rust.id_to_token(number)
        if token is None:  # may be added later
            return b""
        if all(character in _READ for character in token):
            text = bytes(_READ[character] for character in token)
        else:  # an added token
            text = token.encode()
        self[number] = text
        return text


# Byte-level BPE writes each byte as a printable character: itself, or one of those from U+0100 on.
_PRINTABLE: Final = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_WRITTEN: Final = {
    byte: chr(0x100 + number) for number, byte in enumerate(byte for byte in range(0x100) if byte not in _PRINTABLE)
}
_READ: Final = {_WRITTEN.get(byte, chr(byte)): byte for byte in range(0x100)}


# ---- what a tokenizer consists of -----------------------------------------------------------------------------------


def _token_patterns(rust: Any) -> list[re.Pattern[str]]:
    """Added tokens are taken out first, leftmost and longest: those of the raw text, then those of the normalized."""
    groups: dict[bool, list[str]] = {False: [], True: []}
    for token in rust.get_added_tokens_decoder().values():
        content = str(token.content)
        if token.lstrip or token.rstrip or token.single_word or not unicodedata.is_normalized("NFC", content):
            raise NotUnderstoodError
        groups[token.normalized].append(content)
    return [re.compile(f"({pattern_of(tuple(sorted(group))).pattern})") for group in groups.values() if group]


def _cuts(rust: Any) -> list[_Cut]:
    model = rust.model
    if type(model).__name__ != "BPE" or model.dropout:
        raise NotUnderstoodError
    if any(part != {"type": "NFC"} for part in _parts(rust.normalizer, "normalizers")):
        raise NotUnderstoodError
    *splits, last = _parts(rust.pre_tokenizer, "pretokenizers") or [{}]
    if last.get("type") != "ByteLevel" or last["add_prefix_space"]:
        raise NotUnderstoodError
    cuts: list[_Cut] = []
    for part in splits:
        if part["type"] == "Digits":
            cuts.append(_cut(r"\p{N}" if part["individual_digits"] else r"\p{N}+"))
            continue
        handling = part["type"] == "Split" and (part["behavior"], part["invert"])
        if handling not in (("Isolated", False), ("Removed", True)):
            raise NotUnderstoodError
        (kind, pattern), *_ = part["pattern"].items()
        cuts.append(_cut(pattern if kind == "Regex" else re.escape(pattern), keeps_gaps=not part["invert"]))
    if last["use_regex"]:
        cuts.append(_cut(_GPT2))
    if not cuts:
        raise NotUnderstoodError
    return cuts


def _parts(component: Any, name: str) -> list[dict[str, Any]]:
    """A component of the tokenizer as JSON, sequences flat."""
    state = _to_json(component)
    if not state:
        raise NotUnderstoodError
    written = json.loads(state)
    if written is None:
        return []
    return list(written[name]) if written["type"] == "Sequence" else [written]


def _to_json(component: Any) -> bytes:
    """A component as JSON; nothing where it is written in Python."""
    if component is None:
        return b"null"
    try:
        return component.__getstate__()  # type: ignore[no-any-return]
    except Exception:  # the binding raises no class of its own
        return b""


def _cut(pattern: str, *, keeps_gaps: bool = True) -> _Cut:
    """Cuts a text into the matches of a pattern and, where they are kept, what lies between two."""
    every = translate(pattern, ALPHABET)
    try:  # small classes are looked up faster
        expressions = every, translate(pattern, ASCII)
    except NotUnderstoodError:
        expressions = every, every

    def cut(text: str) -> list[str]:
        expression = expressions[text.isascii()]
        matches = expression.findall(text)
        if not keeps_gaps or "".join(matches) == text:
            return matches
        return [piece for piece in expression.split(text) if piece]

    return cut


def odd_texts(tokens: list[str]) -> Iterator[str]:
    """Seeded texts on which a mistake in any of this would show: characters of all kinds side by side, and tokens."""
    choose = random.Random(0)
    kinds = (
        *"  \n\n\r\t\x0b\x1c\xa0\u3000'",
        *"'sS'tT're've'm'll'dD",
        *'.,:;-_/<>{}[]()!?#$"\\',
        *"aZ09",
        *"\xdf\xb5\xbd\u4e2d",
        *(token for token in tokens if ALPHABET.issuperset(map(ord, token))),
    )
    letters = [chr(code) for code in sorted(ALPHABET)]
    for number in range(40):
        odd = [choose.choice(letters if choose.random() < number / 80 else kinds) for _ in range(250)]
        yield "".join(odd)
        yield "".join(odd).encode("ascii", "ignore").decode()
