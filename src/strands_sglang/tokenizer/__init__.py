"""The tokenizer: texts to ids and back, exactly, in one piece."""

from .codec import LONG_TEXT, Codec, Tokenizer, TokenizerAdapter, codec_of

__all__ = ["LONG_TEXT", "Codec", "Tokenizer", "TokenizerAdapter", "codec_of"]
