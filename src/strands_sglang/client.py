"""Upstream's module of this name; the client is in `strands_sglang.backends.sglang`."""

from .backends.sglang.client import SGLangClient

__all__ = ["SGLangClient"]
