"""Upstream's module of this name: shared clients and tokenizers, and the decoding of routed experts."""

from .backends.clients import get_client, get_client_from_slime_args, get_tokenizer
from .trajectory.packed import decode_routed_experts

__all__ = ["decode_routed_experts", "get_client", "get_client_from_slime_args", "get_tokenizer"]
