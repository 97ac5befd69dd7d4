"""vLLM as a backend: its token-in, token-out endpoint behind the contract."""

from .client import VLLMClient

__all__ = ["VLLMClient"]
