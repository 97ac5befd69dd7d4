"""Upstream's module of this name; the client is in `strands_sglang.backends.sglang`."""

from .backends.sglang import NON_RETRYABLE_STATUS_CODES, SGLangClient

__all__ = ["NON_RETRYABLE_STATUS_CODES", "SGLangClient"]
