"""The asynchronous client of SGLang's native API: one prompt of ids in, one checked answer out."""

from .client import SGLangClient

__all__ = ["SGLangClient"]
