"""Upstream's module of this name."""

from .tags import QwenXMLToolParser

__all__ = ["QwenXMLToolParser"]
