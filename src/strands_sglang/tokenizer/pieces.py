r"""Byte-level BPE tokenizers, id for id and letter for letter as in Rust, in a fraction of the time.

Such a tokenizer cuts a text into pieces (a word, a number, a run of punctuation) by a pattern, and encodes every piece
on its own. The Rust implementation spends its time on the cutting and on looking pieces up. Here Python's `re` cuts and
a dict remembers the ids of each piece; only a piece not seen before goes to the Rust model. Tool results repeat their
words.

`re` knows no `\p{L}`, and the packages that do have tables of their own version of Unicode, which need not be the
tokenizer's. So the pattern, in Oniguruma's syntax, is translated: each class becomes the list of its characters within
an alphabet whose properties no version of Unicode has changed. A pattern that would mean something else in `re`, or is
not known to mean the same, is refused. Texts with other characters, and tokenizers with anything that is not understood
here, are left to the Rust implementation. Decoding joins the bytes that ids stand for. `Codec` compares all of it with
the Rust implementation before it is used.
"""

from __future__ import annotations

import json
import random
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import chain, pairwise
from typing import Any, Final

from ..template import pattern_of

# The pattern of a `ByteLevel` pre-tokenizer with `use_regex`.
_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_KEPT_PIECES: Final = 1 << 15
_LONGEST_KEPT: Final = 48

Ids = tuple[int, ...]
_Cut = Callable[[str], list[str]]


class PieceEncoder:
    """Encodes texts for one tokenizer; `of` makes it.

    Args:
        tokens: Patterns of added tokens, in the order in which they are taken out of a text.
        cuts: They cut the rest into pieces, one after the other.
    """

    def __init__(self, rust: Any, tokens: Iterable[re.Pattern[str]], cuts: Iterable[_Cut]) -> None:
        self._rust = rust
        self._state = self._state_now()
        self._tokens = tuple(tokens)
        self._token_ids = {str(token.content): (number,) for number, token in rust.get_added_tokens_decoder().items()}
        self._cuts = tuple(cuts)
        tokenize = rust.model.tokenize
        self._pieces = _Kept(lambda piece: [token.id for token in tokenize(_write_bytes(piece))])
        self._texts = _Kept(self._encode_text)  # what a template prints between two tokens

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
        for part, is_token in self._split_tokens(text):
            if is_token:
                ids += self._token_ids[part]
            elif len(part) <= _LONGEST_KEPT:
                ids += self._texts[part]
            else:
                ids += self._encode_text(part)
        return ids

    def _encode_text(self, text: str) -> Iterator[int]:
        """Ids of a text without tokens."""
        first, *others = self._cuts
        pieces = first(text)
        for cut in others:
            pieces = list(chain.from_iterable(map(cut, pieces)))
        return chain.from_iterable(map(self._pieces.__getitem__, pieces))

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
    """Ids of short texts, remembered.

    Args:
        encode: Encodes those that are new.
    """

    def __init__(self, encode: Callable[[str], Iterable[int]]) -> None:
        self._encode = encode

    def __missing__(self, text: str) -> Ids:
        ids = tuple(self._encode(text))
        if len(text) <= _LONGEST_KEPT:
            if len(self) >= _KEPT_PIECES:
                self.clear()
            self[text] = ids
        return ids


def _write_bytes(piece: str) -> str:
    """A piece as byte-level BPE writes it: a character for each byte."""
    return piece.encode().decode("latin-1").translate(_WRITTEN)


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


# ---- the parts of a tokenizer ---------------------------------------------------------------------------------------


def _token_patterns(rust: Any) -> list[re.Pattern[str]]:
    """Added tokens are taken out first, leftmost and longest: those of the raw text, then those of the normalized."""
    groups: dict[bool, list[str]] = {False: [], True: []}
    for token in rust.get_added_tokens_decoder().values():
        content = str(token.content)
        _require(not (token.lstrip or token.rstrip or token.single_word) and unicodedata.is_normalized("NFC", content))
        groups[token.normalized].append(content)
    return [re.compile(f"({pattern_of(tuple(sorted(group))).pattern})") for group in groups.values() if group]


def _cuts(rust: Any) -> list[_Cut]:
    model = rust.model
    _require(type(model).__name__ == "BPE" and not model.dropout)
    _require(all(part == {"type": "NFC"} for part in _parts(rust.normalizer, "normalizers")))
    *splits, last = _parts(rust.pre_tokenizer, "pretokenizers") or [{}]
    _require(last.get("type") == "ByteLevel" and not last["add_prefix_space"])
    cuts: list[_Cut] = []
    for part in splits:
        if part["type"] == "Digits":
            cuts.append(_cut(r"\p{N}" if part["individual_digits"] else r"\p{N}+"))
            continue
        handling = part["type"] == "Split" and (part["behavior"], part["invert"])
        _require(handling in (("Isolated", False), ("Removed", True)))
        (kind, pattern), *_ = part["pattern"].items()
        cuts.append(_cut(pattern if kind == "Regex" else re.escape(pattern), keeps_gaps=not part["invert"]))
    if last["use_regex"]:
        cuts.append(_cut(_GPT2))
    _require(bool(cuts))
    return cuts


def _parts(component: Any, name: str) -> list[dict[str, Any]]:
    """A component of the tokenizer as JSON, sequences flat."""
    state = _to_json(component)
    _require(bool(state))
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
    """Cuts a text into the matches of a pattern and, if they are kept, the gaps between them."""
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


# ---- patterns ------------------------------------------------------------------------------------------------------


