"""Upstream's module of this name."""

from .json_calls import HermesToolParser

__all__ = ["HermesToolParser"]
