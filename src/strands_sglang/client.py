"""Upstream's import path of the SGLang client (`docs/migration.md`); new code imports from `strands_sglang`."""

from .backends.sglang import NON_RETRYABLE_STATUS_CODES, SGLangClient

__all__ = ["NON_RETRYABLE_STATUS_CODES", "SGLangClient"]