# Assigned since the first versions of Unicode; composed (NFC leaves them alone: no combining mark is among them); no
# character but ß whose case folds into several, or into ASCII: Latin without İ, ı, ŉ and ſ; Greek and Cyrillic;
# punctuation, arrows, mathematics, boxes, ticks; the scripts of East Asia.
_RANGES: Final = """
    0-7F A0-12F 132-148 14A-17E 391-3A1 3A3-3A9 3B1-3C9 401-401 410-44F 451-451
    2010-2027 2030-203A 20AC-20AC 2122-2122 2190-22F1 2500-25EF 2701-2704 2713-2718
    3000-3002 3008-3011 3041-3094 30A1-30FA 30FC-30FC 4E00-9FA5 AC00-D7A3 FF01-FF5E
"""
ALPHABET: Final = frozenset(
    code
    for first, last in (ends.split("-") for ends in _RANGES.split())
    for code in range(int(first, 16), int(last, 16) + 1)
)
ASCII: Final = frozenset(range(0x80))
_SPACES: Final = frozenset(map(ord, "\t\n\v\f\r \xa0\u3000"))
_ESCAPED: Final = {"r": "\r", "n": "\n", "t": "\t"}


class NotUnderstoodError(Exception):
    """Something of a tokenizer is not understood."""


def _require(is_understood: bool) -> None:
    if not is_understood:
        raise NotUnderstoodError


def translate(pattern: str, alphabet: frozenset[int]) -> re.Pattern[str]:
    """The same pattern for `re`, for texts of an alphabet; `NotUnderstoodError` unless it means the same."""
    try:
        return _Translation(pattern, alphabet).expression
    except re.error:
        raise NotUnderstoodError from None


class _Translation:
    """Reads a pattern item by item and writes each for `re`."""

    def __init__(self, pattern: str, alphabet: frozenset[int]) -> None:
        self._rest = pattern
        self._alphabet = alphabet
        read = list(self._read())
        self.expression = re.compile(f"({''.join(written for written, _ in read)})")
        consuming = "".join(written for written, is_ahead in read if not is_ahead)
        _require(not re.match(consuming, ""))  # after an empty match the two go on differently

    def _take(self, expression: str) -> re.Match[str] | None:
        found = re.compile(expression, re.DOTALL).match(self._rest)
        if found:
            self._rest = self._rest[found.end() :]
        return found

    def _read(self) -> Iterator[tuple[str, bool]]:
        """The pattern item by item, and whether each belongs to a group that only looks ahead."""
        groups: list[str] = []
        while self._rest:
            is_ahead = "(?=" in groups or "(?!" in groups
            if found := self._take(r"\((\?(?:i?:|=|!))?"):
                group = f"({found[1] or '?:'}"
                _require(not self._rest.startswith("?") and "(?i:" not in groups)
                groups.append(group)
                yield group, is_ahead or group in ("(?=", "(?!")
            elif self._take(r"\)"):
                # A repeated group may take exponential time here and not there.
                _require(bool(groups) and not self._take(r"[*+{]"))
                groups.pop()
                yield ")", is_ahead
            elif "(?i:" in groups:  # `ss` would match ß, too, however it is put together
                if not (found := self._take(r"(?![sS]{2})[A-Za-z']|\|")):
                    raise NotUnderstoodError
                yield found[0], is_ahead
            elif found := self._take(r"[?*+]\+?|\{\d+(?:,\d*)?\}(?![?+])|\|"):  # `{2}+` means two things
                yield found[0], is_ahead
            elif self._take(r"\[(?!\^?\])"):
                yield self._class(), is_ahead
            else:
                yield self._write(self._characters(r"[^\\.^$\[\]{}]")), is_ahead

    def _class(self) -> str:
        negated = bool(self._take(r"\^"))
        members: set[int] = set()
        while not self._take(r"\]"):
            _require(not self._take(r"\[|&&"))
            first = self._characters(r"[^\\]")
            if self._rest.startswith("-") and not self._rest.startswith("-]"):
                self._take("-")
                last = self._characters(r"[^\\]")
                _require(len(first) == len(last) == 1)
                first = frozenset(range(min(first), min(last) + 1))
            members |= first
        return self._write(ALPHABET - members if negated else members)

    def _write(self, members: frozenset[int] | set[int]) -> str:
        return _write_class(members & self._alphabet)

    def _characters(self, literal: str) -> frozenset[int]:
        if found := self._take(r"\\([pP])\{(\^?)([LMNPSZC][a-z]?)\}"):
            members = _category(found[3])
            return ALPHABET - members if (found[1] == "P") != bool(found[2]) else members
        if found := self._take(r"\\([sS])"):
            return _SPACES if found[1] == "s" else ALPHABET - _SPACES
        if found := self._take(r"\\([rnt]|[^\w\s])"):
            return frozenset({ord(_ESCAPED.get(found[1], found[1]))})
        if found := self._take(literal):
            return frozenset({ord(found[0])})
        raise NotUnderstoodError


@lru_cache(maxsize=64)
def _category(name: str) -> frozenset[int]:
    return frozenset(code for code in ALPHABET if unicodedata.category(chr(code)).startswith(name))


def _write_class(members: Iterable[int]) -> str:
    codes = sorted(members)
    if len(codes) < 2:
        return re.escape(chr(codes[0])) if codes else "(?!)"
    gaps = [place for place, (one, other) in enumerate(pairwise(codes), start=1) if other != one + 1]
    runs = [(codes[start], codes[end - 1]) for start, end in pairwise([0, *gaps, len(codes)])]
    return "[" + "".join(rf"\U{first:08x}-\U{last:08x}" for first, last in runs) + "]"


is_in_alphabet: Final[Callable[[str], re.Match[str] | None]] = re.compile(f"{_write_class(ALPHABET)}*").fullmatch
