"""The tokenizer: texts to ids and back, exactly, in one piece."""

from .adapter import TokenizerAdapter
from .codec import LONG_TEXT, Codec, codec_of

__all__ = ["LONG_TEXT", "Codec", "TokenizerAdapter", "codec_of"]
