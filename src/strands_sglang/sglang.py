"""Upstream's module of this name; the model is in `strands_sglang.model`."""

from .conversation.model_options import SGLangConfig
from .model import SGLangModel

__all__ = ["SGLangConfig", "SGLangModel"]
