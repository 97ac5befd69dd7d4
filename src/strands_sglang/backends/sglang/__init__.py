"""The asynchronous client of SGLang's native API: one prompt of ids in, one checked answer out."""

from .client import NON_RETRYABLE_STATUS_CODES, SGLangClient

__all__ = ["NON_RETRYABLE_STATUS_CODES", "SGLangClient"]
