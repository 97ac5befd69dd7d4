"""A small language-model engine in this process, on CPU: a backend.

It needs PyTorch and transformers (extra `local`), which are imported when a model is made or loaded.

```python
from strands_sglang import SGLangModel
from ..engine import EmbeddedEngine

async with EmbeddedEngine("smollm2") as engine:
    model = SGLangModel(client=engine, tokenizer=engine.tokenizer)
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .own_models import ModelLoadError, UnknownModelError
from .smollm2 import few_shot_messages, worked_example
from .tiny import TinyModel, make_tiny_model, make_tiny_vision_model

if TYPE_CHECKING:
    from .engine import EmbeddedEngine

__all__ = [
    "EmbeddedEngine",
    "ModelLoadError",
    "TinyModel",
    "UnknownModelError",
    "few_shot_messages",
    "make_tiny_model",
    "make_tiny_vision_model",
    "worked_example",
]


def __getattr__(name: str) -> Any:
    # The engine alone needs PyTorch, which takes seconds to import, and is not there without the extra.
    if name != "EmbeddedEngine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .engine import EmbeddedEngine

    return EmbeddedEngine
