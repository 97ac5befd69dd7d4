"""The tokenizer: texts to ids and back, exactly, in one piece."""

from .adapter import Tokenizer, TokenizerAdapter
from .codec import LONG_TEXT, Codec, codec_of

__all__ = ["LONG_TEXT", "Codec", "Tokenizer", "TokenizerAdapter", "codec_of"]
