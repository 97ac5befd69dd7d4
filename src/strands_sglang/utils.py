"""Kept for existing imports of the shared clients and tokenizers; new code imports from `strands_sglang`."""

from .backends.sglang import get_client, get_client_from_slime_args, get_tokenizer

__all__ = ["get_client", "get_client_from_slime_args", "get_tokenizer"]
