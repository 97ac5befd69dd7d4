"""Upstream's module of this name."""

from .tags import GLMToolParser

__all__ = ["GLMToolParser"]
