"""Encoding in pieces gives the ids of the Rust tokenizer, for the ways in which models cut their texts."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.qwen_support import PATTERN, qwen3_tokenizer

tokenizers = pytest.importorskip("tokenizers")
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers  # noqa: E402

from strands_sglang.tokenizer import Codec, codec_of  # noqa: E402
from strands_sglang.tokenizer.pieces import (  # noqa: E402
    ALPHABET,
    PieceDecoder,
    PieceEncoder,
    odd_texts,
)

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = "|".join(
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
DEEPSEEK = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
)


def splits(*patterns: str) -> list[Any]:
    return [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]


CUTS = {
    "gpt2": [pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "smollm": [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ],
    "matches alone": [
        pre_tokenizers.Split(Regex(r"\p{L}+|[ ,.]"), "removed", invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ],
    "digits": [pre_tokenizers.Digits(), pre_tokenizers.ByteLevel(add_prefix_space=False)],
    **{
        name: [*splits(*patterns), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        for name, patterns in {
            "qwen": (PATTERN,),
            "qwen3.5": (QWEN35,),
            "llama3": (LLAMA3,),
            "o200k": (O200K,),
            "deepseek": DEEPSEEK,
        }.items()
    },
}
SENTENCES = [
    "It's what they'll DO: 12345 + 67 = 3.5e-9, isn't it?\n\n    return {'key': [1, 2]}  # done\r\n",
    "Größe und Straße — naïve “quotes”… 東京都の天気は晴れ。 Привет, мир! <tool_call>\n{}\n</tool_call>",
]


def trained(pre_tokenizer: Any, **options: Any) -> Tokenizer:
    """A small tokenizer."""
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer = pre_tokenizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES * 3, trainer)
    tokenizer.add_special_tokens([AddedToken("<|im_start|>", normalized=False), AddedToken("<|im_end|>", special=True)])
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=True), AddedToken("<tool", normalized=True)])
    return tokenizer


@cache
def both(name: str) -> tuple[Tokenizer, PieceEncoder]:
    rust = trained(pre_tokenizers.Sequence(CUTS[name]))
    rust.normalizer = normalizers.NFC()
    encoder = PieceEncoder.of(rust)
    assert encoder is not None
    return rust, encoder


TOKENS = ["<|im_start|>", "<|im_end|>", "<tool_call>", "<tool", "</tool_call>"]
PARTS = st.one_of(
    st.sampled_from([*TOKENS, *SENTENCES, "'S", "'ll", " '", "\r\n", "  ", "\t", "\u00a0", "\u3000", "1234", "½", "ß"]),
    st.text(st.sampled_from(" \n\r\t'sStTlLvVrRdDeEmM.,_-/1"), max_size=8),
    st.text(st.characters(max_codepoint=0x7F), max_size=6),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
    st.text(st.sampled_from([chr(code) for code in sorted(ALPHABET)]), max_size=6),
)


@pytest.mark.parametrize("name", CUTS)
@given(parts=st.lists(PARTS, max_size=12))
@example(parts=["a\u017f'\u017f K"])
@example(parts=["e\u0301"])
def test_pieces_have_the_ids_of_the_rust_tokenizer(name: str, parts: list[str]) -> None:
    rust, encoder = both(name)
    text = "".join(parts)
    ids = encoder.encode(text)
    assert ids == rust.encode(text, add_special_tokens=False).ids or (
        ids is None and not ALPHABET.issuperset(map(ord, text))
    )


@pytest.mark.parametrize("name", CUTS)
def test_every_character_of_the_alphabet_stands_where_the_rust_tokenizer_has_it(name: str) -> None:
    rust, encoder = both(name)
    letters = [chr(code) for code in sorted(ALPHABET)]
    common = letters[:700]  # without the scripts of East Asia, whose characters are of few kinds
    for text in (
        "".join(letters),
        " ".join(common),
        "".join(f"a{each}1 {each}\n" for each in common),
        *odd_texts(TOKENS),
    ):
        assert encoder.encode(text) == rust.encode(text, add_special_tokens=False).ids


def test_a_real_tokenizer_is_understood() -> None:
    rust = qwen3_tokenizer().backend_tokenizer
    encoder = PieceEncoder.of(rust)
    for text in (*SENTENCES, *odd_texts(["<|im_start|>", "<think>"])):
        assert encoder.encode(text) == rust.encode(text, add_special_tokens=False).ids


REFUSED = {
    "no pieces": None,
    "a space in front": pre_tokenizers.ByteLevel(add_prefix_space=True),
    "words without bytes": pre_tokenizers.Whitespace(),
    "joined to what is before": pre_tokenizers.Split(Regex(" "), "merged_with_previous"),
    "cut away": pre_tokenizers.Split(Regex(" "), "removed"),
    **{
        pattern: pre_tokenizers.Split(Regex(pattern), "isolated")
        for pattern in (
            r"(?:\p{L}+)+",
            r"\p{L}*(?=é)|\p{L}+",
            "(?=a)|b",
            "(?i:x|s(?:s))",
            "(?i:s+)",
            "^a",
            "a$",
            ".",
            r"\bx",
            r"\d+",
            r"\w+",
            "(?<n>a)",
            "(?<=a)b",
            "a{2}+",
            "a{2}?",
            "[a-z&&[b]]",
            "a*",
        )
    },
    "ß is ss": pre_tokenizers.Split(Regex("(?i:ss|x)"), "isolated"),
    "a class that ignores case": pre_tokenizers.Split(Regex("(?i:[a-z])"), "isolated"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_not_understood_is_refused(why: str) -> None:
    cut, levels = REFUSED[why], [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    if cut is None or isinstance(cut, pre_tokenizers.Split):
        cut = pre_tokenizers.Sequence([*([cut] if cut else []), *levels])
    assert PieceEncoder.of(trained(cut)) is None


def test_other_parts_of_a_tokenizer_are_refused() -> None:
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert PieceEncoder.of(trained(cut)) is not None
    assert PieceEncoder.of(trained(cut, dropout=0.1)) is None
    lower = trained(cut)
    lower.normalizer = normalizers.Lowercase()
    assert PieceEncoder.of(lower) is None
    strips = trained(cut)
    strips.add_tokens([AddedToken("<x>", lstrip=True)])
    assert PieceEncoder.of(strips) is None
    splits = trained(cut)
    splits.normalizer = normalizers.NFC()
    splits.add_tokens([AddedToken("o\u0308", normalized=True)])  # matched as one letter, in texts of the alphabet
    assert PieceEncoder.of(splits) is None


def test_parts_written_in_python_and_long_tokens_are_refused() -> None:
    class Cut:
        def pre_tokenize(self, text: Any) -> None: ...

        def decode_chain(self, tokens: list[str]) -> list[str]:
            return tokens

    rust = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
    rust.decoder = decoders.Decoder.custom(Cut())
    assert PieceDecoder.of(rust) is None
    rust.add_tokens(["x" * 2000])
    assert PieceEncoder.of(rust) is None
    rust = trained(pre_tokenizers.PreTokenizer.custom(Cut()))
    assert PieceEncoder.of(rust) is None


def test_a_token_inside_another_one_does_not_cut_it() -> None:
    rust = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
    rust.add_tokens(["im", "start", "thi"])
    rust.add_special_tokens([AddedToken("t", normalized=False)])
    encoder = PieceEncoder.of(rust)
    for text in ("<|im_start|>im this", "thi", "im", "<tool_call>", "t"):
        assert encoder.encode(text) == rust.encode(text, add_special_tokens=False).ids


CHANGES: dict[str, Callable[[Any], object]] = {
    "normalizer": lambda rust: setattr(rust, "normalizer", normalizers.Lowercase()),
    "pre-tokenizer": lambda rust: setattr(rust, "pre_tokenizer", pre_tokenizers.Whitespace()),
    "dropout": lambda rust: setattr(rust.model, "dropout", 0.5),
    "in place": lambda rust: setattr(rust.pre_tokenizer, "add_prefix_space", True),
    "a token": lambda rust: rust.add_tokens(["<new>"]),
    "in Python": lambda rust: setattr(rust, "pre_tokenizer", pre_tokenizers.PreTokenizer.custom(object())),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_tokenizer_that_is_changed_is_left_to_rust(change: str) -> None:
    rust = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
    encoder = PieceEncoder.of(rust)
    assert encoder.encode("Hello World") is not None
    CHANGES[change](rust)
    assert encoder.encode("Hello World") is None


def test_another_decoder_is_left_to_rust() -> None:
    rust = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
    rust.decoder = decoders.ByteLevel()
    decoder = PieceDecoder.of(rust)
    assert decoder.decode([40]) is not None
    for other in (None, decoders.Metaspace()):
        foreign = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
        foreign.decoder = other
        assert PieceDecoder.of(foreign) is None
    rust.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace("a", "b")])
    assert decoder.decode([40]) is None


def test_a_tokenizer_with_further_tokens_gets_a_backend_of_its_own() -> None:
    from transformers import PreTrainedTokenizerFast

    rust = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=rust)
    before = codec_of(tokenizer)
    assert codec_of(tokenizer) is before
    token = next(token for token in tokenizer.get_vocab() if token.isalpha() and len(token) > 1)
    tokenizer.add_tokens([token])  # the vocabulary has it, so its size stays
    assert codec_of(tokenizer) is not before
    text = f"x{token}y {token}"
    assert codec_of(tokenizer).encode(text) == tokenizer.encode(text, add_special_tokens=False)


def test_a_proof_without_comparisons_proves_nothing(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """Tokens outside of the alphabet are left to Rust, which must not hide a wrong encoder."""
    from transformers import PreTrainedTokenizerFast

    rust = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
    rust.add_tokens(["😀", "😁", "😂"])
    monkeypatch.setattr(PieceEncoder, "_split_tokens", lambda self, text: [(text, False)])
    backend = Codec(PreTrainedTokenizerFast(tokenizer_object=rust))
    assert "its pieces give other ids" in caplog.text
    assert backend.encode("<|im_start|>x") == rust.encode("<|im_start|>x", add_special_tokens=False).ids


def test_pieces_that_fill_the_memory_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strands_sglang.tokenizer.pieces._KEPT_PIECES", 10)
    rust = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
    encoder = PieceEncoder.of(rust)
    for number in range(50):
        for text in (f"word{number}", f"word{number} and more of it" + "x" * 100):
            assert encoder.encode(text) == rust.encode(text, add_special_tokens=False).ids
    for kept in (encoder._pieces, encoder._texts):
        assert 0 < len(kept) <= 10


def test_a_backend_does_not_use_pieces_with_other_ids(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=both("qwen")[0])
    rust = tokenizer.backend_tokenizer
    text = "two  spaces"
    assert Codec(tokenizer).encode(text) == rust.encode(text, add_special_tokens=False).ids
    monkeypatch.setattr("strands_sglang.tokenizer.pieces._SPACES", frozenset({32}))
    assert Codec(tokenizer).encode("a\n\n b") == rust.encode("a\n\n b", add_special_tokens=False).ids
    assert "its pieces give other ids" in caplog.text


@cache
def decoding() -> tuple[Tokenizer, PieceDecoder]:
    rust = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
    rust.decoder = decoders.ByteLevel()
    rust.add_tokens([AddedToken("<｜User｜>"), AddedToken("Ġ of their own"), AddedToken(" spaces ")])
    decoder = PieceDecoder.of(rust)
    assert decoder is not None
    return rust, decoder


@given(ids=st.lists(st.integers(0, 420), max_size=30))
def test_ids_are_decoded_as_by_the_rust_tokenizer(ids: list[int]) -> None:
    rust, decoder = decoding()
    text = decoder.decode(ids)
    expected = rust.decode(ids, skip_special_tokens=False)
    assert text == expected or (text is None and "\ufffd" in expected)


@given(parts=st.lists(PARTS, max_size=12))
def test_texts_come_back(parts: list[str]) -> None:
    rust, decoder = decoding()
    ids = rust.encode("".join(parts), add_special_tokens=False).ids
    assert decoder.decode(ids) == rust.decode(ids, skip_special_tokens=False)


def test_an_id_that_is_given_a_token_later_is_decoded() -> None:
    rust = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
    rust.decoder = decoders.ByteLevel()
    decoder = PieceDecoder.of(rust)
    assert decoder is not None
    number = rust.get_vocab_size()
    assert decoder.decode([number]) == rust.decode([number], skip_special_tokens=False) == ""
    rust.add_tokens(["<new>"])
    assert decoder.decode([number]) == "<new>"
