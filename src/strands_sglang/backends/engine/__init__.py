"""A small language-model engine in this process, on CPU: a backend.

It needs PyTorch and transformers (extra `local`), which are imported when a model is made or loaded.

```python
from strands_sglang import SGLangModel
from strands_sglang.backends.engine import EmbeddedEngine

async with EmbeddedEngine("smollm2") as engine:
    model = SGLangModel(client=engine, tokenizer=engine.tokenizer)
```
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .own_models import ModelLoadError, UnknownModelError
from .tiny import TinyModel, make_tiny_model, make_tiny_vision_model

if TYPE_CHECKING:
    from .engine import EmbeddedEngine
    from .loader import load_default_model

__all__ = [
    "EmbeddedEngine",
    "ModelLoadError",
    "TinyModel",
    "UnknownModelError",
    "load_default_model",
    "make_tiny_model",
    "make_tiny_vision_model",
]


def __getattr__(name: str) -> Any:
    """Import the rest when it is first used: the engine loads PyTorch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{'loader' if name == 'load_default_model' else 'engine'}"), name)
